"""One session on the drafter: committed tokens, outstanding drafts, window and epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from drafter_service.branches import Branches
from drafter_service.draft_plan import DraftPlan
from drafter_service.drafter import ProposeRequest
from drafter_service.outcomes import Outcome, Outcomes
from paceline.errors import InvalidArgumentError
from paceline.outcomes import OUTCOMES_A_POSITION
from paceline.runtime.engine_thread import SessionKey
from paceline.sampling.draw import Draw, stack_draws
from paceline.tree_shape import TreeShape
from paceline.types import Advance, DraftBlock, DrafterState, OpenSession


class Advanced(NamedTuple):
    """What an advance has made of a session."""

    valid: int
    """How many leading tokens of the sequence before still hold."""
    outcome: Outcome | None
    """The one that has come true, if any was drafted for what came."""
    gone: list[Outcome]
    """Those that can come no more."""
    num_unsent_lost: int
    """How many drafts that were not sent are void."""


class DraftSession:
    """State of one session inside its link.

    `tokens[:committed]` are final, `tokens[committed:sent]` are drafts on their way to a verdict,
    and the rest are drawn but not sent. Sent drafts beyond the committed length never exceed the
    window. A draft that branches is in `tokens` up to its first branch; what follows are the
    `branches`, and nothing is drafted until it is known what became of them.
    """

    def __init__(self, key: SessionKey, opening: OpenSession, *, context_length: int) -> None:
        self.key = key
        self.opening = opening
        self.tokens = list(opening.token_ids)
        self.committed = len(self.tokens)
        self.epoch = opening.epoch
        self._plan = DraftPlan.of(opening)
        self._confidences: list[float] = []
        """Of the tokens that are not final, how likely each was to be right."""
        self.is_active = True
        """Whether the session wants to be asked for more; the next advance reawakens it."""
        self._sent = self.committed
        # a draft for the token that the prefill decides would void later ones by chance of timing
        self._awaits_first = opening.reproducible and self.committed == opening.prompt_length
        self._unsent: list[Draw] = []
        self._copied: set[int] = set()
        """Positions of unsent tokens that were copied where a model draws others."""
        self._rests_until = 0
        """Length to be final, or void, before more is drafted: the model was unsure there."""
        self.branches: Branches | None = None
        """The part that branches of the last block, until it is judged or void."""
        self._final: Sequence[int] | None = None
        self.outcomes = Outcomes()
        """What is drafted in case that sent drafts are rejected."""
        self._has_told_end = False
        self._draft_s = 0.0  # of the unsent draws whose time was measured, and how many those are
        self._num_timed = 0
        # the last token is always the verifier's own, so a draft there could not pay
        longest = opening.max_length - 1
        self._max_length = min(longest, context_length) if context_length else longest

    # --- events -----------------------------------------------------------------------------

    def step_of(self, event: Advance) -> tuple[Advance, Advance | None]:
        """An advance up to where an outcome comes true in its midst, and the rest, if there is."""
        num_tokens = self._num_agreed(event) + 1
        if num_tokens >= len(event.token_ids) or self._come_true(event) is None:
            return event, None
        until, rest = event.token_ids[:num_tokens], event.token_ids[num_tokens:]
        return (
            replace(event, token_ids=until, features=None),
            replace(event, base=event.base + num_tokens, token_ids=rest),
        )

    def advance(self, event: Advance) -> Advanced:
        """Take committed tokens.

        Raises `InvalidArgumentError` if they do not continue the committed ones.
        """
        if event.base != self.committed:
            raise InvalidArgumentError(
                "base", f"{event.base} does not continue the committed length {self.committed}"
            )
        self._check_ids(event.token_ids)
        if event.token_ids:
            self._awaits_first = False
        self._plan = self._plan.adjusted(event, max_window=self.opening.window)
        end = event.base + len(event.token_ids)
        drafted = self.tokens[event.base : end]
        agreed = self._num_agreed(event)
        outcome = self._come_true(event)
        keeps_drafts = event.epoch <= self.epoch and agreed == len(drafted)
        if keeps_drafts:
            valid = len(self.tokens)
            if self.branches is not None and end > valid:
                self.branches = None
                self.epoch += 1  # as the verifier does when the block arrives
            self.tokens.extend(event.token_ids[len(drafted) :])
            del self._confidences[: len(event.token_ids)]
            self._sent = max(self._sent, end)
            gone = self.outcomes.committed(end)
        else:
            valid = event.base + agreed
            if event.epoch <= self.epoch and valid < self._sent:
                self.epoch += 1  # the verifier sees the same difference when the block arrives
            self.branches = None
            self._confidences.clear()
            self.tokens[event.base :] = event.token_ids
            self._sent = end
            self._rests_until = 0
            gone = [other for other in self.outcomes.clear() if other is not outcome]
        self.epoch = max(self.epoch, event.epoch)
        self.committed = end
        num_unsent = len(self.tokens) - self._sent
        num_lost = len(self._unsent) - num_unsent
        if num_unsent < len(self._unsent):  # what was drawn in vain took its time with it
            kept = min(num_unsent, self._num_timed)
            self._draft_s *= kept / max(self._num_timed, 1)
            self._num_timed = kept
            self._unsent = self._unsent[len(self._unsent) - num_unsent :]
            unsent = range(self._sent, len(self.tokens))
            self._copied = {position for position in self._copied if position in unsent}
        if outcome is not None:
            self._go_on_behind(outcome)
        self.is_active = (
            self._plan.window > 0 and self.branches is None and self.committed >= self._rests_until
        )
        return Advanced(valid, outcome, gone, num_lost)

    def _num_agreed(self, event: Advance) -> int:
        """How many tokens of an advance were drafted so, from its first on."""
        end = event.base + len(event.token_ids)
        return _common_prefix(self.tokens[event.base : end], event.token_ids)

    def _come_true(self, event: Advance) -> Outcome | None:
        """The outcome that an advance tells of.

        The verifier takes the same one, whenever it comes there, in the epoch that begins with the
        token in question: this one's or, where it has yet to see the difference, the next. An
        epoch above that has begun elsewhere.
        """
        agreed = self._num_agreed(event)
        position = event.base + agreed
        is_at_sent = agreed < len(event.token_ids) and position < self._sent
        if not is_at_sent or event.epoch > self.epoch + 1:
            return None
        return self.outcomes.find(position, event.token_ids[agreed])

    def _go_on_behind(self, outcome: Outcome) -> None:
        """What was drafted for an outcome is what is drafted now."""
        assert self.epoch == outcome.epoch
        assert self.committed == outcome.base
        self.tokens.extend(draw.token_id for draw in outcome.draws)
        self._confidences.extend([1.0] * len(outcome.draws))
        self.outcomes.guess(outcome.base, outcome.draws)
        if outcome.is_full:
            self._sent = len(self.tokens)
        else:
            self._unsent = list(outcome.draws)

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        vocab_size = self.opening.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidArgumentError(
                    "token_ids", f"{token_id} is outside the vocabulary of {vocab_size}"
                )

    # --- drafting ---------------------------------------------------------------------------

    def request(self, *, ahead: bool = False) -> ProposeRequest | None:
        """What to ask the drafter for; None while the window is full or nothing is wanted.

        `ahead`: whether the drafter drafts other outcomes ahead.
        """
        if not self.is_active:
            return None
        limit = min(self._room(), self._plan.block_length - len(self._unsent))
        if limit <= 0:
            return None
        if self._awaits_first:
            limit = 0
        return ProposeRequest(
            self.key,
            self.opening,
            self.tokens,
            self.epoch,
            limit,
            self.committed,
            self._plan.draw_window,
            confidence=math.prod(self._confidences),
            min_confidence=self._plan.min_confidence,
            min_copy_confidence=self._plan.min_copy_confidence,
            num_others=OUTCOMES_A_POSITION if ahead and self.num_outcome_tokens else 0,
            final_ids=self.final_ids(),
        )

    def final_ids(self) -> Sequence[int] | None:
        """Where draws read the whole text, and there are several at a time."""
        if not self.opening.sampling.reads_text or not self.num_outcome_tokens:
            return None
        if self._final is None or len(self._final) != self.committed:
            self._final = self.tokens[: self.committed]
        return self._final

    @property
    def num_outcome_tokens(self) -> int:
        """Drafts behind each other outcome; 0 where none is drafted ahead.

        What is there in time must not matter to reproducible output; features of a token that may
        never come do not exist; and distributions over all ids are too much to send in vain.
        """
        opening = self.opening
        is_dense = opening.draft_top_k == 0 and not opening.sampling.is_deterministic
        if opening.reproducible or opening.features or is_dense or self._plan.has_limits:
            return 0
        return min(self.opening.num_outcome_tokens, self._plan.window)

    def room_behind(self, base: int) -> int:
        """Drafts that another outcome may have behind it; 0 or less for none."""
        return min(self.num_outcome_tokens, self._max_length - base)

    @property
    def window(self) -> int:
        """The speculation window, as it is by now."""
        return self._plan.window

    def _room(self) -> int:
        window_end = self.committed + self._plan.window
        return min(window_end, self._max_length) - len(self.tokens)

    def add(
        self,
        draws: Sequence[Draw],
        seconds: float | None,
        tree: TreeShape | None = None,
        *,
        is_copied: bool = False,
        confidences: Sequence[float] = (),
    ) -> None:
        """Append drawn tokens; the block that they fill is taken by `take_block`.

        `seconds` is None where the time was not that of drawing alone; for tokens that are copied
        where a model draws others it does not count. `confidences`, if there are any, are those of
        the draws.
        """
        trunk = len(draws) if tree is None else tree.trunk
        self.outcomes.guess(len(self.tokens), draws[:trunk])
        if is_copied:
            self._copied.update(range(len(self.tokens), len(self.tokens) + trunk))
            seconds = None
        self.tokens.extend(draw.token_id for draw in draws[:trunk])
        self._confidences.extend(confidences or [1.0] * trunk)
        self._unsent.extend(draws[:trunk])
        if seconds is not None:
            self._draft_s += seconds
            self._num_timed += len(draws)
        if tree is not None and not tree.is_chain:
            self.branches = Branches(len(self.tokens), draws[trunk:], tree.without_trunk())

    @property
    def num_drawn_tokens(self) -> int:
        """Tokens of a full block that a model drew."""
        return self._plan.most_drawn

    def take_block(
        self, *, found_nothing: bool, kv_length: int, is_waiting: bool = False, ends: bool = False
    ) -> DraftBlock | None:
        """The next block, once it is full, the window is, or there is nothing more to propose.

        One that `ends` is not gone on from before its last token is final, whatever the window and
        the length of a block: neither that nor when it is told may depend on timing.

        A drafter that has ended, or waits for room (`is_waiting`), says so once and not at every
        advance: the verifier then decodes by itself, without a round trip a token.
        """
        rests = ends or self.branches is not None
        has_room = self._room() > 0 and not found_nothing and not rests
        if ends:
            self._rests_until = len(self.tokens)
        if has_room and not self._is_full():
            return None
        draws, self._unsent = self._unsent, []
        copied = tuple(i for i in range(len(draws)) if self._sent + i in self._copied)
        self._copied.clear()
        parents: tuple[int, ...] = ()
        if self.branches is not None:
            parents = self.branches.parents_behind(len(draws))
            draws = [*draws, *self.branches.draws]
        num_drawn = len(draws) - len(copied)
        seconds = self._draft_s * num_drawn / self._num_timed if self._num_timed else 0.0
        self._draft_s, self._num_timed = 0.0, 0
        self.is_active = has_room
        state = DrafterState.ENDED if is_waiting else self._state()
        if state is DrafterState.ENDED and self._has_told_end and not draws:
            return None
        self._has_told_end = state is DrafterState.ENDED
        base, self._sent = self._sent, len(self.tokens)
        return DraftBlock(
            session_id=self.opening.session_id,
            epoch=self.epoch,
            base=base,
            token_ids=tuple(draw.token_id for draw in draws),
            draft_probs=stack_draws(draws),
            known_committed=self.committed,
            state=state,
            kv_length=kv_length,
            draft_us=round(seconds * 1e6),
            parents=parents,
            copied=copied,
        )

    def _is_full(self) -> bool:
        """Whether what is unsent makes a block.

        Where the model may draw no further, copying may still go on, or the block says that nothing
        follows, which spares the verifier from waiting for it.
        """
        num_unsent = len(self._unsent)
        if num_unsent >= self._plan.block_length:
            return True
        may_draw = self._plan.draw_window is None or (
            len(self.tokens) < self.committed + self._plan.draw_window
        )
        return may_draw and num_unsent - len(self._copied) >= self._plan.num_drawn

    def _state(self) -> DrafterState:
        if self.committed >= self._max_length:
            return DrafterState.ENDED
        if self.committed < self._rests_until:
            return DrafterState.UNSURE
        return DrafterState.RUNNING if self.is_active else DrafterState.PAUSED

    @property
    def num_unsent(self) -> int:
        """Tokens drawn for a block that has not been sent."""
        return len(self._unsent)

    def check_integrity(self) -> None:
        """Assert the invariants of the class docstring."""
        assert self.committed <= self._sent <= len(self.tokens)
        assert len(self._unsent) == len(self.tokens) - self._sent
        assert len(self._confidences) == len(self.tokens) - self.committed
        num_branching = 0 if self.branches is None else len(self.branches.draws)
        assert len(self.tokens) + num_branching - self.committed <= self.opening.window
        assert not (self.branches and (self._unsent or self.is_active))


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    return next((i for i in range(length) if left[i] != right[i]), length)
