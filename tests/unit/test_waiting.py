"""A bounded wait gives the result, or says that it is over; and a cancellation is never lost."""

from __future__ import annotations

import asyncio

import pytest

from paceline.waiting import within


async def test_what_comes_in_time_is_given() -> None:
    async def later() -> int:
        await asyncio.sleep(0)
        return 7

    assert await within(later(), 10) == 7
    with pytest.raises(ZeroDivisionError):
        await within(asyncio.to_thread(lambda: 1 // 0), 10)


async def test_what_does_not_is_cancelled() -> None:
    ended = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        await within(for_ever(), 0.01)
    assert ended == [True]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_as_the_wait_ends_is_not_lost(turns: int) -> None:
    """`asyncio.wait_for` loses it on Python 3.10 and 3.11."""
    happened, went_on = asyncio.Event(), []

    async def waits() -> None:
        await within(happened.wait(), 10)
        await asyncio.sleep(0.05)
        went_on.append(True)

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    happened.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on


async def test_a_cancellation_of_its_own_is_no_timeout() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await within(cancelled(), 10)
