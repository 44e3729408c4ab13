"""Cases of the simulator that are known: by hand, by closed forms, by published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.runtime.pass_cost import PassCost
from paceline.simulation.closed_forms import overlapped_speedup, sequential_speedup
from paceline.simulation.scenario import Scenario
from paceline.simulation.simulator import simulate

VERIFY_S, DRAFT_S = 0.03, 0.003
PAIR = Scenario(PassCost(VERIFY_S), PassCost(DRAFT_S))


def speedup(scenario: Scenario, acceptance: float) -> float:
    """Over decoding one token a pass."""
    return simulate(scenario, acceptance=acceptance).tokens_per_second * VERIFY_S


@pytest.mark.parametrize("is_deterministic", [True, False])
@pytest.mark.parametrize("acceptance", [0.3, 0.8, 0.9])
@pytest.mark.parametrize(("num_drafts", "delay_s"), [(4, 0.0), (8, 0.01)])
def test_stop_and_wait_is_the_closed_form(
    num_drafts: int, delay_s: float, acceptance: float, is_deterministic: bool
) -> None:
    """A window of one block: within 1 %."""
    scenario = replace(
        PAIR,
        num_speculative_tokens=num_drafts,
        window=num_drafts,
        verifier_delay_s=delay_s,
        is_deterministic=is_deterministic,
        max_tokens=20_000,
    )
    expected = sequential_speedup(
        acceptance,
        num_drafts,
        verify_s=VERIFY_S,
        draft_s=DRAFT_S,
        round_trip_s=2 * delay_s,
    )
    assert speedup(scenario, acceptance) == pytest.approx(expected, rel=0.01)


def test_without_speculation_a_pass_is_a_token() -> None:
    result = simulate(replace(PAIR, speculation=False, max_tokens=50), acceptance=1.0)
    assert result.seconds == pytest.approx(50 * VERIFY_S)
    assert (result.passes, result.verdicts, result.drafted, result.draft_steps) == (50, 50, 0, 0)
    assert result.verifier_busy_share == pytest.approx(1.0)
    assert result.mean_acceptance_length == 1.0


def test_a_right_drafter_that_keeps_up_by_hand() -> None:
    """Blocks of 2 in 6 ms, passes of 30 ms, a window of 10, 21 tokens, all drafts right.

    The prompt's pass ends at 30 ms with token 1. By then 10 drafts came, the first of them for
    token 1; 9 wait, and the window has room for one more, sent at 33 ms. Pass 2 judges 9 and takes
    its bonus, which equals that one: 11 tokens at 60 ms. Nothing is left, so pass 3 begins with
    the next block, at 66 ms; its bonus equals the first draft of the block after: 14 tokens at
    96 ms. Of a window of 9 drafts 6 remain, and pass 4 takes token 21 as its bonus, at 126 ms.
    """
    scenario = replace(PAIR, num_speculative_tokens=2, window=10, max_tokens=21)
    result = simulate(scenario, acceptance=1.0)
    assert result.passes == 4
    assert result.seconds == pytest.approx(0.03 + 0.03 + 0.006 + 0.03 + 0.03)
    assert result.tokens == 21
    assert result.first_token_s == pytest.approx(0.03)


def test_a_useless_drafter_costs_the_waiting() -> None:
    """Every verdict is a rejection at once; the next block is 2 drafts away: 36 ms a token."""
    scenario = replace(PAIR, num_speculative_tokens=2, window=2, max_tokens=100)
    result = simulate(scenario, acceptance=0.0)
    # the first token comes from the prompt's pass; the last one needs no draft
    assert result.seconds == pytest.approx(0.03 + 0.003 + 98 * (0.03 + 2 * 0.003) + 0.03, abs=0.01)
    assert result.accepted == 0
    assert result.wasted == result.drafted


def test_a_drafter_slower_than_the_patience_is_not_waited_for() -> None:
    scenario = replace(PAIR, draft=PassCost(0.5), draft_patience_s=0.01, max_tokens=60)
    result = simulate(scenario, acceptance=0.0)
    # the first wait costs the patience, and each late block another
    assert result.seconds < 60 * VERIFY_S + 0.05
    assert result.verdicts == 60


def test_a_compute_bound_verifier_slows_down_past_its_knee() -> None:
    at_knee = PassCost(VERIFY_S, knee_tokens=16)
    scenario = replace(PAIR, verify=at_knee, speculation=False, max_tokens=20)
    alone = simulate(scenario, acceptance=1.0).tokens_per_second
    full = simulate(replace(scenario, num_sessions=16), acceptance=1.0).tokens_per_second
    over = simulate(replace(scenario, num_sessions=64), acceptance=1.0).tokens_per_second
    assert full == pytest.approx(16 * alone)
    assert over == pytest.approx(full)


def test_the_same_seed_gives_the_same_course() -> None:
    scenario = replace(PAIR, max_tokens=300)
    first, again, other = (simulate(scenario, acceptance=0.7, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("delay_s", "rough_figure"),
    [(0.0, 4.07), (0.01, 3.09)],
)
def test_overlapping_gains_about_what_was_estimated(delay_s: float, rough_figure: float) -> None:
    """Acceptance 0.9, 30 ms a pass and 3 ms a draft, round trips of 0 and 20 ms: within 4 %."""
    best = max(
        speedup(
            replace(
                PAIR,
                num_speculative_tokens=block,
                window=window,
                verifier_delay_s=delay_s,
                max_tokens=3_000,
            ),
            0.9,
        )
        for block, window in [(4, 20), (6, 24), (8, 18), (8, 24)]
    )
    assert best == pytest.approx(rough_figure, rel=0.04)


def test_overlapping_is_near_its_closed_form() -> None:
    """The form knows no merging of blocks and no third block: within 10 %."""
    for acceptance in (0.6, 0.8, 0.9):
        scenario = replace(PAIR, num_speculative_tokens=5, window=11, max_tokens=4_000)
        form = overlapped_speedup(acceptance, 5, verify_s=VERIFY_S, draft_s=DRAFT_S)
        assert speedup(scenario, acceptance) == pytest.approx(form, rel=0.1)


def test_every_verdict_is_recorded_when_it_is_heard_of() -> None:
    scenario = Scenario(PassCost(0.03), PassCost(0.003), num_sessions=3, max_tokens=50)
    result = simulate(scenario, acceptance=0.7)
    assert len(result.heard) == result.verdicts
    assert result.heard[-1][1] == result.seconds
    for session in range(3):
        assert sum(count for each, _, count in result.heard if each == session) == 50
    times = [at for _, at, _ in result.heard]
    assert times == sorted(times)
