"""Which sessions share an attention call, and what each of them sees."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime.page_pool import PagePool
from paceline.runtime.ragged_step import (
    CALL_COST,
    RaggedStep,
    Span,
    group_spans,
    padded_cost,
)

CPU = torch.device("cpu")


def _spans(shapes: list[tuple[int, int]], page_size: int = 4) -> list[Span]:
    """Spans of (cached tokens, new tokens), with pages handed out in turns."""
    pool = PagePool(1000, page_size)
    tables = [pool.open_table(cached + new) for cached, new in shapes]
    for position in range(max(cached + new for cached, new in shapes)):
        for table, (cached, new) in zip(tables, shapes, strict=True):
            table.grow(1 if position < cached + new else 0)
    return [Span(t, c, c + n) for t, (c, n) in zip(tables, shapes, strict=True)]


def test_similar_sessions_share_one_call() -> None:
    spans = _spans([(100 + i, 5) for i in range(16)])

    assert [sorted(group) for group in group_spans(spans)] == [list(range(16))]


def test_a_long_prefill_does_not_pad_decoding_sessions() -> None:
    groups = group_spans(_spans([(60, 1), (0, 256), (70, 1), (65, 1)]))

    assert sorted(sorted(group) for group in groups) == [[0, 2, 3], [1]]


def test_a_session_with_a_long_past_stands_alone() -> None:
    groups = group_spans(_spans([(30, 4), (3000, 4), (40, 4)]))

    assert sorted(sorted(group) for group in groups) == [[0, 2], [1]]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 60)), min_size=1, max_size=12))
def test_groups_partition_the_sessions_and_never_cost_more_than_solo_calls(
    shapes: list[tuple[int, int]],
) -> None:
    pool = PagePool(1, 1)
    table = pool.open_table(0)
    spans = [Span(table, cached, cached + new) for cached, new in shapes]

    groups = group_spans(spans)

    assert sorted(i for group in groups for i in group) == list(range(len(shapes)))
    cost = sum(
        CALL_COST
        + padded_cost(
            len(group),
            max(spans[i].num_tokens for i in group),
            max(spans[i].stop for i in group),
        )
        for group in groups
    )
    solo = sum(CALL_COST + padded_cost(1, span.num_tokens, span.stop) for span in spans)
    assert cost <= solo


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 7)), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 20),
    heads=st.integers(1, 3),
)
def test_every_query_sees_exactly_the_positions_that_it_should(
    shapes: list[tuple[int, int]], window: int | None, heads: int
) -> None:
    spans = _spans(shapes)
    step = RaggedStep(spans, 4, CPU)
    row = 0
    for group, members in zip(step.groups, group_spans(spans), strict=True):
        layout = group.layout(window, heads, torch.float32)
        slots = (layout.pages[:, None] * 4 + torch.arange(4)).view(group.num_sessions, -1)
        slots = slots[:, : layout.num_slots]
        seen = torch.ones(group.num_sessions, 1, heads * group.num_queries, layout.num_slots)
        if layout.mask is not None:
            assert layout.mask.shape == seen.shape
            seen = layout.mask.exp()
        by_head = seen.view(group.num_sessions, heads, group.num_queries, layout.num_slots)
        assert group.first_row == row
        for place, index in enumerate(members):
            span = spans[index]
            for query, position in enumerate(range(span.start, span.stop)):
                oldest = 0 if window is None else max(0, position - window + 1)
                wanted = [span.table.slot(p) for p in range(oldest, position + 1)]
                for head in range(heads):
                    visible = slots[place][by_head[place, head, query] > 0]
                    assert visible.tolist() == wanted
            row += span.num_tokens
    assert row == step.num_rows == sum(new for _, new in shapes)


def test_new_tokens_are_written_to_their_own_slots_in_the_order_of_the_pass() -> None:
    spans = _spans([(3, 2), (10, 1), (0, 6)])

    step = RaggedStep(spans, 4, CPU)

    expected = [
        spans[index].table.slot(position)
        for index in step.order
        for position in range(spans[index].start, spans[index].stop)
    ]
    assert step.slots.tolist() == expected


def test_a_decoding_session_alone_needs_no_mask_and_no_padding() -> None:
    (group,) = RaggedStep(_spans([(9, 1)]), 4, CPU).groups

    layout = group.layout(None, 3, torch.float32)

    assert (layout.mask, layout.num_slots) == (None, 10)
    assert (group.padded_rows, group.kept_rows) == (None, None)


def test_a_window_reads_only_the_pages_that_it_reaches() -> None:
    (group,) = RaggedStep(_spans([(100, 1)]), 4, CPU).groups

    assert len(group.layout(8, 1, torch.float32).pages) == 3
    assert len(group.layout(None, 1, torch.float32).pages) == 26
