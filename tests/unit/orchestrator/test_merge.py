"""Several streams as one: order, errors, cancellations, how many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from orchestrator.merge import merge


class Streams:
    """Streams of numbers that say which of them are open."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.most_open = 0

    async def stream(
        self, name: int, length: int, error: BaseException | None = None
    ) -> AsyncGenerator[tuple[int, int], None]:
        self.open.add(name)
        self.most_open = max(self.most_open, len(self.open))
        try:
            for number in range(length):
                await asyncio.sleep(0)
                yield name, number
            if error is not None:
                raise error
        finally:
            self.open.discard(name)


async def test_every_stream_comes_whole_and_in_its_order() -> None:
    streams = Streams()
    merged = merge([streams.stream(name, 5) for name in range(3)])
    items = [item async for item in merged]
    assert sorted(items) == [(name, number) for name in range(3) for number in range(5)]
    for name in range(3):
        assert [number for owner, number in items if owner == name] == list(range(5))
    assert streams.most_open == 3
    assert not streams.open


async def test_no_more_are_begun_at_once_than_there_are_places() -> None:
    streams = Streams()
    merged = merge([streams.stream(name, 4) for name in range(5)], at_once=2)
    names = [name async for name, _ in merged]
    assert streams.most_open == 2
    assert sorted(names) == sorted([*range(5)] * 4)
    assert set(names[:8]) == {0, 1}, "the first ones are begun first"


@pytest.mark.parametrize("at_once", [None, 1])
async def test_the_first_error_ends_them_all(at_once: int | None) -> None:
    streams = Streams()
    faulty = streams.stream(0, 2, RuntimeError("a bug"))
    merged = merge([faulty, streams.stream(1, 1000)], at_once=at_once)
    with pytest.raises(RuntimeError, match="a bug"):
        async for _ in merged:
            pass
    assert not streams.open


async def test_a_stream_that_is_cancelled_from_elsewhere_leaves_nobody_waiting() -> None:
    """G02: what reads the streams hears of it as of an error."""
    streams = Streams()
    merged = merge([streams.stream(0, 2, asyncio.CancelledError()), streams.stream(1, 1000)])

    async def read() -> None:
        async for _ in merged:
            pass

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(read(), 5)
    assert not streams.open


async def test_a_reader_that_leaves_closes_the_streams() -> None:
    streams = Streams()
    merged = merge([streams.stream(name, 1000) for name in range(3)], at_once=2)
    async for _ in merged:
        break
    await merged.aclose()
    assert not streams.open
