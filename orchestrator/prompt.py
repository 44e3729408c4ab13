"""A request's prompt as ids, checked: pure functions that the servicer runs off the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from paceline.errors import InvalidArgumentError

CHARACTERS_PER_TOKEN = 32
"""A text longer than this many characters a token of context is refused before it is encoded."""
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LENGTH = 256
MAX_ROLE_LENGTH = 64
"""Characters of one bad word."""


class Encodes(Protocol):
    """What is asked of a tokenizer; see `paceline.runtime.tokenizer.Tokenizer`."""

    def encode(self, text: str) -> list[int]: ...

    def encode_plain(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...


def encode_request(
    tokenizer: Encodes,
    *,
    prompt: str,
    messages: Sequence[Mapping[str, str]],
    token_ids: Sequence[int],
    vocab_size: int,
    context_length: int,
) -> tuple[int, ...]:
    """The prompt's ids: at least one, each in [0, vocab_size), fewer than `context_length`.

    An empty `prompt`, `messages` or `token_ids` is one that was not given. `messages` have `role`
    and `content`. Raises `InvalidArgumentError` naming the field, with the numbers.
    """
    given = {"prompt": prompt, "messages": messages, "token_ids": token_ids}
    fields = [name for name, value in given.items() if value]
    if len(fields) != 1:
        found = " and ".join(fields) or "none, or an empty one,"
        problem = f"exactly one of prompt, messages and token_ids must be given; {found} was"
        raise InvalidArgumentError(fields[0] if fields else "prompt", problem)
    field = fields[0]
    if field == "token_ids":
        _check_room(field, len(token_ids), context_length)  # a copy of millions stops all streams
        ids = tuple(token_ids)
    elif field == "messages":
        _check_messages(messages, CHARACTERS_PER_TOKEN * context_length)
        ids = tuple(tokenizer.encode_chat(messages))
    else:
        _check_size("prompt", len(prompt), CHARACTERS_PER_TOKEN * context_length)
        ids = tuple(tokenizer.encode(prompt))
    _check_ids(field, ids, vocab_size=vocab_size, context_length=context_length)
    return ids


def encode_bad_words(tokenizer: Encodes, bad_words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The id sequences of each bad word: as it is, after a space, and inside a text.

    As with `bad_words_ids` of transformers, what is banned is these sequences; the same string
    spelt by other tokens is not. Raises `InvalidArgumentError` naming `bad_words`.
    """
    if len(bad_words) > MAX_BAD_WORDS:
        raise InvalidArgumentError("bad_words", f"{len(bad_words)} words; at most {MAX_BAD_WORDS}")
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(bad_words):
        if not word.strip():
            raise InvalidArgumentError("bad_words", f"word {index} is empty")
        if len(word) > MAX_BAD_WORD_LENGTH:
            problem = f"word {index} has {len(word)} characters; at most {MAX_BAD_WORD_LENGTH}"
            raise InvalidArgumentError("bad_words", problem)
        sequences.update(dict.fromkeys(_spellings(tokenizer, word)))
    return tuple(sequences)


def _spellings(tokenizer: Encodes, word: str) -> Iterator[tuple[int, ...]]:
    yield tuple(tokenizer.encode_plain(word))
    yield tuple(tokenizer.encode_plain(f" {word.lstrip()}"))
    # SentencePiece writes a space before a text; after a line break the word stands without it.
    before = tokenizer.encode_plain("\n")
    after = tokenizer.encode_plain(f"\n{word}")
    if after[: len(before)] == before and len(after) > len(before):
        yield tuple(after[len(before) :])


def _check_messages(messages: Sequence[Mapping[str, str]], limit: int) -> None:
    for index, message in enumerate(messages):
        role = message.get("role", "")
        if not role:
            raise InvalidArgumentError("messages", f"message {index} has no role")
        if len(role) > MAX_ROLE_LENGTH:
            problem = f"the role of message {index} has {len(role)} characters"
            raise InvalidArgumentError("messages", f"{problem}; at most {MAX_ROLE_LENGTH}")
    _check_size("messages", sum(len(message.get("content", "")) for message in messages), limit)


def _check_size(field: str, length: int, limit: int) -> None:
    if length > limit:
        raise InvalidArgumentError(field, f"{length} characters; at most {limit}")


def _check_ids(
    field: str, token_ids: Sequence[int], *, vocab_size: int, context_length: int
) -> None:
    if not token_ids:
        raise InvalidArgumentError(field, "it gives no token")
    _check_room(field, len(token_ids), context_length)
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            problem = f"id {token_id} at position {position} is outside [0, {vocab_size})"
            raise InvalidArgumentError(field, problem)


def _check_room(field: str, length: int, context_length: int) -> None:
    if length >= context_length:
        problem = (
            f"{length} tokens leave no room to generate: the context length is {context_length}"
        )
        raise InvalidArgumentError(field, problem)
