"""The seam between engines and models: one ragged forward over many sessions' new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable
from paceline.tree_shape import TreeShape


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one session: `token_ids` follow the `table.length` tokens already cached.

    `num_logits` asks for logits of the last so many tokens; 0 for a prefill chunk that is not
    the prompt's last. With a `tree` the table's last tokens, once these are in, are its nodes: a
    node sees the tokens before the tree, its ancestors and itself, and its position is its depth.
    """

    table: PageTable
    token_ids: Sequence[int]
    num_logits: int
    tree: TreeShape | None = None


class Runner(Protocol):
    """A model over a paged KV pool. Used by one engine thread only."""

    pool: PagePool
    vocab_size: int
    """Columns of the logits: the tokenizer's ids, padded rows of the model cut off."""
    context_length: int

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run one ragged pass; each table grows by its chunk's tokens.

        Returns logits float32 or the model's dtype `[sum of num_logits, vocab_size]`, rows in the
        order of `chunks` and of positions within each. A table that a failed pass had grown is
        back at its old length when the error reaches the caller.
        """
        ...

    def keep(self, table: PageTable, start: int, nodes: Sequence[int]) -> None:
        """Of a tree whose nodes are cached from `start` on, keep one path and forget the rest.

        `nodes` are those of the path, downwards: they come to stand at `start`, `start + 1`, …
        What is cached of them is moved, not computed again.
        """
        ...

    def fork(self, table: PageTable, lengths: Sequence[int], num_tokens: int) -> list[PageTable]:
        """Tables that continue the first so many tokens of another, by `num_tokens` at most.

        They share what is cached of them but for a page that is not full, which is copied. There
        are fewer than `lengths` where there is no room for all.
        """
        ...
