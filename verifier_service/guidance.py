"""What a grammar does to one session's passes: masks before the judge, and a cut after it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from torch import Tensor

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.runtime.grammar import GrammarMatcher
from paceline.sampling.acceptance import Judgement
from paceline.tree_shape import TreeShape


class Guidance:
    """The matcher of a session, which stands where its committed tokens end."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher
        self._has_mask: list[bool] = []
        self.is_stuck = False
        """Whether the grammar refused the very token that its own mask allowed."""

    def masks(
        self, draft_tokens: Sequence[int], num_rows: int, tree: TreeShape | None = None
    ) -> tuple[Tensor | None, ...]:
        """One a row of the pass; see `GrammarMatcher.masks`. A node has its own path's."""
        if tree is None:
            masks = self._matcher.masks(draft_tokens, num_rows)
        else:
            masks = self._matcher.masks((), 1)
            if not self._matcher.problem:
                paths = ([draft_tokens[node] for node in path] for path in tree.paths)
                masks += tuple(self._matcher.mask_after(path) for path in paths)
            masks += (None,) * (num_rows - len(masks))
        self._has_mask = [mask is not None for mask in masks]
        return masks

    def settle(self, judgement: Judgement, draft_tokens: Sequence[int]) -> Judgement:
        """Take what the pass decided, as far as its rows had masks, and return that much.

        `draft_tokens` begin with the accepted ones.

        A row without one, after a draft that leads nowhere, is judged all the same, because a rule
        may look at a whole block; what it decides is no output. If the output cannot go on, the
        next pass finds that out at its first row.
        """
        decided = list(draft_tokens[: judgement.accepted_length])
        if judgement.next_token is not None:
            decided.append(judgement.next_token)
        rows = judgement.rows[: len(decided)]
        num_masks = sum(1 for _ in takewhile(lambda row: self._has_mask[row], rows))
        taken = self._matcher.extend(decided[:num_masks])
        if taken == len(decided):
            return judgement
        # the next pass would decide the same, and so for ever; a problem it finds at its first row
        self.is_stuck = not (taken or self._matcher.problem)
        accepted = min(judgement.accepted_length, taken)
        path = None if judgement.path is None else judgement.path[:accepted]
        return Judgement(accepted, None, judgement.logprobs[:accepted], path=path)

    def explained(self, error: PacelineError) -> PacelineError:
        """A judge's error, or what led to it: a grammar that cannot go on."""
        problem = self._matcher.problem
        return InvalidArgumentError("grammar", problem) if problem else error
