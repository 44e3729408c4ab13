"""What the judge is told of one session's part of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.sampling.acceptance import Judgement
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import SamplingParams
from paceline.sampling.probabilities import RowContext
from paceline.tree_shape import TreeShape


@dataclass(frozen=True, slots=True)
class Trial:
    """One session's part of a pass.

    `token_ids` are the committed tokens, the first `prompt_length` of them the prompt. The pass
    gave `num_rows` rows of logits: row i is the target's law of position `len(token_ids) + i`
    given `token_ids + draft_tokens[:i]`. So `num_rows` is `len(draft_tokens)`, or one more with a
    row for the token after the drafts (bonus); an autoregressive step has no drafts and one row.
    `draft_probs` None: each draft is a point mass. `masks` has one a row, or is empty: no masks.
    `wants_probs`: a sampled judgement tells the target's probabilities of what it commits.
    With a `tree` the drafts are its nodes, and row i + 1 is the law after node i and its ancestors;
    `draft_probs` has for each node what its first sibling was drawn from. From `void_rows` no
    token can come: what they hold is taken for what it is, and decides nothing.
    """

    params: SamplingParams
    token_ids: Sequence[int]
    prompt_length: int
    eos_token_ids: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    draft_probs: DraftProbs | None
    epoch: int
    num_rows: int
    masks: tuple[Tensor | None, ...] = ()
    wants_probs: bool = False
    tree: TreeShape | None = None
    void_rows: frozenset[int] = frozenset()

    @property
    def contexts(self) -> list[RowContext]:
        """One a row."""
        return [self._context(row) for row in range(self.num_rows)]

    def _context(self, row: int) -> RowContext:
        params, mask = self.params, self.masks[row] if self.masks else None
        if row in self.void_rows:
            mask = None
            params = SamplingParams(
                temperature=params.temperature, seed=params.seed, acceptance=params.acceptance
            )
        return RowContext(
            params,
            self.token_ids,
            self.prompt_length,
            self.eos_token_ids,
            self._drafts_before(row),
            mask,
        )

    def _drafts_before(self, row: int) -> tuple[int, ...]:
        if self.tree is None or row == 0:
            return self.draft_tokens[:row]
        return tuple(self.draft_tokens[node] for node in self.tree.paths[row - 1])

    def committed(self, judgement: Judgement) -> list[int]:
        """The tokens that a judgement accepts, and the one after them if there is one."""
        tokens = list(self.draft_tokens[: judgement.accepted_length])
        if judgement.path is not None:
            tokens = [self.draft_tokens[node] for node in judgement.path]
        if judgement.next_token is not None:
            tokens.append(judgement.next_token)
        return tokens

    @property
    def positions(self) -> range:
        """Absolute indices of the tokens that the rows predict."""
        return range(len(self.token_ids), len(self.token_ids) + self.num_rows)
