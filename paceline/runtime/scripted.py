"""A scripted model for tests and trials: any function of the token history, over real KV pages.

Its "attention" reads the history back through the page table, so that a fault in page accounting,
rollback or positions changes its output as it would a real model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable, fork_all
from paceline.runtime.runner import Chunk


class ScriptedRunner:
    """A `Runner` whose next-token logits are `script(token history)`, float32 `[vocab_size]`."""

    def __init__(
        self,
        script: Callable[[Sequence[int]], Tensor],
        *,
        vocab_size: int,
        context_length: int = 4096,
        num_pages: int = 256,
        page_size: int = 4,
    ) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.passes: list[list[tuple[int, int]]] = []
        """For each pass, the (new tokens, logits rows) of each chunk."""
        self._script = script
        self._cached_ids = [-1] * (num_pages * page_size)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self.passes.append([(len(chunk.token_ids), chunk.num_logits) for chunk in chunks])
        lengths = [chunk.table.length for chunk in chunks]
        try:
            rows = [row for chunk in chunks for row in self._run(chunk)]
        except BaseException:
            for chunk, length in zip(chunks, lengths, strict=True):
                chunk.table.truncate(length)
            raise
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size)

    def _run(self, chunk: Chunk) -> list[Tensor]:
        assert 0 <= chunk.num_logits <= len(chunk.token_ids) > 0
        table = chunk.table
        start = table.length
        table.grow(len(chunk.token_ids))
        for offset, token_id in enumerate(chunk.token_ids):
            self._cached_ids[table.slot(start + offset)] = token_id
        history = [self._cached_ids[table.slot(position)] for position in range(table.length)]
        first = table.length - chunk.num_logits + 1
        return [self._script(_seen(history, end, chunk)) for end in range(first, table.length + 1)]

    def keep(self, table: PageTable, start: int, nodes: Sequence[int]) -> None:
        for source, target in table.keep(start, nodes):
            self._cached_ids[target] = self._cached_ids[source]

    def fork(self, table: PageTable, lengths: Sequence[int], num_tokens: int) -> list[PageTable]:
        return fork_all(table, lengths, num_tokens, copy=self._copy)

    def _copy(self, pages: Sequence[tuple[int, int]]) -> None:
        size = self.pool.page_size
        for source, target in pages:
            held = self._cached_ids[source * size : (source + 1) * size]
            self._cached_ids[target * size : (target + 1) * size] = held


def _seen(history: list[int], end: int, chunk: Chunk) -> list[int]:
    """What the last of the first `end` tokens sees: all before it, or its path in a tree."""
    root = len(history) - (0 if chunk.tree is None else len(chunk.tree))
    if chunk.tree is None or end <= root:
        return history[:end]
    path = chunk.tree.paths[end - 1 - root]
    return history[:root] + [history[root + node] for node in path]


def table_script(
    rows: Mapping[int, Mapping[int, float]] | Callable[[int], Mapping[int, float]],
    vocab_size: int,
) -> Callable[[Sequence[int]], Tensor]:
    """A script from a table: last token → {next token: probability}; others get probability 0."""
    lookup = rows if callable(rows) else rows.__getitem__

    def script(history: Sequence[int]) -> Tensor:
        logits = torch.full((vocab_size,), float("-inf"))
        for token_id, probability in lookup(history[-1]).items():
            logits[token_id] = torch.log(torch.tensor(probability))
        return logits

    return script


def hashed_script(
    vocab_size: int, *, seed: int = 0, order: int = 3
) -> Callable[[Sequence[int]], Tensor]:
    """A script of reproducible pseudo-random logits of the last `order` tokens and the position."""

    @lru_cache(maxsize=4096)
    def logits(length: int, *last: int) -> Tensor:
        key = hash((seed, length, *last)) & 0x7FFF_FFFF
        generator = torch.Generator().manual_seed(key)
        return torch.randn(vocab_size, generator=generator) * 2.0

    return lambda history: logits(len(history), *history[-order:])
