"""What has followed each n-gram of a text: how often, and where last. O(1) a note and a look-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

MAX_CANDIDATES = 8
"""Continuations kept of one context; beyond them the least frequent, then oldest, is forgotten."""

Context: TypeAlias = tuple[int, ...]


class Candidate(NamedTuple):
    """A token that followed a context this many times, last at position `place` of the text."""

    token_id: int
    times: int
    place: int


Candidates: TypeAlias = tuple[Candidate, ...]
"""Best first: the most frequent, of equally frequent ones the latest."""


class Text(Protocol):
    """A text that is indexed, to be copied from."""

    def candidates(self, context: Context) -> Candidates:
        """What has followed a context."""
        ...

    def token_at(self, place: int) -> int | None:
        """The token at a candidate's place or behind it; None where the text has ended."""
        ...


class NgramTable:
    """Candidates by context. A context's candidates are a value: putting an earlier one back
    undoes what was noted since."""

    def __init__(self) -> None:
        self._after: dict[Context, Candidates] = {}

    def __len__(self) -> int:
        return len(self._after)

    def get(self, context: Context) -> Candidates:
        """What has followed a context, best first."""
        return self._after.get(context, ())

    def note(self, context: Context, token_id: int, place: int) -> Candidates:
        """Count `token_id`, at `place`, as following; returns the candidates as they were."""
        before = self._after.get(context, ())
        times = 1 + sum(known.times for known in before if known.token_id == token_id)
        others = [known for known in before if known.token_id != token_id]
        self.put(context, [*others[: MAX_CANDIDATES - 1], Candidate(token_id, times, place)])
        return before

    def forget(self, context: Context, token_id: int, place: int) -> None:
        """Take back one note, the oldest of its context."""
        left = []
        for known in self._after.get(context, ()):
            if known.token_id != token_id:
                left.append(known)
            elif known.place != place:  # noted again since
                left.append(known._replace(times=max(1, known.times - 1)))
        self.put(context, left)

    def put(self, context: Context, candidates: Sequence[Candidate]) -> None:
        """Set the candidates of a context; none forgets it."""
        if candidates:
            self._after[context] = tuple(sorted(candidates, key=_rank))
        else:
            self._after.pop(context, None)


def contexts(token_ids: Sequence[int], end: int, sizes: range) -> Iterator[Context]:
    """The n-grams of these sizes that end before position `end`, in the order of `sizes`."""
    return (tuple(token_ids[end - size : end]) for size in sizes if size <= end)


def _rank(candidate: Candidate) -> tuple[int, int]:
    return -candidate.times, -candidate.place
