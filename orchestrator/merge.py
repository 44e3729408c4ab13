"""Several streams as one, in the order in which their items come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    """A stream has ended, by itself or by an error."""

    error: BaseException | None


async def merge(
    streams: Sequence[AsyncGenerator[T, None]], *, at_once: int | None = None
) -> AsyncGenerator[T, None]:
    """Yield the items of all streams; the first error ends them all.

    At most `at_once` of them are begun and not at their end; None: all of them.
    No stream is read further ahead than one item, so a slow reader slows them all. However this
    ends, every stream has been closed. A single one is read by whoever reads this, without a task
    of its own that each item would have to pass through.
    """
    if len(streams) == 1 and (at_once is None or at_once > 0):
        async with aclosing(streams[0]) as stream:
            async for each in stream:
                yield each
        return
    items: asyncio.Queue[T | _End] = asyncio.Queue(maxsize=1)
    closing = False
    places = asyncio.Semaphore(len(streams) if at_once is None else at_once)

    async def read(stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream), places:
                async for item in stream:
                    await items.put(item)
        except (Exception, asyncio.CancelledError) as error:
            if closing:
                raise
            # a cancellation from elsewhere is an end too: who reads would wait for ever
            await items.put(_End(error))
        else:
            await items.put(_End(None))

    readers = [asyncio.create_task(read(stream)) for stream in streams]
    num_live = len(streams)
    try:
        while num_live:
            item = await items.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                num_live -= 1
    finally:
        closing = True
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
