"""A queue that coalesces: whatever accumulates while its consumer is busy is taken at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """Many producers and one consumer, all on one event loop. Never blocks a producer."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, items: Iterable[T]) -> None:
        """Add items in order; after `close` they are dropped."""
        if self._closed:
            return
        self._items.extend(items)
        if self._items:
            self._wake.set()

    async def take(self) -> list[T]:
        """Wait for items and return all of them; an empty list once closed and empty."""
        await self._wake.wait()
        items, self._items = self._items, []
        if not self._closed:
            self._wake.clear()
        return items

    def close(self) -> None:
        """Accept nothing more; what was put can still be taken."""
        self._closed = True
        self._wake.set()
