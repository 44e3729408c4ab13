"""The K and V tensors of a page pool, allocated once, with exact byte accounting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches for a token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class LayerPages:
    """The pages of one layer, by page and (the same memory) by slot."""

    __slots__ = ("key_slots", "keys", "value_slots", "values")

    def __init__(
        self, shape: LayerShape, num_pages: int, page_size: int, device: torch.device
    ) -> None:
        pages = (num_pages, page_size, shape.kv_heads)
        # Zeros, not garbage: masked slots of a page take part in the arithmetic, and a stray NaN
        # would survive the mask.
        self.keys = torch.zeros((*pages, shape.key_dim), dtype=shape.dtype, device=device)
        self.values = torch.zeros((*pages, shape.value_dim), dtype=shape.dtype, device=device)
        self.key_slots = self.keys.view(num_pages * page_size, shape.kv_heads, shape.key_dim)
        self.value_slots = self.values.view(num_pages * page_size, shape.kv_heads, shape.value_dim)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store new tokens: `keys` and `values` are `[1, kv_heads, num_tokens, dim]`."""
        self.key_slots.index_copy_(0, slots, keys[0].transpose(0, 1))
        self.value_slots.index_copy_(0, slots, values[0].transpose(0, 1))


class KVStore:
    """K and V of every caching layer, addressed by the slots of one `PagePool`."""

    def __init__(
        self,
        shapes: Mapping[int, LayerShape],
        *,
        num_pages: int,
        page_size: int,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._device = device
        self.layers = {
            index: LayerPages(shape, num_pages, page_size, device)
            for index, shape in shapes.items()
        }
        self.num_bytes = bytes_needed(shapes, num_pages * page_size)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values from slot to slot, all of them as they were before."""
        if not moves:
            return
        sources, targets = torch.tensor(moves, device=self._device).T
        for layer in self.layers.values():
            for slots in (layer.key_slots, layer.value_slots):
                slots.index_copy_(0, targets, slots.index_select(0, sources))

    def copy(self, pages: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, given as (from, to); none is both.

        Behind a table's last token a page holds tokens that were taken back, or zeros: numbers.
        """
        if not pages:
            return
        sources, targets = torch.tensor(pages, device=self._device).T
        for layer in self.layers.values():
            for held in (layer.keys, layer.values):
                held.index_copy_(0, targets, held.index_select(0, sources))

    def clear(self, pages: Sequence[int]) -> None:
        """Zero some pages, so that nothing of an earlier session lies behind a later one's tokens.

        The mask hides such slots, but not a NaN or an infinity in them.
        """
        for layer in self.layers.values():
            for page in pages:
                layer.keys[page].zero_()
                layer.values[page].zero_()


def bytes_needed(shapes: Mapping[int, LayerShape], num_tokens: int) -> int:
    """Bytes of a store for so many tokens."""
    return num_tokens * sum(shape.bytes_per_token for shape in shapes.values())
