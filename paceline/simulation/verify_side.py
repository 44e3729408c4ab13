"""A session on the simulated verifier: `verifier_service/session.py` with counts for tokens."""

from __future__ import annotations

from typing import NamedTuple

from paceline.outcomes import OUTCOMES_A_POSITION
from paceline.simulation.draft_side import NEVER, Block
from paceline.types import DrafterState


class Plan(NamedTuple):
    """What a session wants from the next pass."""

    num_uncached: int
    num_drafts: int
    wants_next: bool

    @property
    def num_inputs(self) -> int:
        return self.num_uncached + self.num_drafts + self.wants_next - 1


class Verdict(NamedTuple):
    """What a pass decided: tokens `base` to `end` are committed."""

    epoch: int
    base: int
    end: int
    num_judged: int
    num_accepted: int
    is_last: bool


class VerifySide:
    """Committed tokens `length` and a tail of drafts; the first wrong one ends what is accepted."""

    def __init__(
        self,
        *,
        prompt_length: int,
        max_length: int,
        speculation: bool,
        patience_s: float,
        max_drafts: int,
        is_deterministic: bool,
    ) -> None:
        self.length = prompt_length
        self.num_cached = 0
        self.last_served = 0
        self._prompt_length = prompt_length
        self._max_length = max_length
        self._speculation = speculation
        self._patience_s = patience_s
        self._max_drafts = max_drafts
        self._is_deterministic = is_deterministic
        self._epoch = 0
        self._tail = 0
        self._first_wrong = NEVER
        self._state = DrafterState.RUNNING
        self._known_committed = 0
        self._gave_up_waiting = False
        self._idle_since: float | None = None
        self._ahead: dict[tuple[int, int], Block] = {}
        """Drafted for outcomes that may come, by base and which token they are for."""
        self._begun: tuple[int, int] | None = None  # the epoch, and the length where it began

    def add_block(self, block: Block) -> None:
        """Append a block to the tail, or drop what has become void."""
        if block.epoch < self._epoch:
            return
        if block.is_ahead and not ((block.epoch, block.base) == self._begun and block.is_guessed):
            if block.epoch == self._epoch + 1 and block.base > self.length:
                self._ahead[block.base, block.which] = block
            return
        if block.epoch > self._epoch:
            self._epoch = block.epoch
            self._tail, self._first_wrong = 0, NEVER
            self._begun = None
            self._ahead.clear()
        self._gave_up_waiting = False
        self._state = block.state
        self._known_committed = block.known_committed
        overlap = max(0, min(self.length - block.base, block.num_tokens))
        if overlap and not (
            self._is_deterministic and block.first_wrong >= block.base + overlap
        ):  # the drafter had guessed other tokens than were committed meanwhile
            self._epoch += 1
            self._state = DrafterState.RUNNING
            wrong = block.first_wrong if self._is_deterministic else block.base
            self._begun = self._epoch, wrong + 1
            self._ahead.clear()
        elif block.num_tokens > overlap:
            self._tail += block.num_tokens - overlap
            self._first_wrong = min(self._first_wrong, block.first_wrong)

    def ready_at(self, now: float) -> float:
        """When `plan` has something."""
        if self._tail or not self._expects_drafts():
            return now
        if self._idle_since is None:
            self._idle_since = now
        return self._idle_since + self._patience_s

    def plan(self, now: float) -> Plan | None:
        """What to run next; None while the session waits for drafts."""
        if self.ready_at(now) > now:
            return None
        self._gave_up_waiting |= not self._tail and self._expects_drafts()
        room = self._max_length - self.length
        num_drafts = min(self._tail, self._max_drafts, room)
        may_take_bonus = self._is_deterministic or self._drafter_rests()
        takes_bonus = self._tail == num_drafts < room and may_take_bonus
        return Plan(self.length - self.num_cached, num_drafts, num_drafts == 0 or takes_bonus)

    def _expects_drafts(self) -> bool:
        return (
            self._speculation
            and not self._gave_up_waiting
            and self.length != self._prompt_length
            and not self._drafter_rests()
        )

    def _drafter_rests(self) -> bool:
        return self._state is DrafterState.ENDED or (
            self._state is DrafterState.PAUSED and self._known_committed == self.length
        )

    def commit(self, plan: Plan) -> Verdict:
        """Make the outcome of a whole pass final."""
        base = self.length
        num_accepted = min(plan.num_drafts, self._first_wrong - base)
        is_rejected = num_accepted < plan.num_drafts
        self.length += num_accepted + (is_rejected or plan.wants_next)
        self.num_cached = self.length - 1
        self._tail -= plan.num_drafts
        self._idle_since = None
        if is_rejected:
            self._begin_epoch()
        self._ahead = {at: block for at, block in self._ahead.items() if at[0] > self.length}
        is_last = self.length >= self._max_length
        return Verdict(self._epoch, base, self.length, plan.num_drafts, num_accepted, is_last)

    def _begin_epoch(self) -> None:
        """A draft was rejected: go on with what was drafted for the token that came instead."""
        self._epoch += 1
        self._tail, self._first_wrong = 0, NEVER
        self._begun = self._epoch, self.length
        tried = (self._ahead.get((self.length, which)) for which in range(OUTCOMES_A_POSITION))
        block = next((each for each in tried if each is not None and each.is_guessed), None)
        self._ahead.clear()
        if block is not None and block.epoch == self._epoch:
            self._tail, self._first_wrong = block.num_tokens, block.first_wrong
            self._gave_up_waiting = False
            self._state, self._known_committed = block.state, block.known_committed
