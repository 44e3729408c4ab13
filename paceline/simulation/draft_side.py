"""A session on the simulated drafter: `drafter_service/session.py` with counts for tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from paceline.outcomes import OUTCOMES_A_POSITION
from paceline.types import DrafterState

NEVER = 2**62
"""A position that no sequence reaches."""


class Block(NamedTuple):
    """A draft block. `first_wrong` is the position of the first draft that the target rejects."""

    epoch: int
    base: int
    num_tokens: int
    first_wrong: int
    known_committed: int
    state: DrafterState
    is_ahead: bool = False
    """Drafted for the case that the draft before its base is rejected."""
    which: int = 0
    """Of the tokens that may come then it is for this one."""
    is_guessed: bool = False
    """And that is the one that comes."""


@dataclass(slots=True)
class Ahead:
    """Drafts behind one of the likeliest other tokens before `base`; all are wrong if that is."""

    base: int
    which: int
    num_tokens: int
    is_guessed: bool
    num_drawn: int = 0
    first_wrong: int = NEVER

    @property
    def is_full(self) -> bool:
        return self.num_drawn == self.num_tokens


class Advance(NamedTuple):
    """Committed tokens `base` to `end`, the first `num_accepted` of them drafts."""

    epoch: int
    base: int
    end: int
    num_accepted: int


class DraftSide:
    """Sequence `length`, of which `committed` tokens are final and `sent` were sent.

    A draft is either right (the target will accept it) or wrong, and after a wrong one all are.
    """

    def __init__(
        self,
        *,
        prompt_length: int,
        max_length: int,
        window: int,
        num_speculative_tokens: int,
        is_right: Callable[[int], bool],
        is_deterministic: bool,
        right_other: Callable[[int], int | None],
        num_outcome_tokens: int,
    ) -> None:
        self.window = window
        self.is_active = True
        self.length = prompt_length
        self.num_cached = 0
        self._max_length = max_length - 1
        self._block_length = num_speculative_tokens
        self._is_right = is_right
        self._is_deterministic = is_deterministic
        self._epoch = 0
        self._committed = prompt_length
        self._sent = prompt_length
        self._first_wrong = NEVER
        self._right_other = right_other
        self._num_outcome_tokens = min(num_outcome_tokens, window)
        self._ahead: dict[tuple[int, int], Ahead] = {}  # by base, and which token it is for
        self.drafts_ahead = True
        """Whether there is time for it, by how many sessions there are."""

    def wants_draft(self) -> bool:
        """Whether to ask the model for a token; if not, an active session flushes its block."""
        return self._room() > 0 and self.length - self._sent < self._block_length

    def _room(self) -> int:
        return min(self._committed + self.window, self._max_length) - self.length

    def draw(self) -> None:
        """Append one draft to a sequence that is wholly in the cache now."""
        self.num_cached = self.length
        if self._first_wrong == NEVER and not self._is_right(self.length):
            self._first_wrong = self.length
        self.length += 1

    def take_block(self, *, found_nothing: bool = False) -> Block | None:
        """The next block, once it is full, the window is, or there is nothing more to propose."""
        has_room = self._room() > 0 and not found_nothing
        if has_room and self.length - self._sent < self._block_length:
            return None
        self.is_active = has_room
        base, self._sent = self._sent, self.length
        self._branch_at(range(base, self._sent))
        return Block(
            self._epoch, base, self._sent - base, self._first_wrong, self._committed, self._state()
        )

    def _state(self) -> DrafterState:
        if self._committed >= self._max_length:
            return DrafterState.ENDED
        return DrafterState.RUNNING if self.is_active else DrafterState.PAUSED

    # --- other outcomes ---------------------------------------------------------------------

    @property
    def unfinished(self) -> list[Ahead]:
        """What is to be drafted further for other outcomes."""
        return [ahead for ahead in self._ahead.values() if not ahead.is_full]

    def _branch_at(self, positions: range) -> None:
        if not self.drafts_ahead:
            return
        for which, position in itertools.product(range(OUTCOMES_A_POSITION), positions):
            base = position + 1
            num_tokens = min(self._num_outcome_tokens, self._max_length - base)
            if num_tokens > 0:
                is_guessed = self._right_other(position) == which
                self._ahead[base, which] = Ahead(base, which, num_tokens, is_guessed)

    def draw_ahead(self, ahead: Ahead) -> Block | None:
        """One draft more; the block, once it is full."""
        position = ahead.base + ahead.num_drawn
        if ahead.first_wrong == NEVER and not self._is_right(position):
            ahead.first_wrong = position
        ahead.num_drawn += 1
        if not ahead.is_full:
            return None
        state = DrafterState.PAUSED if ahead.num_tokens >= self.window else DrafterState.RUNNING
        return Block(
            self._epoch + 1,
            ahead.base,
            ahead.num_tokens,
            ahead.first_wrong,
            ahead.base,
            state,
            is_ahead=True,
            which=ahead.which,
            is_guessed=ahead.is_guessed,
        )

    def _guessed(self, position: int) -> Ahead | None:
        """What was drafted for the token that comes at a position, if that was guessed."""
        tried = (self._ahead.get((position + 1, which)) for which in range(OUTCOMES_A_POSITION))
        return next((ahead for ahead in tried if ahead is not None and ahead.is_guessed), None)

    def _go_on_behind(self, ahead: Ahead) -> None:
        """What was drafted for this outcome is what is drafted now."""
        self.num_cached = ahead.base + ahead.num_drawn - 1
        self.length = ahead.base + ahead.num_drawn
        self._first_wrong = ahead.first_wrong
        if ahead.is_full:
            self._sent = self.length
            self._branch_at(range(ahead.base, self.length))

    # --- what is heard ----------------------------------------------------------------------

    def advance(self, event: Advance) -> None:
        """Take committed tokens; drafts that contradict them are rolled back."""
        self.is_active = True
        num_drafted = min(self.length, event.end) - event.base
        # a sampled token that is no accepted draft is taken to differ from any draft
        num_right = self._first_wrong - event.base if self._is_deterministic else event.num_accepted
        num_agreed = min(num_drafted, num_right)
        if event.epoch <= self._epoch and num_agreed == num_drafted:
            self.length = max(self.length, event.end)
            self._sent = max(self._sent, event.end)
            self._ahead = {at: each for at, each in self._ahead.items() if at[0] > event.end}
            outcome = None
        else:
            valid = event.base + num_agreed
            outcome = self._guessed(valid) if valid < self._sent else None
            self._ahead.clear()
            if event.epoch <= self._epoch and valid < self._sent:
                self._epoch += 1
            self.num_cached = min(self.num_cached, valid)
            self.length = self._sent = event.end
            self._first_wrong = NEVER
        self._epoch = max(self._epoch, event.epoch)
        self._committed = event.end
        if outcome is not None and event.end == outcome.base:
            self._go_on_behind(outcome)
