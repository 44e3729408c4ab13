"""An emulated device: a pass takes the time that is set for it, asleep, so that no CPU is used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.runtime.runner import Chunk, Runner

SPIN_S = 0.0002
"""The last part of a wait is spent polling the clock: a sleep ends some tens of µs late."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds that one pass takes on an emulated device.

    `base_s` is the time to read the weights. It holds up to `knee_tokens` tokens; beyond them the
    device is bound by computing, and it grows in proportion to the tokens (the roofline model,
    Williams et al. 2009). 0 is no knee. `per_token_s` and `per_session_s` come on top.
    """

    base_s: float
    per_token_s: float = 0.0
    per_session_s: float = 0.0
    knee_tokens: int = 0

    def seconds(self, num_tokens: int, num_sessions: int) -> float:
        """Of a pass over so many tokens of so many sessions."""
        load = max(1.0, num_tokens / self.knee_tokens) if self.knee_tokens else 1.0
        each = num_tokens * self.per_token_s + num_sessions * self.per_session_s
        return self.base_s * load + each


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
        """The logits of the runner inside, when their time has come; see `Runner`."""
        started = time.perf_counter()
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        due = started + self._cost.seconds(num_tokens, len(chunks))
        logits = self._runner.forward(chunks)
        sleep_until(due)
        ended = time.perf_counter()
        self.passes += 1
        self.busy_s += ended - started
        self.late_s += ended - due
        return logits


def sleep_until(due: float) -> None:
    """Return when `time.perf_counter` reaches `due`: asleep but for the last `SPIN_S`."""
    left = due - time.perf_counter()
    if left > SPIN_S:
        time.sleep(left - SPIN_S)
    while time.perf_counter() < due:
        time.sleep(0)  # lets other threads run
