"""Thinning keeps a bounded number, the first ones whole, and counts the rest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.telemetry.thinning import Thinning


def kept(limit: int, expected: int, count: int) -> tuple[list[int], Thinning]:
    thinning = Thinning(limit, expected)
    return [index for index in range(count) if thinning.starts_new()], thinning


def test_what_fits_is_kept_whole() -> None:
    assert kept(10, expected=10, count=10)[0] == list(range(10))


def test_the_second_half_is_spread_over_all_that_may_come() -> None:
    found, thinning = kept(8, expected=100, count=100)
    assert found == [0, 1, 2, 3, 4, 28, 52, 76]
    assert thinning.num_left_out == 92


@settings(derandomize=True, deadline=None, max_examples=200)
@given(limit=st.integers(0, 40), expected=st.integers(1, 300), extra=st.integers(0, 50))
def test_never_more_than_the_limit_and_nothing_uncounted(
    limit: int, expected: int, extra: int
) -> None:
    count = expected + extra
    found, thinning = kept(limit, expected, count)
    assert len(found) <= limit
    assert len(found) + thinning.num_left_out == count
    assert found[: limit // 2] == list(range(min(limit // 2, count)))
