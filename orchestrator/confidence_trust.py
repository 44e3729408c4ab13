"""Whether a drafter's confidence tells which of its drafts are right: it may mean anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.estimates import AcceptanceEstimate
from orchestrator.window_plan import WindowPlan

PRIOR_RIGHT_TO_END = 0.2
"""Of blocks that ended early, how many are held to be accepted whole before any was seen."""
PRIOR_BLOCKS = 4.0
BLOCKS_BEFORE_RETRY = 100


class DrawnBlock(NamedTuple):
    """What a model drew for a block."""

    num_tokens: int = 0
    is_unsure: bool = False
    """It ended because the model was, and none of it was copied."""


def _right_to_end() -> AcceptanceEstimate:
    return AcceptanceEstimate(PRIOR_RIGHT_TO_END * PRIOR_BLOCKS, PRIOR_BLOCKS)


@dataclass(slots=True)
class ConfidenceTrust:
    """Compares blocks that ended by confidence with the length that is best without regard to it.

    A longer block is worth it if more than the usual length of it is accepted often enough, a
    shorter one if it is seldom accepted whole: else it should have gone on.
    """

    _longer: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    _shorter: AcceptanceEstimate = field(default_factory=_right_to_end)
    _limit: float = 1.0

    _num_without: int = 0

    def saw(self, plan: WindowPlan, block: DrawnBlock, *, judged: int, accepted: int) -> None:
        """A pass judged the block of this plan, or a part of it."""
        if plan.usual_block is None:
            self._forget()
            return
        self._limit = plan.min_confidence
        is_wrong = accepted < judged
        is_settled = is_wrong or accepted >= block.num_tokens
        if block.num_tokens > plan.usual_block:
            self._longer.update(judged=1, accepted=int(accepted > plan.usual_block))
        elif block.is_unsure and block.num_tokens < plan.usual_block and is_settled:
            self._shorter.update(judged=1, accepted=int(not is_wrong))

    def _forget(self) -> None:
        """What is not believed is tried again after a while."""
        self._num_without += 1
        if self._num_without >= BLOCKS_BEFORE_RETRY:
            self._longer, self._shorter = AcceptanceEstimate(), _right_to_end()
            self._num_without, self._limit = 0, 1.0

    def holds(self, lost: float) -> bool:
        """`lost` is what a draft costs that is wrong, in tokens."""
        least_whole = self._shorter.value - self._shorter.standard_error  # all may be chance
        return self._longer.value > lost and least_whole < self._limit
