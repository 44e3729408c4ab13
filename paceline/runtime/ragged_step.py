"""The plan of one ragged pass: which sessions share an attention call, and the index tensors of it.

Everything here is built once a pass and used by all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.runtime.page_table import PageTable
from paceline.tree_shape import TreeShape

# Cost of one more attention call, in units of gathering one cached token (measured on a CPU; on a
# GPU a call is dearer still, so fewer groups only help).
CALL_COST = 1000.0


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one session: those from `start` to `stop`, exclusive, of its table.

    A token's place in the table is its position, but for the nodes of a `tree`, the table's last
    ones, whose positions are their depths after what precedes them.
    """

    table: PageTable
    start: int
    stop: int
    tree: TreeShape | None = None

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def positions(self) -> Sequence[int]:
        """Of the new tokens."""
        if self.tree is None:
            return range(self.start, self.stop)
        root = self.stop - len(self.tree)
        nodes = self.tree.depths[max(0, self.start - root) :]
        return [*range(self.start, root), *(root + depth for depth in nodes)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which cached tokens a group reads under one sliding window.

    `pages` is int64 `[num_sessions * num_pages]`; short sessions repeat their last page. Of the
    slots of a session's pages the first `num_slots` are read. `mask` is additive, `[num_sessions,
    1, heads_per_kv_head * num_queries, num_slots]`, or None when every query sees all of them.
    """

    pages: Tensor
    num_pages: int
    num_slots: int
    mask: Tensor | None


class Group:
    """Sessions that share one attention call, padded to the longest of them.

    Their new tokens are rows `first_row` to `first_row + num_rows` of the pass, in order. With
    unequal numbers of new tokens, `padded_rows` `[num_sessions * num_queries]` picks the padded
    queries from the group's rows, and `kept_rows` `[num_rows]` the real results.
    """

    def __init__(
        self, spans: Sequence[Span], first_row: int, page_size: int, device: torch.device
    ) -> None:
        self.num_sessions = len(spans)
        self.num_queries = max(span.num_tokens for span in spans)
        self.first_row = first_row
        self.num_rows = sum(span.num_tokens for span in spans)
        self.padded_rows: Tensor | None = None
        self.kept_rows: Tensor | None = None
        self._spans = spans
        self._page_size = page_size
        self._device = device
        self._layouts: dict[tuple[int | None, int, torch.dtype], Layout] = {}
        if self.num_rows != self.num_sessions * self.num_queries:
            self._pad_queries()

    def layout(self, window: int | None, heads_per_kv_head: int, dtype: torch.dtype) -> Layout:
        """The pages and mask for layers of one kind; built on first use.

        A query at position p sees positions `p - window + 1` to p, or 0 to p without a window.
        """
        key = (window, heads_per_kv_head, dtype)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = self._build(window, heads_per_kv_head, dtype)
        return found

    def _pad_queries(self) -> None:
        padded: list[int] = []
        kept: list[int] = []
        row = 0
        for index, span in enumerate(self._spans):
            rows = range(row, row + span.num_tokens)
            padded += [*rows, *[row] * (self.num_queries - span.num_tokens)]
            kept += range(index * self.num_queries, index * self.num_queries + span.num_tokens)
            row += span.num_tokens
        self.padded_rows = index_tensor(padded, self._device)
        self.kept_rows = index_tensor(kept, self._device)

    def _build(self, window: int | None, heads_per_kv_head: int, dtype: torch.dtype) -> Layout:
        size = self._page_size
        oldest = [
            0 if window is None else max(0, min(s.positions) - window + 1) for s in self._spans
        ]
        first_pages = [position // size for position in oldest]
        counts = [
            -(-span.stop // size) - first
            for span, first in zip(self._spans, first_pages, strict=True)
        ]
        width = max(counts)
        pages: list[int] = []
        for span, first, count in zip(self._spans, first_pages, counts, strict=True):
            own = span.table.pages[first : first + count]
            pages += own + own[-1:] * (width - count)
        offsets = [first * size for first in first_pages]
        lengths = [s.stop - offset for s, offset in zip(self._spans, offsets, strict=True)]
        num_slots = max(lengths)
        all_visible = (
            self.num_queries == 1
            and min(lengths) == num_slots
            and oldest == offsets
            and all(span.tree is None for span in self._spans)
        )
        return Layout(
            pages=index_tensor(pages, self._device),
            num_pages=width,
            num_slots=num_slots,
            mask=None
            if all_visible
            else self._mask(window, offsets, num_slots, heads_per_kv_head, dtype),
        )

    def _mask(
        self,
        window: int | None,
        offsets: Sequence[int],
        num_slots: int,
        heads_per_kv_head: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Who sees whom. The only place that knows.

        Key j of a session is token `offsets[session] + j` of its table.
        """
        # Padded queries repeat the span's first, so that each row sees at least one key.
        positions = [
            [*range(s.start, s.stop), *[s.start] * (self.num_queries - s.num_tokens)]
            for s in self._spans
        ]
        queries = index_tensor(positions, self._device)[:, :, None]
        keys = torch.arange(num_slots, device=self._device)
        keys = keys + index_tensor(offsets, self._device)[:, None, None]
        hidden = keys > queries
        if window is not None:
            hidden |= keys <= queries - window
        for own, span, offset in zip(hidden, self._spans, offsets, strict=True):
            if span.tree is not None:
                nodes = hidden_from_nodes(span, span.tree, window, offset, num_slots)
                end = span.num_tokens
                own[end - len(nodes) : end] = nodes.to(self._device)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device)
        mask.masked_fill_(hidden, float("-inf"))
        return mask.repeat(1, heads_per_kv_head, 1)[:, None]


def hidden_from_nodes(
    span: Span, tree: TreeShape, window: int | None, offset: int, num_slots: int
) -> Tensor:
    """What the span's new nodes must not see: bool `[num_new_nodes, num_slots]`.

    Key j is token `offset + j` of the table.
    """
    root = span.stop - len(tree)
    new = range(max(0, span.start - root), len(tree))
    tokens = torch.arange(offset, offset + num_slots)
    hidden = (tokens >= root).repeat(len(new), 1)
    for row, node in enumerate(new):
        seen = [root + ancestor - offset for ancestor in tree.paths[node]]
        hidden[row, [slot for slot in seen if slot >= 0]] = False
    if window is not None:
        depths = torch.tensor(tree.depths)
        positions = tokens.clone()
        first = max(root, offset)
        positions[first - offset : span.stop - offset] = root + depths[first - root :]
        hidden |= positions <= root + depths[new.start :, None] - window
    return hidden


class RaggedStep:
    """One pass: groups in the order of their rows, and the slot of every new token.

    `order` lists the spans' indices in the order in which their tokens stand in the pass.
    """

    def __init__(self, spans: Sequence[Span], page_size: int, device: torch.device) -> None:
        members = group_spans(spans)
        self.order = [index for group in members for index in group]
        self.groups: list[Group] = []
        row = 0
        for indices in members:
            group = Group([spans[index] for index in indices], row, page_size, device)
            self.groups.append(group)
            row += group.num_rows
        self.num_rows = row
        slots: list[int] = []
        for index in self.order:
            span = spans[index]
            pages = span.table.pages
            slots += [
                pages[position // page_size] * page_size + position % page_size
                for position in range(span.start, span.stop)
            ]
        self.slots = index_tensor(slots, device)


def index_tensor(values: Sequence[Any], device: torch.device) -> Tensor:
    """An int64 tensor of (nested) lists on the device; a GPU is not waited for."""
    host = torch.tensor(values, dtype=torch.long, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


def group_spans(spans: Sequence[Span]) -> list[list[int]]:
    """Partition spans into attention calls so that padding never costs more than a call saves.

    Each span, longest first, joins the group where its padding is cheapest or opens a new one.
    """
    order = sorted(range(len(spans)), key=lambda i: (spans[i].stop, spans[i].num_tokens))
    groups: list[list[int]] = []
    sizes: list[tuple[int, int]] = []  # (longest new tokens, longest cached tokens) of each group
    for index in reversed(order):
        queries, keys = spans[index].num_tokens, spans[index].stop
        best, best_cost = -1, CALL_COST + padded_cost(1, queries, keys)
        for place, (group_queries, group_keys) in enumerate(sizes):
            count = len(groups[place])
            joined = padded_cost(count + 1, max(queries, group_queries), max(keys, group_keys))
            cost = joined - padded_cost(count, group_queries, group_keys)
            if cost < best_cost:
                best, best_cost = place, cost
        if best < 0:
            groups.append([index])
            sizes.append((queries, keys))
        else:
            groups[best].append(index)
            sizes[best] = (max(queries, sizes[best][0]), max(keys, sizes[best][1]))
    return groups


def padded_cost(num_sessions: int, num_queries: int, num_keys: int) -> float:
    """Work of one call: reading the cached tokens, and a quarter of that for each query row."""
    return num_sessions * num_keys * (1 + num_queries / 4)
