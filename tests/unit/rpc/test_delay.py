"""The emulated network: later, in order, and together what was put together."""

from __future__ import annotations

import asyncio
import time

from paceline.rpc.delay import DelayLine

DELAY_S = 0.02


async def test_items_come_out_in_order_and_not_before_their_time() -> None:
    arrived: list[tuple[int, float]] = []
    everything = asyncio.Event()

    def deliver(items: list[int]) -> None:
        arrived.extend((item, time.perf_counter()) for item in items)
        if len(arrived) == 40:
            everything.set()

    line: DelayLine[int] = DelayLine(DELAY_S, deliver)
    line.start()
    put = []
    for item in range(40):
        put.append(time.perf_counter())
        line.put([item])
        if item % 3 == 0:
            await asyncio.sleep(0.001)
    await asyncio.wait_for(everything.wait(), 10)
    line.close()
    assert [item for item, _ in arrived] == list(range(40))
    held = [at - put[item] for item, at in arrived]
    assert min(held) >= DELAY_S
    assert sorted(held)[20] < DELAY_S + 0.01  # measured 0.3 ms on an idle machine


async def test_what_is_put_in_one_turn_of_the_loop_stays_together() -> None:
    batches: asyncio.Queue[list[int]] = asyncio.Queue()
    line: DelayLine[int] = DelayLine(0.001, batches.put_nowait)
    line.start()
    line.put([1])
    line.put([2, 3])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    line.put([4])
    assert await asyncio.wait_for(batches.get(), 10) == [1, 2, 3]
    assert await asyncio.wait_for(batches.get(), 10) == [4]
    line.close()


async def test_nothing_arrives_after_the_end() -> None:
    arrived: list[int] = []
    line: DelayLine[int] = DelayLine(0.01, arrived.extend)
    line.start()
    line.put([1])
    await asyncio.sleep(0)
    line.close()
    line.close()
    line.put([2])
    await asyncio.sleep(0.03)
    assert arrived == []
