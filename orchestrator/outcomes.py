"""Blocks drafted ahead for other outcomes, on their way to the verifier: which of them holds."""

from __future__ import annotations

from typing import Generic, TypeVar

from orchestrator.estimates import Experience
from paceline.types import DraftBlock

T = TypeVar("T")

MAX_AHEAD = 1024
"""Several windows of the largest size."""


LEAST_DRAFT_S = 0.001
"""The rows of all branches take the host 0.3 ms and more of a drafting step: with drafts of 0.5 ms
and passes of 3 they came too late and slowed the others down (0.75 to 0.8 of the best setting)."""


def worthwhile(experience: Experience, most: int) -> int:
    """Drafts to make behind each other outcome: as many as a pass leaves the time for, at most
    `most`; where nobody knows the workers, those."""
    draft_s = experience.draft_s.value
    if draft_s is None or not experience.cost.is_known:
        return most
    if draft_s < LEAST_DRAFT_S:
        return 0
    return min(most, int(experience.cost.curve().seconds(1) / draft_s))


class Outcomes(Generic[T]):
    """What somebody notes of such blocks, until it is known whether they hold."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[int, int, int], T] = {}
        self._begun: tuple[int, int, int] | None = None

    def add(self, block: DraftBlock, note: T) -> T | None:
        """A block went on to the verifier; its note if what it was drafted for has come by now."""
        assert block.outcome is not None
        key = block.epoch, block.base, block.outcome
        if key == self._begun:
            return note
        self._ahead[key] = note
        if len(self._ahead) > MAX_AHEAD:  # no correct drafter has so many
            del self._ahead[next(iter(self._ahead))]
        return None

    def epoch_begins(self, epoch: int, base: int, token_id: int) -> T | None:
        """An epoch begins with this token before `base`; the note of the block for it."""
        self._begun = epoch, base, token_id
        note = self._ahead.get(self._begun)
        self._ahead.clear()
        return note

    def committed(self, length: int) -> None:
        """So many tokens are final: what began within them can hold no more."""
        for key in [key for key in self._ahead if key[1] <= length]:
            del self._ahead[key]

    def clear(self) -> None:
        """None of them can hold any more."""
        self._ahead.clear()
        self._begun = None
