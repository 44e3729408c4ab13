"""The engine thread of a worker in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.simulation.clock import Clock


class SimulatedWorker:
    """An engine thread: it takes what was posted between its steps, and steps while it can."""

    def __init__(self, clock: Clock, step: Callable[[], None]) -> None:
        self._clock = clock
        self._step = step
        self._posted: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._is_busy = False
        self._is_waking = False

    def post(self, action: Callable[..., None], *arguments: Any) -> None:
        """An event for the engine: taken now, or when the pass under way ends."""
        if self._is_busy:
            self._posted.append((action, arguments))
        else:
            action(*arguments)
            self.wake()

    def wake(self) -> None:
        """Step, unless a pass is under way, once everything that arrives now has arrived."""
        if not self._is_busy and not self._is_waking:
            self._is_waking = True
            self._clock.when_quiet(self._start)

    def _start(self) -> None:
        self._is_waking = False
        if not self._is_busy:
            self._step()

    def run(self, seconds: float, finish: Callable[..., None], *arguments: Any) -> None:
        """A pass is under way; then `finish`, what was posted, and the next step."""
        self._is_busy = True
        self._clock.at(self._clock.now + seconds, self._end, finish, arguments)

    def _end(self, finish: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        finish(*arguments)
        self._is_busy = False
        posted, self._posted = self._posted, []
        for action, action_arguments in posted:
            action(*action_arguments)
        self.wake()
