"""Further tokens of a block, drawn one after the other within one step of the engine.

What the engine asks and notes of every session at a step is then done once a block instead of once
a token, and the device waits less between two passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from drafter_service.drafter import Proposal, ProposeRequest
from paceline.errors import PacelineError
from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk
from paceline.sampling.draw import DraftRow, Draw


@dataclass(slots=True)
class DraftRun:
    """One session's part of a run: what it asked for, and what was drawn for it so far.

    `table` holds the sequence of the request and every draw but the last.
    """

    request: ProposeRequest
    table: PageTable
    proposal: Proposal
    draws: list[Draw] = field(init=False)
    confidences: list[float] = field(init=False)
    ends_block: bool = field(init=False)
    confidence: float = field(init=False)
    """That all drafts that are not final are right."""

    def __post_init__(self) -> None:
        self.draws = list(self.proposal.draws)
        self.confidences = list(self.proposal.confidences)
        self.ends_block = self.proposal.ends_block
        self.confidence = self.request.confidence
        for each in self.confidences:
            self.confidence *= each

    @property
    def has_room(self) -> bool:
        return len(self.draws) < self.request.limit and not self.ends_block

    def chunk(self) -> Chunk:
        """The last draw, of which the row after it is asked for."""
        return Chunk(self.table, (self.draws[-1].token_id,), num_logits=1)

    def row(self) -> DraftRow:
        """Where the next draw is made."""
        request = self.request
        context = request.context(tuple([draw.token_id for draw in self.draws]))
        return DraftRow(context, request.epoch, request.opening.draft_top_k, request.num_others)

    def take(self, draw: Draw | PacelineError, sure: float | None, *, least: float) -> bool:
        """The next draw, and how likely it was to be right, where that was asked for; False for
        what is no draw, which the next step meets again.

        The block ends where that is below `least`, or for all of its drafts together below what the
        request asks for.
        """
        if isinstance(draw, PacelineError):
            return False
        self.draws.append(draw)
        if sure is not None and self.confidences:
            self.confidences.append(sure)
            self.confidence *= sure
            self.ends_block = sure < least or self.confidence < self.request.min_confidence
        return True

    def proposed(self) -> Proposal:
        """All of it."""
        return replace(
            self.proposal,
            draws=self.draws,
            num_steps=len(self.draws),
            confidences=self.confidences,
            ends_block=self.ends_block,
        )
