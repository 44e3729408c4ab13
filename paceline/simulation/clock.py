"""Simulated time: a queue of what happens when."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any


class Clock:
    """What happens next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._quiet: deque[Callable[[], None]] = deque()

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something later; at once if there is no delay."""
        if seconds:
            self.at(self.now + seconds, action, *arguments)
        else:
            action(*arguments)

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._heap, (time, next(self._order), action, arguments))

    def when_quiet(self, action: Callable[[], None]) -> None:
        """Do something now, but after everything else that happens now."""
        self._quiet.append(action)

    def run(self) -> None:
        heap, quiet = self._heap, self._quiet
        while heap or quiet:
            if quiet and not (heap and heap[0][0] <= self.now):
                quiet.popleft()()
            else:
                self.now, _, action, arguments = heapq.heappop(heap)
                action(*arguments)
