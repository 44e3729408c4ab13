"""The n-gram index: what it expects at each position, against a scan of all that stands before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.ngram_index import NgramIndex
from drafter_service.ngram_table import MAX_CANDIDATES, NgramTable

WINDOW = 8


def naive(token_ids: Sequence[int], smallest: int, largest: int) -> list[int]:
    """What to expect at each position (-1 is nothing), by scanning all that stands before it."""
    guesses = []
    place = size = -1  # of the last guess
    for end in range(len(token_ids) + 1):
        before = token_ids[:end]
        if guesses and guesses[-1] == (before[-1:] or [None])[0] and size + 1 >= largest:
            place, size = place + 1, size + 1
        else:
            place, size = scan(before, smallest, largest)
        guesses.append(-1 if place < 0 else before[place])
    return guesses


def scan(before: Sequence[int], smallest: int, largest: int) -> tuple[int, int]:
    """Place and size of the longest match's most frequent, then latest, continuation."""
    for size in range(min(largest, len(before) - 1), smallest - 1, -1):
        suffix = before[len(before) - size :]
        places = [end for end in range(size, len(before)) if before[end - size : end] == suffix]
        counts = Counter(before[place] for place in places)
        if places:
            return max(places, key=lambda place: (counts[before[place]], place)), size
    return -1, -1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_index_expects_what_a_scan_expects(data: st.DataObject) -> None:
    """At every position, after any appends and rollbacks within the window."""
    smallest = data.draw(st.integers(1, 3))
    largest = smallest + data.draw(st.integers(0, 2))
    sizes = range(smallest, largest + 1)
    index = NgramIndex(sizes, may_come=lambda token_id, position: True, undo_depth=WINDOW)
    tokens: list[int] = []
    final = 0
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            length = data.draw(st.integers(max(final, len(tokens) - WINDOW), len(tokens)))
            final = length
            index.truncate(length)
            del tokens[length:]
        for token_id in data.draw(st.lists(st.integers(0, 3), max_size=6)):
            tokens.append(token_id)
            index.append(token_id)
        final = max(final, len(tokens) - WINDOW)
        found = [-1 if guess is None else guess.token_id for guess in index.guesses]
        assert found == naive(tokens, smallest, largest)
        assert all(guess is None or guess.size >= smallest for guess in index.guesses)


def test_a_context_keeps_its_most_frequent_continuations_and_the_latest() -> None:
    table = NgramTable()
    for place in range(40):
        table.note((1,), place % 2 * (place + 10) + place % 2, place)
    kept = table.get((1,))
    assert len(kept) == MAX_CANDIDATES
    assert kept[0].token_id == 0
    assert kept[0].times == 20
    assert {candidate.place for candidate in kept[1:]} == set(range(27, 40, 2))
