"""How far to speculate with a drafter that copies and has a model besides (`cascade`).

Copying costs the drafter nothing and is right often where a text repeats itself; drawing takes the
model's time and is right more evenly. Judged together, each would spoil the other's figures, so
each has a window controller of its own, and both plans hold at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from orchestrator.window_controller import WindowController
from orchestrator.window_plan import MAX_BLOCK, WindowPlan


class _Tried(NamedTuple):
    """Drafts of one source that were looked at, and those that were right."""

    judged: int
    accepted: int


class CascadeController:
    """Two window controllers, each told of its own drafts."""

    def __init__(self, *, drawing: WindowController, copying: WindowController) -> None:
        self._drawing = drawing
        self._copying = copying

    @property
    def plan(self) -> WindowPlan:
        """Both plans: the verifier waits as long as the model's drafts need, if they pay."""
        copying, drawing = self._copying.plan, self._drawing.plan
        if not copying.window and not drawing.window:
            return drawing
        if drawing.is_about_to_open and copying.patience_s == 0.0:
            wait_s = drawing.patience_s  # else the verifier has begun no pass, but waits for copies
            return replace(copying, draw_window=0, patience_s=wait_s, is_about_to_open=True)
        if not drawing.window:
            return replace(copying, draw_window=0)
        block = drawing.num_speculative_tokens
        if copying.window:  # after all that the model draws there is room for a look-up
            block = min(max(block + 1, copying.num_speculative_tokens), MAX_BLOCK)
        return WindowPlan(
            block,
            max(copying.window, drawing.window),
            drawing.patience_s,
            drawing.ahead,
            _judged_of_both(block, copying, drawing),
            draw_window=drawing.window,
            num_drawn_tokens=drawing.num_speculative_tokens,
            min_confidence=drawing.min_confidence,
            # copies that do not pay by themselves come in place of drafts
            min_copy_confidence=(copying if copying.window else drawing).min_copy_confidence,
        )

    def saw_offer(self, *, num_tokens: int, num_copied: int) -> None:
        """The drafter has answered with so many tokens, of which so many were copied."""
        self._copying.saw_offer(num_tokens=num_copied)
        if num_tokens > num_copied:
            self._drawing.saw_offer(num_tokens=num_tokens - num_copied)
        elif num_copied:
            self._drawing.heard()  # it was not asked

    def saw_block(self, *, num_tokens: int, draft_s: float, is_unsure: bool = False) -> None:
        """A block has come, with so many drawn tokens, which took so long."""
        self._drawing.saw_block(num_tokens=num_tokens, draft_s=draft_s, is_unsure=is_unsure)

    def saw_round_trip(self, seconds: float) -> None:
        """Time on the wire and in queues to both workers and back."""
        self._drawing.saw_round_trip(seconds)
        self._copying.saw_round_trip(seconds)

    def saw_rejection(self, *, finds_drafts: bool, late: bool) -> None:
        """A draft was rejected; whether drafts behind the token that came were there already, or
        came later."""
        self._drawing.saw_rejection(finds_drafts=finds_drafts, late=late)

    def saw_overtaken(self, *, compared: int, agreed: int, copied: Collection[int]) -> None:
        """Drafts came after the verifier had gone on alone; of those compared `copied` were."""
        copies, drawn = _by_source(compared, agreed, copied)
        self._copying.saw_overtaken(compared=copies.judged, agreed=copies.accepted)
        self._drawing.saw_overtaken(compared=drawn.judged, agreed=drawn.accepted)

    def saw_verdict(
        self, *, judged: int, accepted: int, committed: int, sessions: int, copied: Collection[int]
    ) -> None:
        """A verdict has come; of the drafts that it judged `copied` were copied."""
        copies, drawn = _by_source(judged, accepted, copied)
        for controller, tried in ((self._copying, copies), (self._drawing, drawn)):
            controller.saw_verdict(
                judged=tried.judged,
                accepted=tried.accepted,
                committed=committed,
                sessions=sessions,
                is_plain=not judged,
            )


def _judged_of_both(block: int, *plans: WindowPlan) -> int | None:
    """The most that one pass judges, of blocks of both sources."""
    most = [plan.max_judged for plan in plans if plan.window]
    return max(block, *(each or 0 for each in most)) if None not in most else None


def _by_source(judged: int, right: int, copied: Collection[int]) -> tuple[_Tried, _Tried]:
    """What was copied, and what was drawn; drafts behind the first wrong one were not tried."""
    tried = min(right + 1, judged)
    copies = _Tried(sum(i < tried for i in copied), sum(i < right for i in copied))
    return copies, _Tried(tried - copies.judged, right - copies.accepted)
