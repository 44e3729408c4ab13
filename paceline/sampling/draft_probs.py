"""Draft distributions as they travel: dense over the vocabulary, or sparse over the kept ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError

SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class DraftProbs:
    """The numbers that a block's tokens were sampled from, one row a token.

    `ids` is int64 `[num_tokens, width]`, or None when dense (column i is id i). `probs` is float32
    `[num_tokens, width]` and each row sums to 1. Ids of positive probability are distinct within
    a row; entries of probability 0 may pad it.
    """

    ids: Tensor | None
    probs: Tensor

    @staticmethod
    def point_masses(token_ids: Sequence[int], device: torch.device | None = None) -> DraftProbs:
        """The distributions of a deterministic drafter: each gives its token probability 1."""
        ids = torch.tensor([[token_id] for token_id in token_ids], device=device)
        return DraftProbs(ids.view(-1, 1), torch.ones(len(token_ids), 1, device=device))

    @staticmethod
    def cat(parts: Sequence[DraftProbs]) -> DraftProbs:
        """The distributions of consecutive blocks, joined. All are dense or all are sparse."""
        if len(parts) == 1:
            return parts[0]
        dense = [part for part in parts if part.ids is None]
        if dense:
            if len({part.probs.shape[1] for part in parts}) > 1 or len(dense) < len(parts):
                raise InvalidArgumentError("draft_probs", "blocks of a session change their format")
            return DraftProbs(None, torch.cat([part.probs for part in parts]))
        width = max(part.probs.shape[1] for part in parts)
        padded = [part._padded(width) for part in parts]
        return DraftProbs(
            torch.cat([ids for ids, _ in padded]), torch.cat([probs for _, probs in padded])
        )

    def _padded(self, width: int) -> tuple[Tensor, Tensor]:
        """Ids and probs of a wider row. Padding repeats the first id with probability 0."""
        assert self.ids is not None
        rows, own_width = self.probs.shape
        padding = width - own_width
        return (
            torch.cat([self.ids, self.ids[:, :1].expand(rows, padding)], dim=1),
            torch.cat([self.probs, self.probs.new_zeros(rows, padding)], dim=1),
        )

    @property
    def num_tokens(self) -> int:
        return int(self.probs.shape[0])

    def rows(self, start: int, stop: int) -> DraftProbs:
        """The distributions of tokens `start` to `stop`, exclusive."""
        ids = None if self.ids is None else self.ids[start:stop]
        return DraftProbs(ids, self.probs[start:stop])

    def to(self, device: torch.device) -> DraftProbs:
        """The same numbers on another device."""
        ids = None if self.ids is None else self.ids.to(device)
        return DraftProbs(ids, self.probs.to(device))

    def prob_of(self, token_ids: Tensor) -> Tensor:
        """Each row's probability of its own token: int64 `[num_tokens]` to float64."""
        column = token_ids.unsqueeze(1)
        if self.ids is None:
            return self.probs.gather(1, column).squeeze(1).double()
        return torch.where(self.ids == column, self.probs, 0.0).sum(1).double()

    def own_probs(self, token_ids: Sequence[int]) -> list[float]:
        """Each row's probability of its own token."""
        probs: list[float] = self.prob_of(torch.tensor(list(token_ids))).tolist()
        return probs

    def at_ids(self, dense: Tensor) -> Tensor:
        """Entries of a `[num_tokens, vocab]` tensor at each row's ids: `[num_tokens, width]`."""
        return dense if self.ids is None else dense.gather(1, self.ids)

    def dense_row(self, row: int, vocab_size: int) -> Tensor:
        """One row over the whole vocabulary, `[vocab_size]`."""
        probs = self.probs[row]
        if self.ids is None:
            return probs
        return probs.new_zeros(vocab_size).index_add_(0, self.ids[row], probs)

    def check(self, vocab_size: int) -> None:
        """Raise `InvalidArgumentError` unless rows are distributions over `vocab_size` ids."""
        if self.probs.dim() != 2 or self.probs.shape[1] < 1:
            raise InvalidArgumentError("draft_probs", f"bad shape {tuple(self.probs.shape)}")
        if self.ids is None:
            if self.probs.shape[1] != vocab_size:
                raise InvalidArgumentError(
                    "draft_probs",
                    f"dense rows need {vocab_size} entries, got {self.probs.shape[1]}",
                )
        elif self.ids.shape != self.probs.shape:
            raise InvalidArgumentError("draft_probs", "ids and probs differ in shape")
        elif self.ids.numel() and not 0 <= int(self.ids.min()) <= int(self.ids.max()) < vocab_size:
            raise InvalidArgumentError(
                "draft_probs", f"ids must lie below the vocabulary size {vocab_size}"
            )
        elif self._repeats_an_id():
            raise InvalidArgumentError("draft_probs", "a row must name each id once")
        sums = self.probs.double().sum(1)
        # NaN fails both comparisons.
        if not bool((self.probs >= 0).all()) or not bool(((sums - 1).abs() < SUM_TOLERANCE).all()):
            raise InvalidArgumentError(
                "draft_probs", "each row must hold probabilities that sum to 1"
            )

    def _repeats_an_id(self) -> bool:
        assert self.ids is not None
        unique = -1 - torch.arange(self.ids.shape[1], device=self.ids.device)
        ordered = torch.where(self.probs > 0, self.ids, unique).sort(1).values
        return bool((ordered.diff(dim=1) == 0).any())
