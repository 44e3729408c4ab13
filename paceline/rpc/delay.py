"""A network that is slower than the one there is: what is put in comes out a set time later."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

_LOGGER = logging.getLogger(__name__)

T = TypeVar("T")


class DelayLine(Generic[T]):
    """Holds items back, in order; what is put within one turn of the event loop stays together.

    `deliver` is called on the event loop that `start` ran on. A thread keeps the time: the event
    loop's own timers are up to a millisecond late.
    """

    def __init__(self, delay_s: float, deliver: Callable[[list[T]], None]) -> None:
        self._delay_s = delay_s
        self._deliver = deliver
        self._gathered: list[T] = []
        self._in_flight: queue.SimpleQueue[tuple[float, list[T]] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def start(self) -> None:
        """Begin; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(self._loop,), daemon=True).start()

    def put(self, items: Iterable[T]) -> None:
        """Send items on their way; on the event loop, after `start`. Dropped after `close`."""
        assert self._loop is not None
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.extend(items)

    def close(self) -> None:
        """Drop what is on its way; nothing is delivered any more. Idempotent."""
        self._closed = True
        self._in_flight.put(None)

    def _send(self) -> None:
        items, self._gathered = self._gathered, []
        self._in_flight.put((time.perf_counter() + self._delay_s, items))

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (sent := self._in_flight.get()) is not None:
            due, items = sent
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                loop.call_soon_threadsafe(self._arrive, items)
            except RuntimeError:
                _LOGGER.debug("the event loop is closed; %d items are lost", len(items))
                return

    def _arrive(self, items: list[T]) -> None:
        if not self._closed:
            self._deliver(items)
