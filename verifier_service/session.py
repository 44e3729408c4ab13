"""One session on the verifier: committed tokens, the draft tail, and what its next pass is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.runtime.page_table import PageTable
from paceline.sampling.acceptance import Judgement
from paceline.sampling.judge import Trial
from paceline.sampling.logprobs import token_logprobs
from paceline.sampling.params import Acceptance
from paceline.types import (
    DraftBlock,
    DrafterState,
    FinishReason,
    OpenSession,
    Origin,
    PassTimings,
    PromptLogprobs,
    TokenLogprobs,
    Verdict,
)
from verifier_service.draft_tail import DraftTail, check_block
from verifier_service.guidance import Guidance


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What a session wants from the next pass.

    The inputs are the uncached committed tokens and the first drafts of the tail; the pass judges
    `num_drafts` of them and, with `wants_next`, yields one token more.
    """

    num_uncached: int
    num_drafts: int
    wants_next: bool

    @property
    def num_rows(self) -> int:
        """Rows of logits: one a judged draft, and one for the next token."""
        return self.num_drafts + self.wants_next

    @property
    def num_inputs(self) -> int:
        """Input tokens. Draft i is judged by the output at the token before it, so without a next
        token the last draft is no input."""
        return self.num_uncached + self.num_rows - 1

    def chunk_of(self, budget: int) -> int:
        """Inputs of the next pass under a budget. Short of all, it leaves the last committed token
        to a later one: the rows of logits begin there."""
        return self.num_inputs if budget >= self.num_inputs else min(budget, self.num_uncached - 1)


class VerifierSession:
    """State of one session inside its link. Only `commit` appends committed tokens.

    Invariants: `table` never holds more than the committed length plus live drafts, and after a
    verdict one token less than the committed length; the tail is non-empty only if it continues
    the committed tokens in the current epoch.
    """

    def __init__(
        self,
        opening: OpenSession,
        *,
        patience_s: float,
        max_drafts: int,
        guidance: Guidance | None = None,
    ) -> None:
        self.opening = opening
        self._guidance = guidance
        self.tokens = list(opening.token_ids)
        self.tail = DraftTail()
        self.epoch = opening.epoch
        self.table: PageTable | None = None
        self.num_reused = 0
        """Tokens whose pages were found instead of computed."""
        self.last_served = 0
        self._params = opening.sampling
        self._committed_limit = opening.committed_limit
        self._speculation = opening.speculation
        self._patience_s = self._configured_patience_s = patience_s
        self._max_drafts = max_drafts
        # the block is what one pass judges, so how blocks are merged shapes the output
        self._judges_by_block = (
            opening.reproducible and opening.sampling.acceptance is Acceptance.BLOCK
        )
        self._drafter_state = DrafterState.RUNNING
        self._known_committed = 0
        self._gave_up_waiting = False
        self._idle_since: float | None = None
        self._ready_since: float | None = None
        self._num_discarded = 0
        self._discards: dict[str, int] = {}
        end_ids = () if self._params.ignore_eos else opening.eos_token_ids
        self._end_ids = frozenset(self._params.stop_token_ids + end_ids)

    # --- events -----------------------------------------------------------------------------

    def grant(self, committed_limit: int) -> None:
        """Extend the commit credit; it never shrinks."""
        self._committed_limit = max(self._committed_limit, committed_limit)

    def set_speculation(self, *, enabled: bool, patience_s: float | None = None) -> None:
        """Start or stop expecting draft blocks; stopping drops the tail.

        `patience_s` is how long to wait for them from now on; None is as configured.
        """
        self._speculation = enabled
        self._patience_s = self._configured_patience_s if patience_s is None else patience_s
        self._gave_up_waiting = False
        self._drafter_state = DrafterState.RUNNING
        if not enabled:
            self._discard(self.tail.clear(), "off")

    def add_block(self, block: DraftBlock, arrived: float | None = None) -> None:
        """Append a block to the draft tail, or drop what has become void.

        `arrived` is when it came: from then on the session waits for a pass. Raises
        `InvalidArgumentError` for a block that no correct drafter sends.
        """
        check_block(block, self.opening.vocab_size)
        if block.epoch < self.epoch or not self._speculation:
            self._discard(len(block.token_ids), "stale" if self._speculation else "off")
            return
        if block.epoch > self.epoch:
            self.epoch = block.epoch
            self._discard(self.tail.clear(), "stale")
        self._check_place(block)
        self._gave_up_waiting = self._has_no_idea(block)
        self._drafter_state = block.state
        self._known_committed = block.known_committed
        overlap = self.tokens[block.base : block.base + len(block.token_ids)]
        if overlap == list(block.token_ids[: len(overlap)]):
            self.tail.append(block, skip=len(overlap))
            self._note_discards(len(overlap), "known")
            if self.tail and self._ready_since is None:
                self._ready_since = arrived
        else:  # the drafter had guessed other tokens than were committed meanwhile
            self.epoch += 1
            self._discard(len(block.token_ids), "mismatch")
            self._drafter_state = DrafterState.RUNNING

    def _discard(self, num_tokens: int, reason: str) -> None:
        """Draft tokens go unjudged and in vain; for `reason` see `DISCARD_REASONS`."""
        self._num_discarded += num_tokens
        self._note_discards(num_tokens, reason)

    def _note_discards(self, num_tokens: int, reason: str) -> None:
        if num_tokens:
            self._discards[reason] = self._discards.get(reason, 0) + num_tokens

    def take_discards(self) -> dict[str, int]:
        """Draft tokens that went unjudged since the last call, by reason."""
        taken, self._discards = self._discards, {}
        return taken

    def _has_no_idea(self, block: DraftBlock) -> bool:
        """Whether the drafter has nothing to propose from here (prompt lookup without a match).

        It is then not asked token by token, which would cost a round trip each: what it finds
        later comes by itself, and what of it is still ahead gets judged.
        """
        is_empty = not block.token_ids and block.base <= block.known_committed
        return (
            is_empty
            and block.state is DrafterState.PAUSED
            and not self.opening.reproducible  # whether it comes in time must not matter there
        )

    def _check_place(self, block: DraftBlock) -> None:
        end = len(self.tokens) + len(self.tail)
        if block.base > end or (self.tail and block.base != end):
            raise InvalidArgumentError("base", f"{block.base} does not continue at {end}")
        if block.base < self.opening.prompt_length:
            raise InvalidArgumentError(
                "base", f"{block.base} lies in the prompt of {self.opening.prompt_length}"
            )
        outstanding = len(self.tail) + len(block.token_ids)
        if outstanding > self.opening.window:
            raise InvalidArgumentError(
                "token_ids",
                f"{outstanding} draft tokens outstanding, the window is {self.opening.window}",
            )

    # --- the next pass ----------------------------------------------------------------------

    def plan(self, now: float) -> PassPlan | None:
        """What to run next; None while the session waits for room, credit or drafts."""
        ready_at = self.ready_at(now)
        if ready_at is None or ready_at > now:
            return None
        if self._ready_since is None:
            self._ready_since = now
        # past its patience: until a block comes, a late drafter is not waited for
        self._gave_up_waiting |= not self.tail and self._expects_drafts()
        room = self._room()
        num_drafts = self._num_judged_next(room)
        takes_bonus = len(self.tail) == num_drafts < room and self._may_take_bonus()
        return PassPlan(self._num_uncached(), num_drafts, wants_next=num_drafts == 0 or takes_bonus)

    def _num_judged_next(self, room: int) -> int:
        """Drafts of the tail that the next pass judges."""
        if self._judges_by_block:
            return min(self.tail.first_block, room)
        return min(len(self.tail), self._max_drafts, room)

    def ready_at(self, now: float) -> float | None:
        """When `plan` has something; None if only an event can change that."""
        if self.table is None or self._room() < self._least_room():
            return None
        if self.tail or not self._expects_drafts():
            return now
        if self._idle_since is None:
            self._idle_since = now
        return self._idle_since + self._patience_s

    def _room(self) -> int:
        """Tokens that may be committed now."""
        return min(self.opening.max_length, self._committed_limit) - len(self.tokens)

    def _least_room(self) -> int:
        """Room without which nothing runs, where commit credit must not shape the output.

        Block verification takes no part of a block.
        """
        left = self.opening.max_length - len(self.tokens)
        if self.opening.reproducible and self._stops_and_waits:
            return max(1, min(len(self.tail) + 1, left))  # so that credit withholds no bonus
        if self._judges_by_block:
            return max(1, min(self.tail.first_block, left))
        return 1

    @property
    def num_cached(self) -> int:
        """Tokens in the KV cache."""
        return 0 if self.table is None else self.table.length

    def _num_uncached(self) -> int:
        return len(self.tokens) - self.num_cached

    def _expects_drafts(self) -> bool:
        """Whether waiting may bring drafts: not from a drafter that is off, late or at rest."""
        is_first = len(self.tokens) == len(self.opening.token_ids)  # drafting never delays it
        return (
            self._speculation
            and not self._gave_up_waiting
            and not is_first
            and not self._drafter_rests()
        )

    def _drafter_rests(self) -> bool:
        """Whether the drafter waits for us, with no verdict on the way that would wake it."""
        return self._drafter_state is DrafterState.ENDED or (
            self._drafter_state is DrafterState.PAUSED and self._known_committed == len(self.tokens)
        )

    def _may_take_bonus(self) -> bool:
        """Whether a token after full acceptance leaves the drafter's further drafts alive.

        A deterministic target token does not depend on the drafts: the drafter's next token is
        simply compared with it. A sampled one would mostly differ from what a running drafter
        guessed, and void more than it brings. And where the output must not depend on timing,
        whether the drafter rests may not decide, unless it always does after a block.
        """
        if self._params.is_deterministic or not self._speculation:
            return True
        return self._drafter_rests() and (self._stops_and_waits or not self.opening.reproducible)

    @property
    def _stops_and_waits(self) -> bool:
        """Whether the drafter always rests after a block."""
        return self.opening.window <= self.opening.num_speculative_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the rows of the prompt itself are asked for, and not read yet."""
        asked = self._params.prompt_logprobs is not None
        return asked and len(self.tokens) == self.opening.prompt_length

    def prompt_logprobs(self, base: int, logits: Tensor) -> PromptLogprobs:
        """Log-probabilities of the prompt's ids from `base` on, from their rows `[n, vocab]`."""
        token_ids = self.tokens[base : base + len(logits)]
        top_k = self._params.prompt_logprobs or 0
        entries = token_logprobs(logits, token_ids, top_k)
        return PromptLogprobs(
            self.opening.session_id, base, tuple(TokenLogprobs(*entry) for entry in entries)
        )

    def inputs(self, num_tokens: int) -> list[int]:
        """The first input ids of the next pass: uncached committed tokens, then drafts."""
        assert self.table is not None
        uncached = self.tokens[self.table.length :][:num_tokens]
        return uncached + self.tail.token_ids[: num_tokens - len(uncached)]

    def trial(self, plan: PassPlan) -> Trial:
        """What the judge needs to know of a planned pass."""
        drafts = tuple(self.tail.token_ids[: plan.num_drafts])
        return Trial(
            params=self._params,
            token_ids=self.tokens,
            prompt_length=self.opening.prompt_length,
            eos_token_ids=self.opening.eos_token_ids,
            draft_tokens=drafts,
            draft_probs=self.tail.draft_probs(plan.num_drafts),
            epoch=self.epoch,
            num_rows=plan.num_rows,
            masks=() if self._guidance is None else self._guidance.masks(drafts, plan.num_rows),
        )

    def distrust(self, error: PacelineError) -> None:
        """Keep the pages of a failed session from others, unless the request was to blame."""
        if self.table is not None and not isinstance(error, InvalidArgumentError):
            self.table.disown()

    def explained(self, error: PacelineError) -> PacelineError:
        """A judge's error, or what led to it."""
        return error if self._guidance is None else self._guidance.explained(error)

    def waited_us(self, started: float) -> int:
        """Microseconds from being ready to the start of a pass."""
        return 0 if self._ready_since is None else int((started - self._ready_since) * 1e6)

    def roll_back(self, plan: PassPlan) -> None:
        """Forget what a pass cached that failed before anything was committed."""
        assert self.table is not None
        self.table.truncate(min(self.table.length, len(self.tokens) - plan.num_uncached))

    # --- the one commit point ---------------------------------------------------------------

    def commit(self, plan: PassPlan, judgement: Judgement, timings: PassTimings) -> Verdict:
        """Make a judgement final: append tokens, cut at an end, roll the page table back."""
        assert self.table is not None
        if self._guidance is not None:
            judgement = self._guidance.settle(judgement, self.tail.token_ids)
        base = len(self.tokens)
        decided = self.tail.token_ids[: judgement.accepted_length]
        if judgement.next_token is not None:
            decided.append(judgement.next_token)
        committed, finish_reason = self._cut(decided)
        accepted_length = min(judgement.accepted_length, len(committed))
        has_next = len(committed) > accepted_length
        next_origin = self._next_origin(plan, judgement) if has_next else None
        self.tail.consume(plan.num_drafts)
        if judgement.accepted_length < plan.num_drafts:
            self.epoch += 1
            self._discard(self.tail.clear(), "rejected")
        self._idle_since = self._ready_since = None
        cached_prompt_tokens = self.num_reused if base == self.opening.prompt_length else 0
        self.tokens.extend(committed)
        self.table.truncate(min(self.table.length, len(self.tokens) - 1))
        discarded, self._num_discarded = self._num_discarded, 0
        return Verdict(
            session_id=self.opening.session_id,
            epoch=self.epoch,
            base=base,
            token_ids=tuple(committed),
            accepted_length=accepted_length,
            next_origin=next_origin,
            num_judged=plan.num_drafts,
            finish_reason=finish_reason,
            logprobs=tuple(TokenLogprobs(*row) for row in judgement.logprobs[: len(committed)]),
            kv_length=self.table.length,
            timings=timings,
            num_discarded=discarded,
            target_probs=judgement.target_probs[: len(committed)],
            cached_prompt_tokens=cached_prompt_tokens,
        )

    def _cut(self, decided: list[int]) -> tuple[list[int], FinishReason | None]:
        """Cut at the first end id or at `max_tokens`, token by token."""
        for count, token_id in enumerate(decided, start=1):
            if token_id in self._end_ids:
                return decided[:count], FinishReason.STOP
            if len(self.tokens) + count >= self.opening.max_length:
                return decided[:count], FinishReason.LENGTH
        return decided, None

    def _next_origin(self, plan: PassPlan, judgement: Judgement) -> Origin:
        if judgement.accepted_length < plan.num_drafts:
            return Origin.RECOVERED
        if plan.num_drafts:
            return Origin.BONUS
        is_first = len(self.tokens) == self.opening.prompt_length
        return Origin.PREFILL if is_first else Origin.AUTOREGRESSIVE
