"""A Hugging Face causal LM, unchanged, as a `Runner` over a paged KV pool."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.runtime.feature_tap import FeatureTap
from paceline.runtime.kv_cache import PagedCache
from paceline.runtime.kv_store import KVStore
from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable, fork_all
from paceline.runtime.ragged_step import RaggedStep, Span, index_tensor
from paceline.runtime.runner import Chunk


class ModelRunner:
    """Runs many sessions' new tokens as one sequence; see `Runner` for the contract.

    The model's attention must be `ragged_attention` already; `build_runner` sees to that.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        store: KVStore,
        pool: PagePool,
        *,
        vocab_size: int,
        context_length: int,
    ) -> None:
        self.pool = pool
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._model = model
        self._store = store
        self._device = model.device
        self._cache_argument = cache_argument(model)
        self._tap = FeatureTap(model)
        self.feature_size = self._tap.size
        self._selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def kv_bytes(self) -> int:
        """Bytes of the K and V tensors."""
        return self._store.num_bytes

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run one ragged pass: logits `[sum of num_logits, vocab_size]` in the model's dtype.

        Each table must appear once, and each chunk hold at least one token. If the pass raises,
        the tables are as long as before.
        """
        return self._forward(chunks)[0]

    def forward_with_features(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[Tensor]]:
        """The same pass, and the last hidden states; see `FeatureSource`."""
        with self._tap.listening():
            logits, ends = self._forward(chunks)
        hidden = self._tap.take()
        parts = zip(chunks, ends, strict=True)
        return logits, [hidden[end - len(chunk.token_ids) : end] for chunk, end in parts]

    def _forward(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[int]]:
        """Logits, and the row after each chunk's last in the pass."""
        lengths = [chunk.table.length for chunk in chunks]
        try:
            for chunk in chunks:
                self._grow(chunk)
            return self._run(chunks, lengths)
        except BaseException:
            for chunk, length in zip(chunks, lengths, strict=True):
                chunk.table.truncate(length)
            raise

    @torch.inference_mode()
    def keep(self, table: PageTable, start: int, nodes: Sequence[int]) -> None:
        """Keep one path of a tree; see `Runner`."""
        self._store.move(table.keep(start, nodes))

    @torch.inference_mode()
    def fork(self, table: PageTable, lengths: Sequence[int], num_tokens: int) -> list[PageTable]:
        """Tables that continue another; see `Runner`."""
        return fork_all(table, lengths, num_tokens, copy=self._store.copy)

    def _grow(self, chunk: Chunk) -> None:
        assert 0 <= chunk.num_logits <= len(chunk.token_ids) > 0
        table = chunk.table
        num_pages = len(table.pages)
        table.grow(len(chunk.token_ids))
        if len(table.pages) > num_pages and table.length % self.pool.page_size:
            self._store.clear(table.pages[-1:])

    @torch.inference_mode()
    def _run(self, chunks: Sequence[Chunk], lengths: Sequence[int]) -> tuple[Tensor, list[int]]:
        spans = [
            Span(chunk.table, length, chunk.table.length, chunk.tree)
            for chunk, length in zip(chunks, lengths, strict=True)
        ]
        step = RaggedStep(spans, self.pool.page_size, self._device)
        token_ids: list[int] = []
        positions: list[int] = []
        ends = [0] * len(chunks)  # row after each chunk's last
        for index in step.order:
            token_ids += chunks[index].token_ids
            positions += spans[index].positions
            ends[index] = len(token_ids)
        rows = [
            row
            for chunk, end in zip(chunks, ends, strict=True)
            for row in range(end - chunk.num_logits, end)
        ]
        inputs = index_tensor([token_ids, positions], self._device)
        wanted = index_tensor(rows, self._device)
        arguments: dict[str, Any] = {self._cache_argument: PagedCache(self._store, step)}
        if self._selects_rows:
            arguments["logits_to_keep"] = wanted
        logits: Tensor = self._model(
            input_ids=inputs[:1], position_ids=inputs[1:], use_cache=True, **arguments
        ).logits[0]
        if not self._selects_rows:
            logits = logits.index_select(0, wanted)
        return logits[:, : self.vocab_size], ends


def cache_argument(model: PreTrainedModel) -> str:
    """The name under which the model takes its cache; it changed within transformers 5."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
