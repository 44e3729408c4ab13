"""Prompts to ids: which requests are refused, and by which words."""

from __future__ import annotations

from typing import Any

import pytest
from support.byte_tokenizer import BOS_ID, CHAT_TEMPLATE, build_byte_tokenizer
from support.text_tokenizers import llama_style

from orchestrator.prompt import (
    CHARACTERS_PER_TOKEN,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    encode_bad_words,
    encode_request,
)
from paceline.errors import InvalidArgumentError
from paceline.runtime.tokenizer import Tokenizer

USER_HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_byte_tokenizer(chat_template=CHAT_TEMPLATE, add_bos=True))


def encode(tokenizer: Tokenizer, **fields: Any) -> tuple[int, ...]:
    limits = {"vocab_size": tokenizer.vocab_size, "context_length": 40}
    absent: dict[str, Any] = {"prompt": "", "messages": (), "token_ids": ()}
    return encode_request(tokenizer, **{**absent, **limits, **fields})


def test_a_prompt_is_encoded_with_one_bos(tokenizer: Tokenizer) -> None:
    """C07: also where the text begins with it."""
    assert encode(tokenizer, prompt="hi") == (BOS_ID, 104, 105)
    assert encode(tokenizer, prompt="<bos>hi") == (BOS_ID, 104, 105)


def test_messages_go_through_the_template_with_one_bos(tokenizer: Tokenizer) -> None:
    """C07: the template writes BOS and the tokenizer would too."""
    ids = encode(tokenizer, messages=USER_HI)
    assert ids == (BOS_ID, *b"user: hi\nassistant:")


def test_token_ids_are_taken_as_they_are(tokenizer: Tokenizer) -> None:
    assert encode(tokenizer, token_ids=[5, 0, 257]) == (5, 0, 257)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "prompt: exactly one of prompt, messages and token_ids must be given"),
        (
            {"prompt": "a", "token_ids": [1]},
            "prompt: exactly one of prompt, messages and token_ids must be given; "
            "prompt and token_ids was",
        ),
        ({"messages": USER_HI, "token_ids": [1]}, "messages: exactly one of prompt, messages"),
        ({"token_ids": [1, 258]}, "token_ids: id 258 at position 1 is outside [0, 258)"),
        ({"token_ids": [-1]}, "token_ids: id -1 at position 0 is outside [0, 258)"),
        ({"token_ids": [1] * 40}, "token_ids: 40 tokens leave no room to generate"),
        ({"prompt": "a" * 39}, "prompt: 40 tokens leave no room to generate: the context"),
        (
            {"prompt": "a" * (40 * CHARACTERS_PER_TOKEN + 1)},
            "prompt: 1281 characters; at most 1280",
        ),
        (
            {"messages": [{"role": "user", "content": "a" * 2000}]},
            "messages: 2000 characters; at most 1280",
        ),
        ({"messages": [{"role": "", "content": "a"}]}, "messages: message 0 has no role"),
        (
            {"messages": [{"role": "r" * 65, "content": "a"}]},
            "messages: the role of message 0 has 65 characters; at most 64",
        ),
    ],
)
def test_a_wrong_prompt_is_refused_by_name_with_the_numbers(
    tokenizer: Tokenizer, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode(tokenizer, **fields)
    assert str(caught.value).startswith(message)


def test_a_prompt_of_no_token_is_refused() -> None:
    class Nothing(Tokenizer):
        def encode(self, text: str) -> list[int]:
            return []

    with pytest.raises(InvalidArgumentError, match="prompt: it gives no token"):
        encode(Nothing(build_byte_tokenizer()), prompt="x")


def test_the_longest_prompt_that_fits_is_taken(tokenizer: Tokenizer) -> None:
    assert len(encode(tokenizer, prompt="a" * 38)) == 39
    assert len(encode(tokenizer, token_ids=[1] * 39)) == 39


def test_a_bad_word_is_banned_with_and_without_a_leading_space(tokenizer: Tokenizer) -> None:
    """F04: without special tokens, each spelling once."""
    assert encode_bad_words(tokenizer, ["no", "no", " x"]) == (
        tuple(b"no"),
        tuple(b" no"),
        tuple(b" x"),
    )


def test_a_bad_word_of_sentencepiece_is_banned_inside_a_text_too() -> None:
    tokenizer = Tokenizer(llama_style())
    tokens = tokenizer.vocabulary().tokens
    with_space, without = tokens.index("▁a".encode()), tokens.index(b"a")
    banned = encode_bad_words(tokenizer, ["a"])
    assert (with_space,) in banned
    assert (without,) in banned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ok", " "], "bad_words: word 1 is empty"),
        (["a"] * (MAX_BAD_WORDS + 1), "bad_words: 257 words; at most 256"),
        (["a" * (MAX_BAD_WORD_LENGTH + 1)], "bad_words: word 0 has 257 characters; at most 256"),
    ],
)
def test_wrong_bad_words_are_refused_by_name(
    tokenizer: Tokenizer, words: list[str], message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode_bad_words(tokenizer, words)
    assert str(caught.value) == message
