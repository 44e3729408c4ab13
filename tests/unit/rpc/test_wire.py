"""Batches stay under the message limit, in order, and an item that fits none is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import ResourceExhaustedError
from paceline.rpc.codec.drafter import DRAFTER_LINK
from paceline.types import Advance

EVENTS = DRAFTER_LINK.events


def advance(session_id: int, num_tokens: int) -> Advance:
    return Advance(session_id, epoch=0, base=0, token_ids=(2**31 - 1,) * num_tokens)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=30), st.integers(300, 1200))
def test_batches_keep_order_and_never_exceed_the_limit(sizes: list[int], limit: int) -> None:
    items = [advance(index, size) for index, size in enumerate(sizes)]
    entries = [EVENTS.entry(item, max_bytes=limit) for item in items]
    batches = list(EVENTS.pack(entries, max_bytes=limit))
    assert all(len(batch.SerializeToString()) <= limit for batch in batches)
    assert [item for batch in batches for item, _ in EVENTS.unpack(batch)] == items
    joined = [first.ByteSize() + second.ByteSize() for first, second in itertools.pairwise(batches)]
    # As few as the order allows, up to the bound on an entry's overhead.
    assert all(size > limit - 40 * 6 - 250 for size in joined)


def test_what_fits_together_travels_as_one_message() -> None:
    entries = [EVENTS.entry(advance(index, 3), max_bytes=10_000) for index in range(64)]
    assert len(list(EVENTS.pack(entries, max_bytes=10_000))) == 1


def test_an_item_larger_than_any_message_is_refused_with_the_numbers() -> None:
    """G05: a clear error instead of a broken stream."""
    size = EVENTS.entry(advance(1, 100), max_bytes=10_000).size
    with pytest.raises(ResourceExhaustedError, match=rf"Advance of {size} bytes .*\({size}\)"):
        EVENTS.entry(advance(1, 100), max_bytes=size)
