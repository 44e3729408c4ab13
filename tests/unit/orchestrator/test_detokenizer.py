"""Incremental text against the tokenizer's own decoding of everything, for every family."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import EOS_ID, build_byte_tokenizer
from support.text_tokenizers import FAMILIES, byte_level_bpe, llama_style
from tokenizers import decoders

from orchestrator.decode_steps import FusedStrip
from orchestrator.detokenizer import Detokenizer
from paceline.runtime.tokenizer import Tokenizer

families = pytest.mark.parametrize("family", FAMILIES)

TEXTS = (
    "a😀b",
    "👩‍👩‍👧‍👦 family",
    "e\u0301\u0327 accents",
    "日本語 and café",
    "\x00\ud7ff\uffff\U0010ffff",
    "  two spaces",
    "\ufffd really",
)


@functools.cache
def tokenizer_of(family: str) -> Tokenizer:
    return Tokenizer(FAMILIES[family]())


def pushes(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """What each push returned, then the flush."""
    detokenizer = Detokenizer(tokenizer)
    texts = [detokenizer.push(token_id) for token_id in token_ids]
    return [*texts, detokenizer.flush()]


@st.composite
def token_ids(draw: st.DrawFn, tokenizer: Tokenizer) -> list[int]:
    """Random ids, runs of one id, and encodings of awkward texts cut anywhere."""
    encoded = st.sampled_from(TEXTS).map(tokenizer.encode_plain)
    cut = encoded.flatmap(
        lambda ids: st.tuples(
            st.integers(0, max(len(ids) - 1, 0)), st.integers(1, len(ids) + 1)
        ).map(lambda ends: ids[ends[0] : ends[1]])
    )
    one = st.integers(0, tokenizer.vocab_size + 1)
    parts = st.one_of(
        st.lists(one, max_size=12),
        st.tuples(one, st.integers(1, 6)).map(lambda run: [run[0]] * run[1]),
        encoded,
        cut,
    )
    return [token_id for part in draw(st.lists(parts, max_size=6)) for token_id in part]


@families
@settings(derandomize=True, max_examples=80, deadline=None)
@given(data=st.data())
def test_pushes_and_flush_joined_are_one_shot_decoding(family: str, data: st.DataObject) -> None:
    """C04: for any ids, valid text or not."""
    tokenizer = tokenizer_of(family)
    ids = data.draw(token_ids(tokenizer))
    assert "".join(pushes(tokenizer, ids)) == tokenizer.decode(ids)


@families
@settings(derandomize=True, max_examples=25, deadline=None)
@given(data=st.data())
def test_every_cut_of_an_output_decodes_like_the_cut_alone(
    family: str, data: st.DataObject
) -> None:
    """C04: text cut by max_tokens inside a character is the unary text of the same ids."""
    tokenizer = tokenizer_of(family)
    ids = data.draw(token_ids(tokenizer))
    for end in range(len(ids) + 1):
        assert "".join(pushes(tokenizer, ids[:end])) == tokenizer.decode(ids[:end])


@families
@settings(derandomize=True, max_examples=40, deadline=None)
@given(data=st.data())
def test_a_detokenizer_that_is_not_pending_flushes_nothing(
    family: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of(family)
    detokenizer = Detokenizer(tokenizer)
    for token_id in data.draw(token_ids(tokenizer)):
        detokenizer.push(token_id)
    pending = detokenizer.pending
    assert pending or detokenizer.flush() == ""


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_comes_whole_with_its_last_byte(text: str) -> None:
    """C04: no U+FFFD for a character that is completed later."""
    tokenizer = tokenizer_of("byte")
    expected = [part for char in text for part in [""] * (len(char.encode()) - 1) + [char]]
    assert pushes(tokenizer, list(text.encode())) == [*expected, ""]


def test_special_tokens_add_nothing_and_break_no_character() -> None:
    """C04: a skipped token between the bytes of a character leaves it whole."""
    tokenizer = tokenizer_of("byte")
    first, *rest = "😀".encode()
    texts = pushes(tokenizer, [first, EOS_ID, *rest, EOS_ID])
    assert texts == ["", "", "", "", "😀", "", ""]


def test_bytes_that_cannot_become_a_character_come_at_once() -> None:
    """C04: endless invalid bytes hold back at most an incomplete character."""
    tokenizer = tokenizer_of("byte")
    detokenizer = Detokenizer(tokenizer)
    for length in range(1, 100):
        text = detokenizer.push(0xFF)
        assert text == "\ufffd", length
    assert not detokenizer.pending


def test_a_spoilt_run_of_fallback_bytes_is_not_held_back() -> None:
    """C04: fallback bytes are decoded as a run: a valid one waits, a spoilt one does not."""
    tokenizer = Tokenizer(llama_style())
    byte = {value: tokenizer.encode_plain(chr(value))[-1] for value in (0x1, 0x2)}
    first_byte = byte[0x1] - 0x1
    good, bad = [first_byte + value for value in "é".encode()], first_byte + 0xFF
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token_id) for token_id in [*good, *good]] == ["", "", "", ""]
    assert detokenizer.push(bad) == 5 * "\ufffd"
    assert [detokenizer.push(token_id) for token_id in good] == ["\ufffd", "\ufffd"]


def test_the_leading_space_is_cut_once_and_later_ones_stay() -> None:
    tokenizer = Tokenizer(llama_style())
    the = tokenizer.vocabulary().tokens.index("▁the".encode())
    assert pushes(tokenizer, [the, the]) == ["the", " the", ""]


def test_memory_does_not_grow_with_the_output() -> None:
    """C04: the window is bounded, never the whole output."""
    tokenizer = Tokenizer(byte_level_bpe())
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode_plain("naïve 😀 text, ")
    for token_id in ids * 20:
        detokenizer.push(token_id)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for token_id in ids * 2000:
            detokenizer.push(token_id)
        grown = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert grown < 20_000


def test_the_byte_tokenizer_decodes_any_bytes_as_they_are() -> None:
    tokenizer = Tokenizer(build_byte_tokenizer())
    assert tokenizer.decode([104, 105, 0xFF, EOS_ID]) == "hi\ufffd"


@settings(derandomize=True, max_examples=200, deadline=None)
@given(parts=st.lists(st.text(" a", max_size=4)), start=st.integers(0, 3), stop=st.integers(0, 3))
def test_a_strip_of_the_whole_text_is_the_decoders_own(
    parts: list[str], start: int, stop: int
) -> None:
    text = "".join(parts)
    assume("a" in text)  # tokenizers panics on a text that is all stripped
    strip = FusedStrip(" ", start, stop)
    pushed = "".join(out for part in parts for out in strip.push(part))
    assert pushed == decoders.Strip(" ", start, stop).decode([text])
