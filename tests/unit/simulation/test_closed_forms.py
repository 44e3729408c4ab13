"""Speed-ups in closed form, at their limits."""

from __future__ import annotations

import pytest

from paceline.simulation.closed_forms import (
    expected_tokens,
    overlapped_speedup,
    sequential_speedup,
)

TIMES = {"verify_s": 0.03, "draft_s": 0.003}


@pytest.mark.parametrize("acceptance", [0.0, 0.25, 0.9, 1.0])
def test_expected_tokens_is_the_sum_of_the_powers(acceptance: float) -> None:
    assert expected_tokens(acceptance, 5) == pytest.approx(sum(acceptance**k for k in range(6)))


def test_useless_drafts_only_cost() -> None:
    assert sequential_speedup(0.0, 4, **TIMES) == pytest.approx(30 / 42)
    assert overlapped_speedup(0.0, 4, **TIMES) == pytest.approx(30 / 42)


def test_right_drafts_are_limited_by_the_slower_side() -> None:
    assert sequential_speedup(1.0, 4, **TIMES) == pytest.approx(5 * 30 / 42)
    assert overlapped_speedup(1.0, 4, **TIMES) == pytest.approx(5)
    assert overlapped_speedup(1.0, 20, **TIMES) == pytest.approx(21 / 2)
    assert overlapped_speedup(1.0, 4, takes_bonus=False, **TIMES) == pytest.approx(4)


def test_a_round_trip_is_hidden_only_while_drafts_stay_valid() -> None:
    for acceptance in (0.5, 0.9):
        far = overlapped_speedup(acceptance, 4, round_trip_s=0.02, **TIMES)
        assert far < overlapped_speedup(acceptance, 4, **TIMES)
        assert far > sequential_speedup(acceptance, 4, round_trip_s=0.02, **TIMES)


def test_the_figures_of_the_design() -> None:
    """Acceptance 0.8, blocks of 4: overlapping without a bonus gains nothing over waiting."""
    times = {"verify_s": 1.0, "draft_s": 0.1}
    waiting = sequential_speedup(0.8, 4, **times)
    without_bonus = overlapped_speedup(0.8, 4, takes_bonus=False, **times)
    with_bonus = overlapped_speedup(0.8, 4, **times)
    assert without_bonus < waiting < with_bonus
