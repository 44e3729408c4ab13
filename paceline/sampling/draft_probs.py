"""Draft distributions as they travel: dense over the vocabulary, or sparse over the kept ids."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftProbs:
    """The numbers that a block's tokens were sampled from, one row a token.

    `ids` is int64 `[num_tokens, width]`, distinct within a row, or None when dense (column i is
    id i). `probs` is float32 `[num_tokens, width]` and each row sums to 1. Entries of probability
    0 may pad a row.
    """

    ids: Tensor | None
    probs: Tensor

    @property
    def num_tokens(self) -> int:
        return int(self.probs.shape[0])

    def rows(self, start: int, stop: int) -> DraftProbs:
        """The distributions of tokens `start` to `stop`, exclusive."""
        ids = None if self.ids is None else self.ids[start:stop]
        return DraftProbs(ids, self.probs[start:stop])
