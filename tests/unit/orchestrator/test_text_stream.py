"""Pieces against the whole text: which tokens are delivered, with which text, and when."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import EOS_ID, build_byte_tokenizer
from support.text_tokenizers import FAMILIES

from orchestrator.detokenizer import Detokenizer
from orchestrator.stop_strings import StopAutomaton, StopStrings
from orchestrator.text_stream import Piece, TextStream
from paceline.runtime.tokenizer import Tokenizer

families = pytest.mark.parametrize("family", FAMILIES)


@functools.cache
def tokenizer_of(family: str) -> Tokenizer:
    return Tokenizer(FAMILIES[family]())


def stream_of(
    tokenizer: Tokenizer,
    stops: Sequence[str] = (),
    *,
    include: bool = False,
    min_tokens: int = 0,
) -> TextStream:
    matcher = StopStrings(StopAutomaton(stops), include=include) if stops else None
    return TextStream(Detokenizer(tokenizer), matcher, min_tokens=min_tokens)


def run(stream: TextStream, token_ids: Sequence[int]) -> list[Piece]:
    pieces = [piece for token_id in token_ids for piece in stream.push(token_id)]
    return [*pieces, *stream.finish()]


def joined(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    matches = [
        (start, start + len(stop))
        for start in range(len(text))
        for stop in stops
        if text.startswith(stop, start)
    ]
    return min(matches, default=None)


@families
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_without_stops_every_token_is_delivered_once_in_order(
    family: str, data: st.DataObject
) -> None:
    """C04: ids as pushed, joined text as decoded at once; at most the last token waits."""
    tokenizer = tokenizer_of(family)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    stream = stream_of(tokenizer)
    pieces = []
    for token_id in ids:
        pieces += stream.push(token_id)
        assert stream.num_held <= 1
    pieces += stream.finish()
    assert [piece.token_id for piece in pieces] == ids
    assert joined(pieces) == tokenizer.decode(ids)
    assert stream.num_held == 0
    assert not stream.stopped


@families
@settings(derandomize=True, max_examples=80, deadline=None)
@given(data=st.data(), include=st.booleans())
def test_with_stops_the_text_ends_where_the_first_one_does(
    family: str, data: st.DataObject, include: bool
) -> None:
    """B04: ids are a prefix, the text is the whole one cut at its leftmost stop."""
    tokenizer = tokenizer_of(family)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    text = tokenizer.decode(ids)
    parts = st.integers(0, max(len(text) - 1, 0)).flatmap(
        lambda start: st.integers(1, 4).map(lambda size: text[start : start + size])
    )
    stops = data.draw(st.lists(st.one_of(parts, st.text("the a�", min_size=1)), max_size=3))
    stops = [stop for stop in stops if stop]
    stream = stream_of(tokenizer, stops, include=include)
    pieces = run(stream, ids)
    match = first_stop(text, stops)
    end = len(text) if match is None else match[1] if include else match[0]
    assert joined(pieces) == text[:end]
    assert stream.stopped == (match is not None)
    delivered = [piece.token_id for piece in pieces]
    assert delivered == ids[: len(delivered)]
    if match is None:
        assert delivered == ids


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    text=st.text("ab", max_size=16),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_tokens_inside_the_stop_are_not_delivered(text: str, stops: list[str]) -> None:
    """B04: with a token a character exactly those before the match arrive, each with its own."""
    tokenizer = tokenizer_of("byte")
    pieces = run(stream_of(tokenizer, stops), list(text.encode()))
    match = first_stop(text, stops)
    kept = text if match is None else text[: match[0]]
    assert pieces == [Piece(ord(char), char) for char in kept]


def test_a_token_that_begins_before_the_stop_keeps_its_text_up_to_there() -> None:
    tokenizer = Tokenizer(FAMILIES["llama_style"]())
    the = tokenizer.vocabulary().tokens.index("▁the".encode())
    pieces = run(stream_of(tokenizer, ["e t"]), [the, the, the])
    assert pieces == [Piece(the, "th")]
    pieces = run(stream_of(tokenizer, ["e t"], include=True), [the, the, the])
    assert pieces == [Piece(the, "the"), Piece(the, " t")]


def test_a_stop_in_a_character_of_several_tokens_drops_them_all() -> None:
    tokenizer = tokenizer_of("byte")
    ids = list("a😀b".encode())
    stream = stream_of(tokenizer, ["😀"])
    assert [stream.push(token_id) for token_id in ids] == [[Piece(97, "a")], [], [], [], [], []]
    assert stream.stopped
    assert stream.finish() == []


def test_tokens_come_at_once_when_nothing_can_change_them() -> None:
    """An unfinished character's last token waits, to carry what the flush may add."""
    tokenizer = tokenizer_of("byte")
    stream = stream_of(tokenizer)
    first, second, *_ = "😀".encode()
    assert stream.push(97) == [Piece(97, "a")]
    assert stream.push(first) == []
    assert stream.push(second) == [Piece(first, "")]
    assert stream.finish() == [Piece(second, "\ufffd")]


def test_a_held_back_token_comes_when_its_text_cannot_begin_a_stop() -> None:
    """B04: a token a push while nothing is held, and the held ones together with the next."""
    stream = stream_of(tokenizer_of("byte"), ["\nUser:"])
    delivered = [
        "".join(piece.text for piece in stream.push(token_id)) for token_id in b"ok\nUsual"
    ]
    assert delivered == ["o", "k", "", "", "", "\nUsu", "a", "l"]
    assert stream.num_held == 0


def test_an_end_token_without_text_is_delivered_at_once() -> None:
    stream = stream_of(tokenizer_of("byte"), ["stop"])
    assert stream.push(97) == [Piece(97, "a")]
    assert stream.push(EOS_ID) == [Piece(EOS_ID, "")]


def test_a_match_that_waited_for_a_longer_one_stops_the_text_at_its_end() -> None:
    stream = stream_of(Tokenizer(build_byte_tokenizer()), ["bc", "abcde"])
    assert run(stream, list(b"xabcd")) == [Piece(ord("x"), "x"), Piece(ord("a"), "a")]
    assert stream.stopped


def test_after_a_stop_pushes_are_ignored() -> None:
    stream = stream_of(tokenizer_of("byte"), ["b"])
    run(stream, list(b"ab"))
    assert stream.push(97) == []
    assert stream.num_held == 0


@families
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_no_stop_string_takes_any_of_the_first_tokens(family: str, data: st.DataObject) -> None:
    """`min_tokens`: what they say is no match, and begins none."""
    tokenizer = tokenizer_of(family)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    whole = tokenizer.decode(ids)
    letters = st.sampled_from(whole) if whole else st.just("x")
    stops = data.draw(st.lists(st.text(letters, min_size=1, max_size=2), min_size=1, max_size=3))
    min_tokens = data.draw(st.integers(0, 32))
    stream = stream_of(tokenizer, stops, min_tokens=min_tokens)
    pieces = run(stream, ids)
    assert [piece.token_id for piece in pieces] == ids[: len(pieces)]
    assert len(pieces) >= min(min_tokens, len(ids))
    if not stream.stopped:
        assert joined(pieces) == whole
    if len(pieces) < len(ids):
        assert stream.stopped
    shown = [piece.text for piece in run(stream_of(tokenizer), ids)]
    behind = "".join(shown[min_tokens:])  # a character that began before may be in it
    if not first_stop(behind, stops):
        assert not stream.stopped


@pytest.mark.parametrize(
    ("min_tokens", "expected"), [(0, "a"), (1, "a"), (2, "abc"), (3, "abc"), (4, "abcbcd")]
)
def test_stop_strings_are_looked_for_behind_the_first_tokens(
    min_tokens: int, expected: str
) -> None:
    tokenizer = Tokenizer(build_byte_tokenizer())
    stream = stream_of(tokenizer, ["bc"], min_tokens=min_tokens)
    assert joined(run(stream, tokenizer.encode("abcbcd"))) == expected
