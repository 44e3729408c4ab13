"""Percentiles, medians and goodput: what becomes of many samples."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

PERCENTILES = (50.0, 95.0, 99.0)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the samples lie, interpolated linearly between the two
    nearest ranks (numpy's default); NaN without samples.
    """
    if not samples:
        return math.nan
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * percent / 100.0
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """`p50`, `p95` and `p99`."""
    return {f"p{percent:.0f}": percentile(samples, percent) for percent in PERCENTILES}


def median_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of every key over rows that have the same keys."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request of a load: times in seconds on one clock, `token_s` when each token came."""

    due_s: float
    """When it arrived, by the plan: a client that is late to send counts as waiting."""
    ended_s: float
    token_s: tuple[float, ...] = ()
    error: str = ""
    """The status it failed with; empty if it did not."""

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_s[0] - self.due_s if self.token_s else math.nan

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times between tokens; those of one verdict come together, so most of them are 0."""
        return tuple(later - earlier for earlier, later in pairwise(self.token_s))

    @property
    def per_token_s(self) -> float:
        """Mean time between tokens after the first (TPOT); 0 for a single token."""
        steps = len(self.token_s) - 1
        return (self.token_s[-1] - self.token_s[0]) / steps if steps > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Limits that a request must keep to count as good, in seconds; None is no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None
    """Of the mean time between a request's tokens."""

    def is_met(self, request: RequestTimes) -> bool:
        """Whether a request ended well and within the limits."""
        if request.error or not request.token_s:
            return False
        in_time = self.ttft_s is None or request.ttft_s <= self.ttft_s
        return in_time and (self.itl_s is None or request.per_token_s <= self.itl_s)


def num_good(requests: Iterable[RequestTimes], level: ServiceLevel) -> int:
    """Requests that met the service level; a second, they are the goodput (Zhong et al. 2024,
    DistServe)."""
    return sum(level.is_met(request) for request in requests)


def errors_of(requests: Iterable[RequestTimes]) -> dict[str, int]:
    """How many requests failed with each status, in alphabetic order."""
    return dict(sorted(Counter(request.error for request in requests if request.error).items()))
