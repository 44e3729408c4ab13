"""Whether a drafter's confidence tells which of its drafts are right: it may mean anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.estimates import AcceptanceEstimate
from orchestrator.window_plan import WindowPlan

PRIOR_RIGHT_TO_END = 0.2
"""Of blocks that ended early, how many are held to be accepted whole before any was seen."""
PRIOR_BLOCKS = 4.0


@dataclass(slots=True)
class ConfidenceTrust:
    """Compares blocks that ended by confidence with the length that is best without regard to it.

    A longer block is worth it if more than the usual length of it is accepted often enough, a
    shorter one if it is seldom accepted whole: else it should have gone on.
    """

    _longer: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    _shorter: AcceptanceEstimate = field(
        default_factory=lambda: AcceptanceEstimate(PRIOR_RIGHT_TO_END * PRIOR_BLOCKS, PRIOR_BLOCKS)
    )
    _limit: float = 1.0

    def saw(self, plan: WindowPlan, *, drafted: int, accepted: int) -> None:
        """A block of this plan was judged."""
        if plan.usual_block is None or not drafted:
            return
        self._limit = plan.min_confidence
        if drafted > plan.usual_block:
            self._longer.update(judged=1, accepted=int(accepted > plan.usual_block))
        elif drafted < plan.usual_block:
            self._shorter.update(judged=1, accepted=int(accepted >= drafted))

    def holds(self, lost: float) -> bool:
        """`lost` is what a draft costs that is wrong, in tokens."""
        least_whole = self._shorter.value - self._shorter.standard_error  # all may be chance
        return self._longer.value > lost and least_whole < self._limit
