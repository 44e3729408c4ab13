"""What a session wants from the next pass, and the rules that limit it."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.sampling.params import Acceptance
from paceline.types import OpenSession
from verifier_service.draft_tail import DraftTail


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What a session wants from the next pass.

    The inputs are the uncached committed tokens and the first drafts of the tail; the pass judges
    `num_drafts` of them and, with `wants_next`, yields one token more. A tree always does, since
    its drafter rests: all of its nodes are inputs.
    """

    num_uncached: int
    num_drafts: int
    wants_next: bool
    is_tree: bool = False

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


@dataclass(frozen=True, slots=True)
class PassRules:
    """How much of a draft tail one pass judges; but for `max_drafts` fixed for a session's life."""

    max_drafts: int
    is_reproducible: bool
    is_deterministic: bool
    judges_by_block: bool
    """The block is what one pass judges, so how blocks are merged shapes the output."""
    judges_chains: bool
    """Block verification knows no drafts that branch."""
    stops_and_waits: bool
    """Whether the drafter always rests after a block."""

    @classmethod
    def of(cls, opening: OpenSession, *, max_drafts: int) -> PassRules:
        """The rules of a session that is opened so."""
        return cls(
            max_drafts=max_drafts,
            is_reproducible=opening.reproducible,
            is_deterministic=opening.sampling.is_deterministic,
            judges_by_block=(
                opening.reproducible and opening.sampling.acceptance is Acceptance.BLOCK
            ),
            judges_chains=(
                opening.sampling.acceptance is Acceptance.BLOCK
                and not opening.sampling.is_deterministic
            ),
            stops_and_waits=opening.window <= opening.num_speculative_tokens,
        )

    def num_judged(self, tail: DraftTail, room: int) -> int:
        """Drafts of the tail that the next pass judges; `room` is how many may be committed."""
        if self.judges_by_block:
            return min(tail.first_block, room)
        if tail.num_branching:
            return self._num_of_tree(tail, room)
        return min(len(tail), self.max_drafts, room)

    def _num_of_tree(self, tail: DraftTail, room: int) -> int:
        """The whole tail; else what is before its branches; else as many nodes as there may be.

        A tree yields a token besides its nodes.
        """
        most = max(1, min(self.max_drafts, room - 1))
        if len(tail) <= most or not tail.num_before_branches:
            return min(len(tail), most)
        return min(tail.num_before_branches, self.max_drafts, room)

    def least_room(self, tail: DraftTail, left: int, *, is_unsure: bool) -> int:
        """Room without which nothing runs, where commit credit must not shape the output.

        `left` is what is missing to the session's full length. Block verification takes no part
        of a block.
        """
        if tail.num_branching:  # so that credit prunes no tree
            return max(1, min(len(tail) + 1, left))
        if self.is_reproducible and (self.stops_and_waits or is_unsure):
            return max(1, min(len(tail) + 1, left))  # so that credit withholds no bonus
        if self.judges_by_block:
            return max(1, min(tail.first_block, left))
        return 1

    def may_take_bonus(self, *, is_drafting: bool, drafter_rests: bool, is_unsure: bool) -> bool:
        """Whether a token after full acceptance leaves the drafter's further drafts alive.

        A deterministic target token does not depend on the drafts: the drafter's next token is
        simply compared with it. A sampled one would mostly differ from what a running drafter
        guessed, and void more than it brings. And where the output must not depend on timing,
        whether the drafter rests may not decide, unless it always does after a block, or was unsure
        there, which the text decides.
        """
        if self.is_deterministic or not is_drafting or is_unsure:
            return True
        return drafter_rests and (self.stops_and_waits or not self.is_reproducible)
