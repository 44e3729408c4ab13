"""What one session's messages tell the window controller, and the plan that comes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.estimates import Least, PassCost
from orchestrator.window_controller import WindowController, WindowPlan
from paceline.types import DraftBlock, Origin, Verdict


class _Relayed(NamedTuple):
    """A block on its way to the verifier."""

    base: int
    token_ids: Sequence[int]
    relayed_at: float
    is_tree: bool

    @property
    def end(self) -> int:
        return self.base + len(self.token_ids)


class Pacing:
    """Measures one session as it goes; times in seconds of one clock."""

    def __init__(self, controller: WindowController, cost: PassCost) -> None:
        self._controller = controller
        self._cost = cost
        self._to_drafter_s = Least()
        self._to_verifier_s = Least()
        self._advanced: tuple[int, float] | None = None  # committed length last told, and when
        self._relayed: deque[_Relayed] = deque()  # not judged yet

    @property
    def plan(self) -> WindowPlan:
        """The present plan."""
        return self._controller.plan

    def advanced(self, committed: int, now: float) -> None:
        """The drafter was told of a committed length."""
        self._advanced = (committed, now)

    def drafted(self, block: DraftBlock, committed: Sequence[int], now: float) -> None:
        """A block came from the drafter and goes on to the verifier.

        `committed` are the tokens already committed at the block's positions.
        """
        tree = block.tree
        if tree is not None:
            agreed = len(tree.walk(block.token_ids, committed))
        else:
            agreed = next(
                (i for i, token in enumerate(committed) if token != block.token_ids[i]),
                len(committed),
            )
        self._controller.saw_overtaken(compared=len(committed), agreed=agreed)
        num_tokens = len(block.token_ids)
        draft_s = block.draft_us / 1e6
        self._controller.saw_block(num_tokens=num_tokens, draft_s=draft_s)
        if num_tokens and self._advanced is not None and self._advanced[0] == block.base:
            self._to_drafter_s.update(now - self._advanced[1] - draft_s)
        is_overtaken = tree is not None and len(committed) > tree.trunk
        if agreed == len(committed) and not is_overtaken:  # else the verifier drops it
            self._relayed.append(_Relayed(block.base, block.token_ids, now, tree is not None))

    def judged(self, verdict: Verdict, live_sessions: int, now: float) -> WindowPlan:
        """A verdict came; returns the plan to go on with.

        `live_sessions` share the verifier, though not every pass has all of them.
        """
        timings = verdict.timings
        pass_s = (timings.forward_us + timings.judge_us) / 1e6
        self._cost.update(timings.rows, pass_s, sessions=timings.sessions)
        end = verdict.base + verdict.num_judged
        branches = any(block.is_tree and block.base < end for block in self._relayed)
        while self._relayed and self._relayed[0].end <= end:
            block = self._relayed.popleft()
            if block.end == end and verdict.num_judged:
                waited_s = timings.queue_us / 1e6
                self._to_verifier_s.update(now - block.relayed_at - waited_s - pass_s)
        if branches or verdict.accepted_length < verdict.num_judged:
            self._relayed.clear()
        elif verdict.next_origin is not None:
            self._compare(end, verdict.token_ids[-1])
        hops = (self._to_drafter_s.value, self._to_verifier_s.value)
        if hops[0] is not None and hops[1] is not None:
            self._controller.saw_round_trip(hops[0] + hops[1])
        self._controller.saw_verdict(
            judged=_num_tried(verdict) if branches else verdict.num_judged,
            accepted=verdict.accepted_length,
            committed=len(verdict.token_ids),
            sessions=max(live_sessions, timings.sessions),
        )
        return self._controller.plan

    def _compare(self, position: int, token_id: int) -> None:
        """The verifier went on alone at a position; was the draft for it right?"""
        if self._relayed and self._relayed[0].base <= position < self._relayed[0].end:
            block = self._relayed[0]
            agreed = block.token_ids[position - block.base] == token_id
            self._controller.saw_overtaken(compared=1, agreed=int(agreed))
            if not agreed:
                self._relayed.clear()


def _num_tried(verdict: Verdict) -> int:
    """Depths of a tree at which the target was offered drafts: those of the accepted path, and
    one more if a token was recovered there."""
    return verdict.accepted_length + (verdict.next_origin is Origin.RECOVERED)
