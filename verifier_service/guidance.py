"""What a grammar does to one session's passes: masks before the judge, and a cut after it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.runtime.grammar import GrammarMatcher
from paceline.sampling.acceptance import Judgement


class Guidance:
    """The matcher of a session, which stands where its committed tokens end."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher
        self._num_masks = 0

    def masks(self, draft_tokens: Sequence[int], num_rows: int) -> tuple[Tensor | None, ...]:
        """One a row of the pass; see `GrammarMatcher.masks`."""
        masks = self._matcher.masks(draft_tokens, num_rows)
        self._num_masks = sum(mask is not None for mask in masks)
        return masks

    def settle(self, judgement: Judgement, draft_tokens: Sequence[int]) -> Judgement:
        """Take what the pass decided, as far as its rows had masks, and return that much.

        A row without one, after a draft that leads nowhere, is judged all the same, because a rule
        may look at a whole block; what it decides is no output. If the output cannot go on, the
        next pass finds that out at its first row.
        """
        decided = list(draft_tokens[: judgement.accepted_length])
        if judgement.next_token is not None:
            decided.append(judgement.next_token)
        taken = self._matcher.extend(decided[: self._num_masks])
        if taken == len(decided):
            return judgement
        accepted = min(judgement.accepted_length, taken)
        return Judgement(accepted, None, judgement.logprobs[:accepted])

    def explained(self, error: PacelineError) -> PacelineError:
        """A judge's error, or what led to it: a grammar that cannot go on."""
        problem = self._matcher.problem
        return InvalidArgumentError("grammar", problem) if problem else error
