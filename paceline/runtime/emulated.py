"""An emulated device: a pass takes the time that is set for it, asleep, so that no CPU is used.

As on a real one the host goes on at once, and waits where it reads the pass's result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from paceline.device_clock import launched, wait_for_device
from paceline.runtime.page_table import PageTable
from paceline.runtime.pass_cost import PassCost
from paceline.runtime.runner import Chunk, Runner

SPIN_S = 0.0002
"""The last part of a wait is spent polling the clock: a sleep ends some tens of µs late."""
YIELD_S = 0.00007
"""And of that the last part without sleeping for no time, which takes some tens of µs too."""


class EmulatedRunner:
    """A `Runner` whose passes take what `PassCost` says, or longer if computing them does."""

    def __init__(self, runner: Runner, cost: PassCost) -> None:
        self.pool = runner.pool
        self.vocab_size = runner.vocab_size
        self.context_length = runner.context_length
        self.busy_s = 0.0
        """Seconds that the device was busy."""
        self.late_s = 0.0
        """Seconds by which passes ended later than they should have: the error of the emulation."""
        self.passes = 0
        self._runner = runner
        self._cost = cost

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """The logits of the runner inside, whose time has come after `wait_for_device`; see
        `Runner`."""
        wait_for_device()
        started = time.perf_counter()
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        due = started + self._cost.seconds(num_tokens, len(chunks))
        logits = self._runner.forward(chunks)
        launched(partial(self._end, started, due))
        return logits

    def _end(self, started: float, due: float) -> None:
        sleep_until(due)
        ended = time.perf_counter()
        self.passes += 1
        self.busy_s += ended - started
        self.late_s += ended - due

    def keep(self, table: PageTable, start: int, nodes: Sequence[int]) -> None:
        """Keep one path of a tree, which costs no time; see `Runner`."""
        self._runner.keep(table, start, nodes)

    def fork(self, table: PageTable, lengths: Sequence[int], num_tokens: int) -> list[PageTable]:
        """Tables that continue another, which cost no time; see `Runner`."""
        return self._runner.fork(table, lengths, num_tokens)


def device_counters(runner: Runner) -> dict[str, int]:
    """What an emulated device has counted, times in microseconds; nothing of a real one.

    `device_busy_us` is what its passes took, `device_late_us` how much of that was beyond their
    cost.
    """
    if not isinstance(runner, EmulatedRunner):
        return {}
    return {
        "device_passes": runner.passes,
        "device_busy_us": round(runner.busy_s * 1e6),
        "device_late_us": round(runner.late_s * 1e6),
    }


def sleep_until(due: float) -> None:
    """Return when `time.perf_counter` reaches `due`: asleep but for the last `SPIN_S`."""
    left = due - time.perf_counter()
    if left > SPIN_S:
        time.sleep(left - SPIN_S)
    while (left := due - time.perf_counter()) > 0.0:
        if left > YIELD_S:
            time.sleep(0)  # lets other threads of the process run
        else:
            os.sched_yield()
