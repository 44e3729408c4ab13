"""What a session knows of its drafter, and how long it waits for the next drafts."""

from __future__ import annotations

from paceline.types import DraftBlock, DrafterState


class DrafterWatch:
    """The drafter as its last block left it, and the session's patience with it."""

    def __init__(self, *, is_on: bool, is_reproducible: bool, patience_s: float) -> None:
        self.is_on = is_on
        """Whether draft blocks are expected at all."""
        self._is_reproducible = is_reproducible
        self._patience_s = self._configured_patience_s = patience_s
        self._is_told_patience = False
        self._state = DrafterState.RUNNING
        self._known_committed = 0
        self._gave_up = False
        self._idle_since: float | None = None

    def switch(self, *, is_on: bool, patience_s: float | None) -> None:
        """Start or stop expecting blocks, waiting so long for each; None is as configured."""
        has_ended = self.is_on and self._state is DrafterState.ENDED
        self.is_on = is_on
        self._patience_s = self._configured_patience_s if patience_s is None else patience_s
        self._is_told_patience = patience_s is not None
        self._gave_up = False
        if not has_ended:  # that is said once
            self._state = DrafterState.RUNNING

    def hear(self, block: DraftBlock) -> None:
        """Take a block's word on how the drafter is."""
        self._gave_up = self._has_no_idea(block)
        self._state = block.state
        self._known_committed = block.known_committed

    def assume_running(self) -> None:
        """The drafter is about to be told something that sets it going again."""
        self._state = DrafterState.RUNNING

    @property
    def is_unsure(self) -> bool:
        """Whether the drafter rests where the tail ends, as it would whatever the timing."""
        return self._state is DrafterState.UNSURE

    def tail_ended(self) -> None:
        """All of the tail is judged, or void: a drafter that was unsure at its end goes on."""
        if self.is_unsure:
            self._state = DrafterState.RUNNING

    def give_up(self) -> None:
        """Past the patience: until a block comes, a late drafter is not waited for."""
        self._gave_up = True

    def end_wait(self) -> None:
        """A verdict was given: the next wait begins anew."""
        self._idle_since = None

    def waits_until(self, now: float) -> float:
        """When the patience ends; the first call since the last verdict begins the wait."""
        if self._idle_since is None:
            self._idle_since = now
        return self._idle_since + self._patience_s

    def expects_drafts(self, num_committed: int) -> bool:
        """Whether waiting may bring drafts: not from a drafter that is off, late or at rest."""
        return self.is_on and not self._gave_up and not self.rests(num_committed)

    def rests(self, num_committed: int) -> bool:
        """Whether the drafter waits for us, with no verdict on the way that would wake it."""
        return self._state in (DrafterState.ENDED, DrafterState.UNSURE) or (
            self._state is DrafterState.PAUSED and self._known_committed == num_committed
        )

    def _has_no_idea(self, block: DraftBlock) -> bool:
        """Whether the drafter has nothing to propose from here (prompt lookup without a match).

        It is then not asked token by token, which would cost a round trip each: what it finds
        later comes by itself, and what of it is still ahead gets judged. Who says how long to wait
        has weighed that, though.
        """
        is_empty = not block.token_ids and block.base <= block.known_committed
        return (
            is_empty
            and block.state is DrafterState.PAUSED
            and not self._is_told_patience
            and not self._is_reproducible  # whether it comes in time must not matter there
        )
