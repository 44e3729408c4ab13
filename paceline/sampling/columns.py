"""Logits of some of a vocabulary's ids only, as a drafter of a reduced vocabulary gives them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Which ids of a vocabulary the columns of narrow logits stand for; the others are never drawn.

    `token_ids` is int64 `[n]`, ascending, on the device of the logits; `vocab_size` counts all ids.
    """

    token_ids: Tensor
    vocab_size: int

    def __len__(self) -> int:
        return len(self.token_ids)

    def below(self, vocab_size: int) -> Columns:
        """The columns of ids below `vocab_size`, which are the first ones."""
        if vocab_size >= self.vocab_size:
            return self
        return Columns(self.token_ids[self.token_ids < vocab_size], vocab_size)

    def widen(self, values: Tensor, *, fill: float) -> Tensor:
        """`[R, n]` to `[R, vocab_size]`, with `fill` at the ids that have no column."""
        wide = values.new_full((len(values), self.vocab_size), fill)
        return wide.index_copy_(1, self.token_ids, values)

    def ids_at(self, places: Tensor) -> Tensor:
        """The ids of some columns, in a tensor of any shape."""
        return self.token_ids[places]
