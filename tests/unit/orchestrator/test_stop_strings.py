"""Stop strings in chunks against a search in the whole text."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.stop_strings import MAX_STOP_LENGTH, MAX_STOPS, StopAutomaton, StopStrings
from paceline.errors import InvalidArgumentError

letters = st.text(alphabet="abé", max_size=24)
stop_lists = st.lists(st.text(alphabet="abé", min_size=1, max_size=5), min_size=1, max_size=4)


def whole_text(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, bool]:
    """Leftmost start, then shortest, by trying every place."""
    for start in range(len(text)):
        ends = [start + len(stop) for stop in stops if text.startswith(stop, start)]
        if ends:
            return text[: min(ends) if include else start], True
    return text, False


def in_chunks(
    chunks: Sequence[str], stops: Sequence[str], *, include: bool
) -> tuple[list[str], bool]:
    """What each chunk let through, then the flush, and whether the text was stopped."""
    matcher = StopStrings(StopAutomaton(stops), include=include)
    sent = []
    for chunk in chunks:
        emitted, stopped = matcher.push(chunk)
        sent.append(emitted)
        if stopped:
            return sent, True
    emitted, stopped = matcher.flush()
    return [*sent, emitted], stopped


@st.composite
def chunked(draw: st.DrawFn) -> list[str]:
    text = draw(letters)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(derandomize=True, max_examples=600, deadline=None)
@given(chunks=chunked(), stops=stop_lists, include=st.booleans())
def test_any_chunking_gives_what_a_search_in_the_whole_text_gives(
    chunks: list[str], stops: list[str], include: bool
) -> None:
    """B04: the leftmost match wins, nothing of it is sent, all else arrives."""
    sent, stopped = in_chunks(chunks, stops, include=include)
    expected = whole_text("".join(chunks), stops, include=include)
    assert ("".join(sent), stopped) == expected


@settings(derandomize=True, max_examples=300, deadline=None)
@given(text=letters, stops=stop_lists)
def test_only_a_suffix_that_may_begin_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    """B04: what cannot be part of a match is sent with its own character."""
    matcher = StopStrings(StopAutomaton(stops))
    sent = ""
    for end in range(1, len(text) + 1):
        emitted, stopped = matcher.push(text[end - 1])
        sent += emitted
        held = text[len(sent) : end]
        if stopped:
            return
        begins = any(stop.startswith(held) for stop in stops)
        inside = any(stop in held for stop in stops)
        assert held == "" or begins or inside


@pytest.mark.parametrize("size", range(1, 9))
def test_a_stop_over_chunk_borders_is_never_half_sent(size: int) -> None:
    """B04: `ok` newline `User:hi` with stop newline `User:` gives exactly `ok`."""
    text = "ok\nUser:hi"
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    sent, stopped = in_chunks(chunks, ["\nUser:"], include=False)
    assert ("".join(sent), stopped) == ("ok", True)


@pytest.mark.parametrize("size", range(1, 9))
def test_what_only_began_like_a_stop_arrives_in_the_end(size: int) -> None:
    """B04: newline `Usual` is all sent."""
    text = "ok\nUsual"
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    sent, stopped = in_chunks(chunks, ["\nUser:"], include=False)
    assert ("".join(sent), stopped) == (text, False)


def test_a_complete_match_waits_for_an_earlier_one_under_way() -> None:
    matcher = StopStrings(StopAutomaton(["bc", "abcde"]))
    assert matcher.push("xabc") == ("x", False)
    assert matcher.push("d") == ("", False)
    assert matcher.push("e") == ("", True)


def test_a_complete_match_wins_when_the_earlier_one_fails_or_the_text_ends() -> None:
    matcher = StopStrings(StopAutomaton(["bc", "abcde"]))
    assert matcher.push("xabc") == ("x", False)
    assert matcher.push("x") == ("a", True)
    matcher = StopStrings(StopAutomaton(["bc", "abcde"]), include=True)
    assert matcher.push("xabcd") == ("x", False)
    assert matcher.flush() == ("abc", True)


def test_nothing_follows_a_stop() -> None:
    matcher = StopStrings(StopAutomaton(["."]))
    assert matcher.push("one. two") == ("one", True)
    assert matcher.push("three") == ("", True)
    assert matcher.flush() == ("", True)


def test_of_stops_that_start_together_the_shortest_is_included() -> None:
    assert StopStrings(StopAutomaton(["ab", "abc"]), include=True).push("xabc") == ("xab", True)


@pytest.mark.parametrize(
    ("stops", "problem"),
    [
        (["a", ""], "stop: string 1 is empty"),
        (["a" * (MAX_STOP_LENGTH + 1)], "stop: string 0 has 1025 characters; at most 1024"),
        (["a"] * (MAX_STOPS + 1), "stop: 65 strings; at most 64"),
        (["a" * MAX_STOP_LENGTH] * 9, "stop: 9216 characters; at most 8192"),
    ],
)
def test_bad_stop_strings_are_refused_by_name(stops: list[str], problem: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        StopAutomaton(stops)
    assert str(caught.value) == problem


def test_memory_does_not_grow_with_the_text() -> None:
    matcher = StopStrings(StopAutomaton(["aab"]))
    matcher.push("a" * 100)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            matcher.push("a")
        grown = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert grown < 5_000
