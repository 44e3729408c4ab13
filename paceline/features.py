"""The target's features: its last hidden states, which some drafters draft from.

A position's feature is what the target's LM head reads there: the state after the last layer and
norm. It exists once the token at that position has been fed, so the last committed token has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Of consecutive positions from `base` on: bfloat16 `[num_positions, size]`, on the CPU."""

    base: int
    values: Tensor

    @staticmethod
    def of(base: int, hidden: Tensor) -> Features:
        """From a model's hidden states `[n, size]`, rounded to bfloat16."""
        return Features(base, hidden.to(device="cpu", dtype=torch.bfloat16))

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.base + len(self.values)

    def kept(self, rows: Sequence[int]) -> Features:
        """Some rows, which are of consecutive positions from `base` on."""
        return Features(self.base, self.values[list(rows)])

    def since(self, position: int) -> Features | None:
        """What is not before a position; None if nothing is left."""
        skipped = max(0, position - self.base)
        if skipped >= len(self.values):
            return None
        return Features(self.base + skipped, self.values[skipped:])
