"""The part of a draft block that branches, from its sending to its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.sampling.draw import Draw
from paceline.tree_shape import TreeShape


@dataclass(frozen=True, slots=True)
class Branches:
    """The nodes of a tree after the first `base` tokens of the sequence."""

    base: int
    draws: Sequence[Draw]
    shape: TreeShape

    def parents_behind(self, num_tokens: int) -> tuple[int, ...]:
        """The parents in a block that has so many tokens before the first branch."""
        before = range(-1, num_tokens - 1)
        return (*before, *(parent + num_tokens for parent in self.shape.parents))

    def num_true(self, tokens: Sequence[int]) -> int:
        """How many nodes a sequence follows."""
        own = [draw.token_id for draw in self.draws]
        return len(self.shape.walk(own, tokens[self.base :]))
