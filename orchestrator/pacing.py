"""What one session's messages tell the window controller, and the plan that comes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from orchestrator.cascade_controller import CascadeController
from orchestrator.estimates import Experience, LowerQuartile, PassCost
from orchestrator.outcomes import Outcomes
from orchestrator.relay_settings import RelaySettings
from orchestrator.window_controller import WindowController
from orchestrator.window_plan import WindowPlan
from paceline.types import DraftBlock, DrafterState, Origin, Verdict, WorkerInfo


class _Told(NamedTuple):
    """What the drafter heard last of the committed length."""

    committed: int
    at: float
    to_resting: bool
    """It was not drafting."""


class _Relayed(NamedTuple):
    """A block on its way to the verifier."""

    epoch: int
    base: int
    token_ids: Sequence[int]
    relayed_at: float | None
    """None if it was there before it could be judged."""
    is_tree: bool
    copied: Sequence[int]

    @property
    def end(self) -> int:
        return self.base + len(self.token_ids)

    def copied_in(self, start: int, end: int) -> list[int]:
        """Positions, counted from `start`, of what was copied between two positions."""
        positions = (self.base + index for index in self.copied)
        return [position - start for position in positions if start <= position < end]


class _Rejection(Enum):
    """Whether the token that came in place of a draft found drafts made for it."""

    UNMET = auto()
    MET_LATE = auto()
    MET = auto()


class Pacing:
    """Measures one session as it goes; times in seconds of one clock."""

    def __init__(
        self,
        controller: WindowController | CascadeController,
        cost: PassCost,
        *,
        in_turns: bool = False,
    ) -> None:
        self.in_turns = in_turns
        """Whether both workers compute on one device."""
        self._controller = controller
        self._cost = cost
        self._to_drafter_s = LowerQuartile()
        self._to_verifier_s = LowerQuartile()
        self._told: _Told | None = None
        self._last_epoch: int | None = None
        self._is_resting = False  # the drafter, as far as its last block says
        self._kv_length = 0  # what it had read by then
        self._void_epoch: int | None = None  # whose drafts are wrong from some position on
        self._relayed: deque[_Relayed] = deque()  # not judged yet
        self._outcomes: Outcomes[_Relayed] = Outcomes()
        self._rejection: _Rejection | None = None  # the last verdict's, if it was one

    @classmethod
    def between(
        cls,
        drafter: WorkerInfo,
        verifier: WorkerInfo,
        experience: Experience,
        settings: RelaySettings,
        *,
        sessions: int,
        is_deterministic: bool,
        outcome_tokens: int,
    ) -> Pacing:
        """Of a session on these two, which begins with what is known of them; the drafter was asked
        for `outcome_tokens` behind other outcomes."""
        in_turns = drafter.competes_with(verifier)
        controller_of = partial(
            WindowController,
            max_window=settings.window,
            start=WindowPlan(
                settings.num_speculative_tokens, settings.start_window, patience_s=None
            ),
            sessions=sessions,
            is_deterministic=is_deterministic,
        )
        drawing = controller_of(
            experience,
            in_turns=in_turns,
            copies=drafter.kind == "ngram",
            outcome_tokens=outcome_tokens if drafter.kind == "model" else 0,
        )
        if drafter.kind != "cascade":
            return cls(drawing, experience.cost, in_turns=in_turns)
        copying = controller_of(experience.copying, on_one_device=in_turns, copies=True)
        both = CascadeController(drawing=drawing, copying=copying)
        return cls(both, experience.cost, in_turns=in_turns)

    @property
    def plan(self) -> WindowPlan:
        """The present plan."""
        return self._controller.plan

    def advanced(self, committed: int, now: float) -> None:
        """The drafter was told of a committed length."""
        self._told = _Told(committed, now, self._is_resting)
        self._is_resting = False

    def drafted(self, block: DraftBlock, committed: Sequence[int], now: float) -> None:
        """A block came from the drafter and goes on to the verifier.

        `committed` are the tokens already committed at the block's positions.
        """
        if block.outcome is not None:
            ahead = _Relayed(block.epoch, block.base, block.token_ids, None, False, ())
            held = self._outcomes.add(block, ahead)
            if held is not None and self._rejection is _Rejection.UNMET:
                self._rejection = _Rejection.MET_LATE
            self._follow(held)
            return
        num_tokens = len(block.token_ids)
        num_drawn = num_tokens - len(block.copied)
        draft_s = block.draft_us / 1e6
        if block.draft_us:
            self._controller.saw_block(
                num_tokens=num_drawn,
                draft_s=draft_s,
                is_unsure=block.state is DrafterState.UNSURE and not block.copied,
            )
        if num_tokens or block.base == block.known_committed:  # else others are on their way
            self._controller.saw_offer(num_tokens=num_tokens, num_copied=len(block.copied))
        if num_tokens and self._told is not None and self._answers(block, self._told):
            _count(self._to_drafter_s, now - self._told.at - draft_s)
        self._last_epoch = block.epoch
        self._kv_length = block.kv_length
        self._is_resting = block.state is not DrafterState.RUNNING
        if self._void_epoch is not None and block.epoch <= self._void_epoch:
            return  # its epoch's first wrong draft was counted, and the verifier drops it
        tree = block.tree
        if tree is not None:
            agreed = len(tree.walk(block.token_ids, committed))
        else:
            agreed = next(
                (i for i, token in enumerate(committed) if token != block.token_ids[i]),
                len(committed),
            )
        self._controller.saw_overtaken(
            compared=len(committed),
            agreed=agreed,
            copied=[index for index in block.copied if index < len(committed)],
        )
        is_overtaken = tree is not None and len(committed) > tree.trunk
        if agreed == len(committed) and not is_overtaken:
            self._relayed.append(
                _Relayed(
                    block.epoch, block.base, block.token_ids, now, tree is not None, block.copied
                )
            )
        else:
            self._void_epoch = block.epoch
            if tree is None:
                self._begin_epoch(block.epoch + 1, block.base + agreed + 1, committed[agreed])

    def _begin_epoch(self, epoch: int, base: int, token_id: int) -> None:
        """With this token before `base`: what was drafted for that is on its way, nothing else."""
        self._relayed.clear()
        self._follow(self._outcomes.epoch_begins(epoch, base, token_id))

    def _follow(self, block: _Relayed | None) -> None:
        if block is not None:
            self._relayed.append(block)

    def judged(self, verdict: Verdict, live_sessions: int, now: float) -> WindowPlan:
        """A verdict came; returns the plan to go on with.

        `live_sessions` share the verifier, though not every pass has all of them.
        """
        timings = verdict.timings
        pass_s = (timings.forward_us + timings.judge_us) / 1e6
        if self._rejection is not None:
            self._controller.saw_rejection(
                finds_drafts=self._rejection is _Rejection.MET,
                late=self._rejection is _Rejection.MET_LATE,
            )
            self._rejection = None
        self._cost.update(timings.rows, pass_s, sessions=timings.sessions)
        self._forget_before(verdict.base)
        first = self._relayed[0] if verdict.num_judged and self._relayed else None
        if first is not None and first.base == verdict.base and first.relayed_at is not None:
            # the session was ready for the pass when the first of the drafts had come
            waited_s = timings.queue_us / 1e6
            _count(self._to_verifier_s, now - first.relayed_at - waited_s - pass_s)
        end = verdict.base + verdict.num_judged
        branches = any(block.is_tree and block.base < end for block in self._relayed)
        copied = [i for block in self._relayed for i in block.copied_in(verdict.base, end)]
        self._forget_before(end)
        if branches or verdict.accepted_length < verdict.num_judged:
            length = verdict.base + len(verdict.token_ids)
            self._begin_epoch(verdict.epoch, length, verdict.token_ids[-1])
            self._rejection = _Rejection.MET if self._relayed else _Rejection.UNMET
        elif verdict.next_origin is not None:
            self._compare(end, verdict.token_ids[-1])
        self._outcomes.committed(verdict.base + len(verdict.token_ids))
        hops = (self._to_drafter_s.value, self._to_verifier_s.value)
        if hops[0] is not None and hops[1] is not None:
            self._controller.saw_round_trip(hops[0] + hops[1])
        self._controller.saw_verdict(
            judged=_num_tried(verdict) if branches else verdict.num_judged,
            accepted=verdict.accepted_length,
            committed=len(verdict.token_ids),
            sessions=max(live_sessions, timings.sessions),
            copied=copied,
        )
        return self._controller.plan

    def _forget_before(self, position: int) -> None:
        """Of the blocks on their way, those that end there are so no more."""
        while self._relayed and self._relayed[0].end <= position:
            self._relayed.popleft()

    def _answers(self, block: DraftBlock, told: _Told) -> bool:
        """Whether all of a block was drafted after the drafter had heard what it was told.

        A block that was begun before comes sooner than a round trip and its drafting take, and
        one before which a model had much to read comes later.
        """
        num_read = block.kv_length - self._kv_length
        if block.base != told.committed or num_read > 1 + len(block.token_ids):
            return False
        is_of_new_epoch = self._last_epoch is not None and block.epoch > self._last_epoch
        return told.to_resting or is_of_new_epoch

    def _compare(self, position: int, token_id: int) -> None:
        """The verifier went on alone at a position; was the draft for it right?"""
        if self._relayed and self._relayed[0].base <= position < self._relayed[0].end:
            block = self._relayed[0]
            agreed = block.token_ids[position - block.base] == token_id
            self._controller.saw_overtaken(
                compared=1, agreed=int(agreed), copied=block.copied_in(position, position + 1)
            )
            if not agreed:
                self._void_epoch = block.epoch
                self._begin_epoch(block.epoch + 1, position + 1, token_id)


def _count(estimate: LowerQuartile, seconds: float) -> None:
    """Below 0 it is no time: something else was measured."""
    if seconds >= 0.0:
        estimate.update(seconds)


def _num_tried(verdict: Verdict) -> int:
    """Depths of a tree at which the target was offered drafts: those of the accepted path, and
    one more if a token was recovered there."""
    return verdict.accepted_length + (verdict.next_origin is Origin.RECOVERED)
