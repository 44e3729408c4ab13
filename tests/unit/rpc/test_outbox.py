"""The coalescing queue."""

from __future__ import annotations

import asyncio

from paceline.rpc.outbox import Outbox


async def test_everything_that_accumulated_is_taken_at_once_and_in_order() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put([1, 2])
    outbox.put([3])
    assert await outbox.take() == [1, 2, 3]


async def test_take_waits_for_the_next_item() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put([1])
    await outbox.take()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put([])
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put([2])
    assert await taking == [2]


async def test_after_close_the_rest_is_taken_and_then_nothing() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put([1])
    outbox.close()
    outbox.put([2])
    assert await outbox.take() == [1]
    assert await outbox.take() == []
    assert await outbox.take() == []


async def test_close_wakes_a_waiting_consumer() -> None:
    outbox: Outbox[int] = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.close()
    assert await taking == []
