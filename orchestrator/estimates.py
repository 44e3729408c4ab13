"""Running estimates that the window controller decides by."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MEMORY_TRIALS = 24.0
"""Judged positions after which an old one counts 1/e."""
PRIOR_ACCEPTANCE = 0.7
PRIOR_TRIALS = 2.0


@dataclass(slots=True)
class AcceptanceEstimate:
    """Probability that the next draft token is accepted, from discounted counts.

    A pass that accepts `a` of `m` drafts is `a` successes and, if a < m, one failure: the drafts
    after it were not tried.
    """

    _successes: float = PRIOR_ACCEPTANCE * PRIOR_TRIALS
    _trials: float = PRIOR_TRIALS
    memory_trials: float = MEMORY_TRIALS

    @classmethod
    def beginning_with(cls, value: float) -> AcceptanceEstimate:
        """An estimate that knows so far only what is usual."""
        return cls(value * PRIOR_TRIALS, PRIOR_TRIALS)

    @property
    def value(self) -> float:
        return self._successes / self._trials

    def update(self, *, judged: int, accepted: int) -> None:
        """Count one pass."""
        trials = accepted + (accepted < judged)
        keep = (1.0 - 1.0 / self.memory_trials) ** trials
        self._successes = keep * self._successes + accepted
        self._trials = keep * self._trials + trials


@dataclass(slots=True)
class Mean:
    """An exponentially weighted mean; None before the first value."""

    weight: float = 0.1
    value: float | None = None

    def update(self, sample: float) -> None:
        self.value = (
            sample if self.value is None else self.value + self.weight * (sample - self.value)
        )


@dataclass(slots=True)
class Least:
    """The least of the last few values: what a measured time is without waiting in it."""

    window: int = 32
    _samples: deque[float] = field(default_factory=deque)

    @property
    def value(self) -> float | None:
        return min(self._samples, default=None)

    def update(self, sample: float) -> None:
        self._samples.append(max(0.0, sample))
        if len(self._samples) > self.window:
            self._samples.popleft()


@dataclass(slots=True)
class PassCost:
    """Seconds of a target pass as base + slope x rows, by discounted least squares.

    One a verifier, shared by its sessions: what one session sees of a pass's size and time, all
    learn from. The slope is what tells a compute-bound target from one bound by memory; it stays
    while passes are all of one size and say nothing new about it.
    """

    memory_passes: float = 100.0
    _total: float = 0.0
    _rows: float = 0.0
    _seconds: float = 0.0
    _rows_squared: float = 0.0
    _product: float = 0.0
    _slope: float = 0.0

    @property
    def is_known(self) -> bool:
        return self._total > 0.0

    def update(self, rows: int, seconds: float, *, sessions: int) -> None:
        """Count one of the reports on a pass of `rows` tokens that `sessions` had a part in."""
        share = 1.0 / max(sessions, 1)
        keep = (1.0 - 1.0 / self.memory_passes) ** share
        self._total = keep * self._total + share
        self._rows = keep * self._rows + share * rows
        self._seconds = keep * self._seconds + share * seconds
        self._rows_squared = keep * self._rows_squared + share * rows * rows
        self._product = keep * self._product + share * rows * seconds
        mean_rows, mean_seconds = self._means()
        variance = self._rows_squared / self._total - mean_rows**2
        if variance > 0.02 * mean_rows**2 + 0.25:
            covariance = self._product / self._total - mean_rows * mean_seconds
            self._slope = max(0.0, covariance / variance)

    def line(self) -> tuple[float, float]:
        """Seconds of a pass as base and slope: base + slope x rows. The base may be negative."""
        mean_rows, mean_seconds = self._means()
        return mean_seconds - self._slope * mean_rows, self._slope

    def _means(self) -> tuple[float, float]:
        return self._rows / self._total, self._seconds / self._total


@dataclass(slots=True)
class Experience:
    """What the sessions of a verifier and a drafter have learnt; the next ones begin with it."""

    cost: PassCost
    acceptance: AcceptanceEstimate = field(
        default_factory=lambda: AcceptanceEstimate(memory_trials=10 * MEMORY_TRIALS)
    )
    agreement: AcceptanceEstimate = field(
        default_factory=lambda: AcceptanceEstimate(memory_trials=10 * MEMORY_TRIALS)
    )
    draft_s: Mean = field(default_factory=Mean)
    """Of one token."""
    round_trip_s: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether both workers have been measured."""
        return self.cost.is_known and self.draft_s.value is not None
