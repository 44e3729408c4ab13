"""One session on the verifier: committed tokens, the draft tail, and what its next pass is."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.runtime.page_table import PageTable
from paceline.sampling.acceptance import Judgement
from paceline.sampling.logprobs import token_logprobs
from paceline.sampling.trial import Trial
from paceline.tree_shape import ROOT
from paceline.types import (
    DraftBlock,
    OpenSession,
    PassTimings,
    PromptLogprobs,
    TokenLogprobs,
    Verdict,
)
from verifier_service.decision import decide, end_ids_of
from verifier_service.discards import Discards
from verifier_service.draft_tail import DraftTail, check_block
from verifier_service.drafter_watch import DrafterWatch
from verifier_service.guidance import Guidance
from verifier_service.outcome_blocks import OutcomeBlocks
from verifier_service.plan import PassPlan, PassRules


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
        self.discards = Discards()
        self.outcomes = OutcomeBlocks(opening, self.discards)
        self.epoch = opening.epoch
        self.table: PageTable | None = None
        self.num_reused = 0
        """Tokens whose pages were found instead of computed."""
        self.last_served = 0
        self._params = opening.sampling
        self._committed_limit = opening.committed_limit
        self._max_drafts = max_drafts
        self._rules = PassRules.of(opening, max_drafts=max_drafts)
        self._drafter = DrafterWatch(
            is_on=opening.speculation,
            is_reproducible=opening.reproducible,
            patience_s=patience_s,
        )
        self._ready_since: float | None = None
        self._end_ids = end_ids_of(opening)

    # --- events -----------------------------------------------------------------------------

    def grant(self, committed_limit: int) -> None:
        """Extend the commit credit; it never shrinks."""
        self._committed_limit = max(self._committed_limit, committed_limit)

    def set_speculation(
        self, *, enabled: bool, patience_s: float | None = None, max_drafts: int | None = None
    ) -> None:
        """Start or stop expecting draft blocks; stopping drops the tail.

        `patience_s` is how long to wait for them from now on, `max_drafts` how many of them a pass
        judges at most; None is as configured.
        """
        self._drafter.switch(is_on=enabled, patience_s=patience_s)
        most = self._max_drafts if max_drafts is None else min(max_drafts, self._max_drafts)
        self._rules = replace(self._rules, max_drafts=most)
        if not enabled:
            self.outcomes.clear()
            self.discards.add(self.tail.clear(), "off")

    def add_block(self, block: DraftBlock, arrived: float | None = None) -> None:
        """Append a block to the draft tail, or drop what has become void.

        `arrived` is when it came: from then on the session waits for a pass. Raises
        `InvalidArgumentError` for a block that no correct drafter sends.
        """
        check_block(block, self.opening.vocab_size)
        if block.epoch < self.epoch or not self._drafter.is_on:
            self.discards.add(len(block.token_ids), "stale" if self._drafter.is_on else "off")
            return
        if block.outcome is not None and not self.outcomes.holds(block, self.tokens):
            self.outcomes.keep(block, epoch=self.epoch, num_committed=len(self.tokens))
            return
        if block.epoch > self.epoch:
            self.epoch = block.epoch
            self.outcomes.clear()
            self.discards.add(self.tail.clear(), "stale")
        self._check_place(block)
        self._drafter.hear(block)
        overlap = self.tokens[block.base : block.base + len(block.token_ids)]
        tree = block.tree
        is_overtaken = tree is not None and len(overlap) > tree.trunk
        if overlap == list(block.token_ids[: len(overlap)]) and not is_overtaken:
            self.tail.append(block, skip=len(overlap))
            if not self.tail:
                self._drafter.tail_ended()
            self.discards.add(len(overlap), "known", in_vain=False)
            if self.tail and self._ready_since is None:
                self._ready_since = arrived
        else:  # the drafter had guessed other tokens than were committed meanwhile
            self.epoch += 1
            wrong = next((i for i, t in enumerate(overlap) if t != block.token_ids[i]), 0)
            begun = self.tokens[: block.base + wrong + 1]
            self.outcomes.epoch_begins(self.epoch, begun)  # all that are for it come after
            self.discards.add(len(block.token_ids), "mismatch")
            self._drafter.assume_running()

    def _check_place(self, block: DraftBlock) -> None:
        end = len(self.tokens) + len(self.tail)
        if block.token_ids and self.tail.num_branching:
            raise InvalidArgumentError("base", f"{block.base} lies behind a draft that branches")
        if block.parents and self._rules.judges_chains:
            raise InvalidArgumentError("parents", "block verification judges chains")
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
        if not self.tail and self._expects_drafts():
            self._drafter.give_up()
        room = self._room()
        num_drafts = self._rules.num_judged(self.tail, room)
        takes_bonus = len(self.tail) == num_drafts < room and self._may_take_bonus()
        is_tree = num_drafts > self.tail.num_before_branches
        return PassPlan(
            self._num_uncached(),
            num_drafts,
            wants_next=num_drafts == 0 or takes_bonus or is_tree,
            is_tree=is_tree,
        )

    def ready_at(self, now: float) -> float | None:
        """When `plan` has something; None if only an event can change that."""
        least = self._rules.least_room(self.tail, self._left(), is_unsure=self._drafter.is_unsure)
        if self.table is None or self._room() < least:
            return None
        if self.tail or not self._expects_drafts():
            return now
        return self._drafter.waits_until(now)

    def _room(self) -> int:
        """Tokens that may be committed now."""
        return min(self.opening.max_length, self._committed_limit) - len(self.tokens)

    def _left(self) -> int:
        """Tokens to the session's full length."""
        return self.opening.max_length - len(self.tokens)

    @property
    def num_cached(self) -> int:
        """Tokens in the KV cache."""
        return 0 if self.table is None else self.table.length

    def _num_uncached(self) -> int:
        return len(self.tokens) - self.num_cached

    def _expects_drafts(self) -> bool:
        """Whether waiting may bring drafts; the first token is never delayed by drafting."""
        num_committed = len(self.tokens)
        is_first = num_committed == len(self.opening.token_ids)
        return not is_first and self._drafter.expects_drafts(num_committed)

    def _may_take_bonus(self) -> bool:
        return self._rules.may_take_bonus(
            is_drafting=self._drafter.is_on,
            drafter_rests=self._drafter.rests(len(self.tokens)),
            is_unsure=self._drafter.is_unsure,
        )

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the rows of the prompt itself are asked for, and not read yet."""
        asked = self._params.prompt_logprobs is not None
        return asked and len(self.tokens) == self.opening.prompt_length

    @property
    def is_stuck(self) -> bool:
        """Whether no pass can take a guided output any further."""
        return self._guidance is not None and self._guidance.is_stuck

    @property
    def sends_features(self) -> bool:
        """Whether the drafter is told the target's features; one that is off is not."""
        return self.opening.features and self._drafter.is_on

    @property
    def computes_all(self) -> bool:
        """Whether what others have cached is of no use: the rows themselves are asked for."""
        return self.wants_prompt_logprobs or self.opening.features

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

    def trial(self, plan: PassPlan, *, wants_probs: bool) -> Trial:
        """What the judge needs to know of a planned pass; for `wants_probs` see `Trial`."""
        drafts = tuple(self.tail.token_ids[: plan.num_drafts])
        tree = self.tail.tree(plan.num_drafts)
        guidance = self._guidance
        return Trial(
            params=self._params,
            token_ids=self.tokens,
            prompt_length=self.opening.prompt_length,
            eos_token_ids=self.opening.eos_token_ids,
            draft_tokens=drafts,
            draft_probs=self.tail.draft_probs(plan.num_drafts),
            epoch=self.epoch,
            num_rows=plan.num_rows,
            masks=() if guidance is None else guidance.masks(drafts, plan.num_rows, tree),
            wants_probs=wants_probs,
            tree=tree,
        )

    def _judged(self, plan: PassPlan, judgement: Judgement) -> list[int]:
        """The drafts of a pass; of a tree the accepted path, and one more if any was rejected."""
        drafts = self.tail.token_ids[: plan.num_drafts]
        tree = self.tail.tree(plan.num_drafts)
        if tree is None or judgement.path is None:
            return drafts
        rejected = tree.children(judgement.path[-1] if judgement.path else ROOT)
        return [drafts[node] for node in (*judgement.path, *rejected[:1])]

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

    def _begin_epoch(self) -> None:
        """A draft was rejected for the last committed token: go on with what was drafted for it."""
        self.epoch += 1
        self.discards.add(self.tail.clear(), "rejected")
        block = self.outcomes.epoch_begins(self.epoch, self.tokens)
        if block is not None:
            self.tail.append(block, skip=0)
            self._drafter.hear(block)

    # --- the one commit point ---------------------------------------------------------------

    def commit(self, plan: PassPlan, judgement: Judgement, timings: PassTimings) -> Verdict:
        """Make a judgement final: append tokens, cut at an end, roll the page table back."""
        assert self.table is not None
        drafts = self._judged(plan, judgement)
        if self._guidance is not None:
            judgement = self._guidance.settle(judgement, drafts)
        base = len(self.tokens)
        decision = decide(judgement, drafts, base=base, opening=self.opening, end_ids=self._end_ids)
        self.tokens.extend(decision.token_ids)
        self.tail.consume(plan.num_drafts)
        if plan.is_tree or judgement.accepted_length < plan.num_drafts:
            self._begin_epoch()
        self.outcomes.committed(len(self.tokens))
        self._ready_since = None
        self._drafter.end_wait()
        if not self.tail:
            self._drafter.tail_ended()
        cached_prompt_tokens = self.num_reused if base == self.opening.prompt_length else 0
        self.table.truncate(min(self.table.length, len(self.tokens) - 1))
        num_committed = len(decision.token_ids)
        return Verdict(
            session_id=self.opening.session_id,
            epoch=self.epoch,
            base=base,
            token_ids=tuple(decision.token_ids),
            accepted_length=decision.accepted_length,
            next_origin=decision.next_origin,
            num_judged=plan.num_drafts,
            finish_reason=decision.finish_reason,
            logprobs=tuple(TokenLogprobs(*row) for row in judgement.logprobs[:num_committed]),
            kv_length=self.table.length,
            timings=timings,
            num_discarded=self.discards.take_in_vain(),
            target_probs=judgement.target_probs[:num_committed],
            cached_prompt_tokens=cached_prompt_tokens,
        )
