"""Running estimates that the window controller decides by."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

MEMORY_TRIALS = 20.0
"""Judged positions after which an old one counts 1/e."""
PRIOR_ACCEPTANCE = 0.7
PRIOR_TRIALS = 2.0
SAME_COST = 0.02
"""A pass time that changes by less is the same: plans made for it stay good."""


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

    def cap(self, value: float) -> None:
        """It cannot be more than this; what is seen later may raise it again."""
        self._successes = min(self._successes, value * self._trials)

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


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass by its rows: straight between `points`, which rise in both."""

    points: tuple[tuple[float, float], ...]
    """(rows, seconds), at least one."""

    def seconds(self, rows: float) -> float:
        """Flat before the first point; past the last as it rose before it."""
        points = self.points
        after = bisect_left(points, (rows,))
        if after == 0 or len(points) == 1:
            return points[0][1]
        (low, low_s), (high, high_s) = (
            points[after - 1 : after + 1] if after < len(points) else (points[-2:])
        )
        return low_s + (high_s - low_s) * (rows - low) / (high - low)


def rounded(value: float) -> float:
    """To about 4 %: powers of 1.04; below a microsecond nothing."""
    if value < 1e-6:
        return 0.0
    return 1.04 ** round(math.log(value, 1.04))


@dataclass(slots=True)
class PassCost:
    """Running means of a target's pass times, by the size of the pass.

    One a verifier, shared by its sessions: what one session sees of a pass's size and time, all
    learn from. Small sizes are kept apart, larger ones by a twentieth: where the time begins to
    rise with the rows is what tells a compute-bound target from one bound by memory.
    """

    memory_passes: float = 50.0
    _sums: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """By step: discounted number of passes, sum of their rows, sum of their seconds."""
    _shown: dict[int, float] = field(default_factory=dict)
    """By step: mean seconds that `curve` was made from."""
    _curve: CostCurve | None = None

    @property
    def is_known(self) -> bool:
        return bool(self._sums)

    def update(self, rows: int, seconds: float, *, sessions: int) -> None:
        """Count one of the reports on a pass of `rows` tokens that `sessions` had a part in."""
        step = rows if rows <= 32 else round(32 + 12 * math.log2(rows / 32))
        share = 1.0 / max(sessions, 1)
        keep = (1.0 - 1.0 / self.memory_passes) ** share
        count, all_rows, all_seconds = self._sums.get(step, (0.0, 0.0, 0.0))
        self._sums[step] = (
            keep * count + share,
            keep * all_rows + share * rows,
            keep * all_seconds + share * seconds,
        )

    def curve(self) -> CostCurve:
        """The means, pooled where more rows seem to take less time (pool adjacent violators).

        The same curve while no mean has moved by more than `SAME_COST`.
        """
        if self._curve is None or self._has_moved():
            self._curve = CostCurve(self._pooled())
            self._shown = {step: _mean_seconds(sums) for step, sums in self._sums.items()}
        return self._curve

    def _has_moved(self) -> bool:
        if self._shown.keys() != self._sums.keys():
            return True
        return any(
            abs(_mean_seconds(self._sums[step]) - shown) > SAME_COST * shown
            for step, shown in self._shown.items()
        )

    def _pooled(self) -> tuple[tuple[float, float], ...]:
        pools: list[tuple[float, float, float]] = []
        for step in sorted(self._sums):
            count, rows, seconds = self._sums[step]
            while pools and seconds / count < _mean_seconds(pools[-1]):
                before = pools.pop()
                count, rows, seconds = count + before[0], rows + before[1], seconds + before[2]
            pools.append((count, rows, seconds))
        return tuple((rows / count, seconds / count) for count, rows, seconds in pools)


def _mean_seconds(sums: tuple[float, float, float]) -> float:
    return sums[2] / sums[0]


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
