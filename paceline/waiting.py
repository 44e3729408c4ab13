"""Waiting for no longer than a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(awaitable: Awaitable[T], timeout_s: float) -> T:
    """What it gives. Raises `asyncio.TimeoutError` after `timeout_s`, when it has been cancelled.

    As `asyncio.wait_for`, which up to Python 3.11 loses a cancellation of the caller that comes
    just as the wait ends: who was told to stop would go on.
    """
    task = asyncio.ensure_future(awaitable)
    is_over = True
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        is_over = not task.done()
    finally:
        if not task.done():
            task.cancel()
        if is_over:  # its end is awaited, and nobody asks for an error of it any more
            await asyncio.gather(task, return_exceptions=True)
    if is_over and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
