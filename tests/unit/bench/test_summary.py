"""Percentiles, goodput and errors of many requests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.bench.summary import (
    RequestTimes,
    ServiceLevel,
    errors_of,
    median_of,
    num_good,
    percentile,
    percentiles,
)

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@settings(derandomize=True, max_examples=100)
@given(SAMPLES, st.floats(0, 100))
def test_percentiles_are_numpys(samples: list[float], percent: float) -> None:
    expected = float(np.percentile(samples, percent))
    assert percentile(samples, percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_no_samples_have_no_percentile() -> None:
    assert all(math.isnan(value) for value in percentiles([]).values())
    assert list(percentiles([1.0])) == ["p50", "p95", "p99"]


def test_medians_are_taken_key_by_key() -> None:
    rows = [{"a": 1.0, "b": 9.0}, {"a": 5.0, "b": 7.0}, {"a": 2.0, "b": 8.0}]
    assert median_of(rows) == {"a": 2.0, "b": 8.0}


def request(*token_s: float, error: str = "", due_s: float = 10.0) -> RequestTimes:
    return RequestTimes(due_s, 20.0, token_s, error)


def test_times_count_from_when_a_request_was_due() -> None:
    one = request(10.5, 10.6, 10.6, 11.1)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.gaps_s == pytest.approx((0.1, 0.0, 0.5))
    assert one.per_token_s == pytest.approx(0.2)
    assert request(10.5).per_token_s == 0.0
    assert math.isnan(request().ttft_s)


@pytest.mark.parametrize(
    ("level", "good"),
    [
        (ServiceLevel(), True),
        (ServiceLevel(ttft_s=0.5), True),
        (ServiceLevel(ttft_s=0.499), False),
        (ServiceLevel(itl_s=0.251), True),
        (ServiceLevel(itl_s=0.249), False),
        (ServiceLevel(ttft_s=1.0, itl_s=0.1), False),
    ],
)
def test_a_request_is_good_within_every_limit(level: ServiceLevel, good: bool) -> None:
    assert level.is_met(request(10.5, 10.75, 11.0)) is good


def test_good_requests_are_counted_and_no_failed_one() -> None:
    requests = [
        request(10.1, 10.2),
        request(12.5, 12.6),  # late
        request(10.1, error="UNAVAILABLE"),
        request(error="RESOURCE_EXHAUSTED"),
        request(error="UNAVAILABLE"),
        request(10.4),
    ]
    assert num_good(requests, ServiceLevel(ttft_s=1.0)) == 2
    assert errors_of(requests) == {"RESOURCE_EXHAUSTED": 1, "UNAVAILABLE": 2}
