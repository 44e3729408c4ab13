"""Draws from the rows of a model's pass: a token for each session, and how likely it was right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from drafter_service.confidence import confidences
from drafter_service.draft_run import DraftRun
from drafter_service.drafter import Proposal, ProposeRequest
from paceline.errors import InvalidArgumentError, PacelineError
from paceline.runtime.engine_thread import SessionKey
from paceline.runtime.grammar import GrammarMatcher
from paceline.sampling.columns import Columns
from paceline.sampling.draw import DraftRow, Draw, draw_drafts
from paceline.sampling.penalties import NEGATIVE_INFINITY


class Drawing:
    """How one model's rows are drawn from.

    `columns` are those of its logits, where they are not all ids of the vocabulary. Below
    `min_confidence` a block ends.
    """

    def __init__(self, columns: Columns | None, min_confidence: float) -> None:
        self._columns = columns
        self._min_confidence = min_confidence

    @property
    def ends_blocks(self) -> bool:
        """Whether any block may end where the model is unsure."""
        return self._min_confidence > 0.0

    def propose(
        self,
        logits: Tensor,  # [R, columns]
        requests: Sequence[ProposeRequest],
        matchers: Mapping[SessionKey, GrammarMatcher],
    ) -> list[Proposal]:
        """A token for each request, from its row."""
        own = [matchers.get(request.key) for request in requests]
        masks = [None if matcher is None else matcher.mask() for matcher in own]
        rows = [
            DraftRow(
                request.context(mask=mask),
                request.epoch,
                request.opening.draft_top_k,
                request.num_others,
            )
            for request, mask in zip(requests, masks, strict=True)
        ]
        proposals = [
            self._failed(draw) if isinstance(draw, PacelineError) else Proposal([draw])
            for draw in self._draw(logits, requests, rows)
        ]
        if any(map(self.asks_confidence, requests)):
            proposals = [
                self._with_confidence(*each)
                for each in zip(requests, proposals, confidences(logits), strict=True)
            ]
        return [
            Proposal() if mask is not None and not mask.any() else proposal
            for mask, proposal in zip(masks, proposals, strict=True)
        ]

    def extend(self, logits: Tensor, runs: Sequence[DraftRun]) -> bool:
        """One more token for each run, from its row; False if one of them got none, which the step
        after it will meet again."""
        requests = [run.request for run in runs]
        draws = self._draw(logits, requests, [run.row() for run in runs])
        sure: Sequence[float | None] = [None] * len(runs)
        if any(map(self.asks_confidence, requests)):
            sure = confidences(logits)
        taken = [
            run.take(draw, found, least=self._min_confidence)
            for run, draw, found in zip(runs, draws, sure, strict=True)
        ]
        return all(taken)

    def asks_confidence(self, request: ProposeRequest) -> bool:
        """Whether it matters how sure the model is."""
        return self._min_confidence > 0.0 or request.has_limits

    def whole_rows(self, logits: Tensor, requests: Sequence[ProposeRequest]) -> Tensor:
        """The rows over the ids of the vocabulary that all requests know."""
        width = min(request.opening.vocab_size for request in requests)
        if self._columns is not None:
            logits = self._columns.widen(logits, fill=NEGATIVE_INFINITY)
        return logits[:, :width]

    def _draw(
        self, logits: Tensor, requests: Sequence[ProposeRequest], rows: Sequence[DraftRow]
    ) -> list[Draw | PacelineError]:
        # ids that the target lacks must never be drawn
        width = min(request.opening.vocab_size for request in requests)
        columns = None if self._columns is None else self._columns.below(width)
        return draw_drafts(logits[:, : width if columns is None else len(columns)], rows, columns)

    def _with_confidence(
        self, request: ProposeRequest, proposal: Proposal, found: float
    ) -> Proposal:
        if not proposal.draws or not self.asks_confidence(request):
            return proposal
        is_unsure = request.confidence * found < request.min_confidence
        ends_block = is_unsure or found < self._min_confidence
        return replace(proposal, confidences=(found,), ends_block=ends_block)

    def _failed(self, error: PacelineError) -> Proposal:
        if isinstance(error, InvalidArgumentError):
            # nothing may follow drafts that are wrong, or it knows none of the ids that may
            return Proposal()
        return Proposal(error=error)
