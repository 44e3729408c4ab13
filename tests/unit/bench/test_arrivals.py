"""Arrivals of an open loop."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from paceline.bench.arrivals import poisson_arrivals


def test_the_same_seed_gives_the_same_arrivals_and_another_others() -> None:
    assert poisson_arrivals(3.0, 50, seed=1) == poisson_arrivals(3.0, 50, seed=1)
    assert poisson_arrivals(3.0, 50, seed=1) != poisson_arrivals(3.0, 50, seed=2)


def test_gaps_are_exponential_with_the_rate() -> None:
    """Mean and standard deviation are 1 / rate; within four standard errors."""
    times = poisson_arrivals(4.0, 4001, seed=0)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0.0
    assert min(gaps) > 0.0
    assert statistics.fmean(gaps) == pytest.approx(0.25, abs=4 * 0.25 / 4000**0.5)
    assert statistics.stdev(gaps) == pytest.approx(0.25, abs=4 * 0.25 * (2 / 4000) ** 0.5)


def test_twice_the_rate_is_the_same_process_in_half_the_time() -> None:
    slow, fast = poisson_arrivals(1.0, 20, seed=5), poisson_arrivals(2.0, 20, seed=5)
    assert fast == pytest.approx([time / 2 for time in slow])
