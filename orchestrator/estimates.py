"""Running estimates that the window controller decides by."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.window_plan import WindowPlan

MEMORY_TRIALS = 20.0
"""Judged positions after which an old one counts 1/e."""
PRIOR_ACCEPTANCE = 0.7
PRIOR_TRIALS = 2.0
PRIOR_OUTCOMES = 0.5
KNOWN_TRIALS = 6.0
"""What others have seen counts for so many trials at a session's beginning: one draft that is wrong
must not end it."""
MEMORY_OFFERS = 6.0
"""Texts repeat themselves in stretches: that there is something to copy is soon old news."""
SAME_COST = 0.02
"""A pass time that changes by less is the same: plans made for it stay good."""
CURVE_STEP = 1.01
"""Between two pass times that plans tell apart."""
COARSE_ROWS = tuple(2.0**power for power in range(16))
MEMORY_PASSES = 9
"""Of a size, by which its time is known."""
COPY_S = 0.0001
"""What copying a token takes, as near as matters beside a pass."""
PASSES_REMEMBERED = 400
"""For so many passes of any size each pass of a size is remembered."""


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
    def beginning_with(cls, known: AcceptanceEstimate, **memory: float) -> AcceptanceEstimate:
        """An estimate that knows so far only what is usual."""
        trials = min(known.trials, KNOWN_TRIALS)
        return cls(known.value * trials, trials, **memory)

    @property
    def value(self) -> float:
        return self._successes / self._trials

    @property
    def trials(self) -> float:
        """How many it rests on, older ones counting less."""
        return self._trials

    @property
    def standard_error(self) -> float:
        """Of `value`."""
        value = self.value
        return math.sqrt(max(value * (1.0 - value), 0.0) / self._trials)

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
class LowerQuartile:
    """The lower quartile of the last few values: no single one decides, and what came beside other
    work counts little. None before the first."""

    window: int = 15
    value: float | None = None
    _samples: deque[float] = field(default_factory=deque)

    @property
    def num_samples(self) -> int:
        """Of the last `window` ones."""
        return len(self._samples)

    def update(self, sample: float) -> None:
        self._samples.append(sample)
        if len(self._samples) > self.window:
            self._samples.popleft()
        self.value = sorted(self._samples)[(len(self._samples) - 1) // 4]


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a pass by its rows: straight between `points`, whose rows rise and whose seconds
    never fall."""

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


@lru_cache(maxsize=256)
def coarse_curve(curve: CostCurve) -> CostCurve:
    """To about 4 % at a few sizes, as far as it is known: the same for all sizes that passes of
    many sessions happen to have."""
    most = 2 * curve.points[-1][0]
    known = [rows for rows in COARSE_ROWS if rows < most] or [1.0]
    return rounded_curve(CostCurve(tuple((rows, rounded(curve.seconds(rows))) for rows in known)))


@lru_cache(maxsize=256)
def rounded_curve(curve: CostCurve) -> CostCurve:
    """To about 1 %, without points within a flat stretch: what is seen of a device that is the same
    stays the same."""
    points = [(round(rows, 1), rounded(seconds, CURVE_STEP)) for rows, seconds in curve.points]
    if len({seconds for _, seconds in points}) == 1:
        return CostCurve(tuple(points[:1]))
    before = [None, *(seconds for _, seconds in points)]
    after = [*(seconds for _, seconds in points[1:]), None]
    kept = zip(points, before, after, strict=False)
    return CostCurve(tuple(point for point, *beside in kept if beside != [point[1], point[1]]))


def rounded(value: float, step: float = 1.04) -> float:
    """To about 4 %, or another step: powers of it; below a microsecond nothing."""
    if value < 1e-6:
        return 0.0
    return step ** round(math.log(value, step))


@dataclass(slots=True)
class _Size:
    """The last few passes of about one size, each told of by all sessions that had a part in it."""

    rows: float = 0.0
    """Mean of a pass."""
    seconds: float = 0.0
    """Lower quartile: a pass that took ten times as long as the others says nothing of their size,
    nor one that was slowed down by what speculation does beside it."""
    passes: float = 0.0
    seen_at: float = 0.0
    """Passes of any size, in all, when the last of these was told of."""
    _passes: deque[tuple[int, float, float]] = field(default_factory=deque)
    """(rows, seconds, share of the pass that was told)."""

    def add(self, rows: int, seconds: float, share: float) -> None:
        """Count a report on one of them."""
        if self._passes and self._passes[-1][:2] == (rows, seconds):
            share += self._passes.pop()[2]
        self._passes.append((rows, seconds, share))
        self.passes = sum(each[2] for each in self._passes)
        while self.passes - self._passes[0][2] >= MEMORY_PASSES:
            self.passes -= self._passes.popleft()[2]
        self.rows = sum(each[0] * each[2] for each in self._passes) / self.passes
        self.seconds = self._lower_quartile()

    def _lower_quartile(self) -> float:
        below = 0.0
        for _, seconds, share in sorted(self._passes, key=lambda each: each[1]):
            below += share
            if below >= self.passes / 4:
                return seconds
        return self.seconds


@dataclass(slots=True)
class PassCost:
    """A target's pass times, by the size of the pass.

    One a verifier, shared by its sessions: what one session sees of a pass's size and time, all
    learn from. Small sizes are kept apart, larger ones by a twentieth: where the time begins to
    rise with the rows is what tells a compute-bound target from one bound by memory.

    What a slow first pass makes look dear is not tried again, so a size that was not seen for long
    is forgotten, the sooner the less was seen of it; but not the smallest, that of plain passes.
    """

    _sizes: dict[int, _Size] = field(default_factory=dict)
    _passes: float = 0.0
    _shown: dict[int, float] = field(default_factory=dict)
    """By step: the seconds that `curve` was made from."""
    _curve: CostCurve | None = None

    @property
    def is_known(self) -> bool:
        return bool(self._sizes)

    @property
    def least_rows(self) -> float:
        """Of the smallest passes seen."""
        return self._sizes[min(self._sizes)].rows

    def update(self, rows: int, seconds: float, *, sessions: int) -> None:
        """Count one of the reports on a pass of `rows` tokens that `sessions` had a part in."""
        step = rows if rows <= 32 else round(32 + 12 * math.log2(rows / 32))
        share = 1.0 / max(sessions, 1)
        self._passes += share
        size = self._sizes.setdefault(step, _Size())
        size.add(rows, seconds, share)
        size.seen_at = self._passes

    def curve(self) -> CostCurve:
        """Their times, pooled where more rows seem to take less time (pool adjacent violators).

        The same curve while none has moved by more than `SAME_COST`.
        """
        least = min(self._sizes)
        known = {
            step: size
            for step, size in self._sizes.items()
            if step == least or self._is_remembered(size)
        }
        if self._curve is None or self._has_moved(known):
            self._curve = CostCurve(_pooled([known[step] for step in sorted(known)]))
            self._shown = {step: size.seconds for step, size in known.items()}
        return self._curve

    def _is_remembered(self, size: _Size) -> bool:
        return self._passes - size.seen_at <= PASSES_REMEMBERED * size.passes

    def _has_moved(self, known: Mapping[int, _Size]) -> bool:
        if self._shown.keys() != known.keys():
            return True
        return any(
            abs(known[step].seconds - shown) > SAME_COST * shown
            for step, shown in self._shown.items()
        )


def _pooled(sizes: Sequence[_Size]) -> tuple[tuple[float, float], ...]:
    pools: list[list[_Size]] = []
    for size in sizes:
        pool = [size]
        while pools and _mean_s(pool) < _mean_s(pools[-1]):
            pool = pools.pop() + pool
        pools.append(pool)
    # flat from the first to the last of a pool; what comes after all of them is told by the slope
    points = {rows: pool for pool in pools[:-1] for rows in (pool[0].rows, pool[-1].rows)}
    last = pools[-1]
    passes = sum(size.passes for size in last)
    points[sum(size.rows * size.passes for size in last) / passes] = last
    return tuple((rows, _mean_s(pool)) for rows, pool in points.items())


def _mean_s(pool: Sequence[_Size]) -> float:
    return sum(size.seconds * size.passes for size in pool) / sum(size.passes for size in pool)


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
    offers: AcceptanceEstimate = field(
        default_factory=lambda: AcceptanceEstimate(PRIOR_TRIALS, memory_trials=10 * MEMORY_TRIALS)
    )
    """Of a drafter that is asked, how often it has something to propose."""
    outcomes: AcceptanceEstimate = field(
        default_factory=lambda: AcceptanceEstimate(
            PRIOR_OUTCOMES * PRIOR_TRIALS, memory_trials=10 * MEMORY_TRIALS
        )
    )
    """After a rejection, how often drafts behind the token that came are there already."""
    late_outcomes: AcceptanceEstimate = field(
        default_factory=lambda: AcceptanceEstimate(0.0, memory_trials=10 * MEMORY_TRIALS)
    )
    """And how often they are on their way."""
    draft_s: LowerQuartile = field(default_factory=LowerQuartile)
    """Of one token; where both workers compute on one device, between its passes."""
    draft_beside_s: LowerQuartile = field(default_factory=LowerQuartile)
    """The same of one device beside its passes."""
    failed_tries: int = 0
    """Of a pair that nobody knows: how often no draft came in time to tell anything."""
    round_trip_s: LowerQuartile = field(default_factory=LowerQuartile)
    off_tokens: int = 0
    """Committed without drafts since the last probe, by all of them."""
    last_plans: dict[tuple[bool, bool, int], WindowPlan] = field(default_factory=dict)
    """The best one found last, by kind of session."""
    _copying: Experience | None = None

    @property
    def copying(self) -> Experience:
        """The same of what a drafter copies that has a model besides."""
        if self._copying is None:
            copy_s = LowerQuartile()
            copy_s.update(COPY_S)
            self._copying = Experience(self.cost, draft_s=copy_s, round_trip_s=self.round_trip_s)
        return self._copying
