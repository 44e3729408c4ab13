"""What measurements are held against: the simulator, round by round and phase by phase."""

from __future__ import annotations

import pytest

from paceline.bench.grid import Point
from paceline.bench.ideal import (
    PLAIN,
    PROMPT_LENGTH,
    Ideal,
    Setting,
    draft_law,
    emulated_document,
    prompts_of,
    right_drafts,
    round_overheads,
)
from paceline.bench.scenarios import Phase, _ideal_times, phases_of, recovery
from paceline.config import parse_config
from paceline.simulation.closed_forms import sequential_speedup


def test_the_ideal_of_stop_and_wait_is_its_closed_form() -> None:
    ideal = Ideal(Point(0.8, 20.0))
    speedup = ideal.speed(Setting("stop-and-wait", 6, 6)) / ideal.speed(PLAIN)
    formula = sequential_speedup(0.8, 6, verify_s=0.030, draft_s=0.003, round_trip_s=0.020)
    assert speedup == pytest.approx(formula, rel=0.05)


def test_the_best_setting_is_none_where_drafts_do_not_pay() -> None:
    assert Ideal(Point(0.0)).best() == PLAIN
    best = Ideal(Point(0.9, 20.0)).best()
    assert best.kind == "fixed"
    assert best.window > best.block >= 1


def test_a_document_is_valid_and_has_room_for_every_session() -> None:
    point = Point(0.8, 20.0, concurrency=512, knee_tokens=64)
    config = parse_config(emulated_document(point, max_tokens=200), source="test")
    page, tokens = config.verifier.runtime.page_size, config.verifier.runtime.kv_tokens
    needed = 512 * -(-(PROMPT_LENGTH + 200) // page)
    assert tokens // page >= needed
    assert config.orchestrator.emulated_delay_ms.verifier == 10.0


def test_no_two_sessions_and_no_two_repeats_have_the_same_prompt() -> None:
    point = Point(0.8, concurrency=4)
    prompts = [tuple(p) for r in range(3) for p in prompts_of(point, seed=1, repeat=r)]
    assert len(set(prompts)) == 12
    assert prompts_of(point, seed=1, repeat=2) == prompts_of(point, seed=1, repeat=2)


def test_overheads_are_those_of_the_rounds_that_both_have() -> None:
    ideal = [(1.0, 1), (2.0, 3), (3.0, 1), (4.0, 2)]  # at 1, 4, 5, 7 tokens
    assert round_overheads(ideal, ideal) == [0.0, 0.0, 0.0]
    late = [(1.5, 1), (2.75, 3), (3.75, 1), (5.0, 2)]
    assert round_overheads(late, ideal) == [0.25, 0.0, 0.25]
    # one verdict where the ideal has two, then two where it has one
    other = [(1.0, 1), (3.5, 4), (4.0, 1), (5.0, 1)]
    assert round_overheads(other, ideal) == []


def test_recovery_is_the_first_window_back_at_the_steady_speed() -> None:
    ideal = [[0.01 * token for token in range(300)]]
    slow_until = 60
    measured = [[0.02 * min(t, slow_until) + 0.01 * max(0, t - slow_until) for t in range(300)]]
    tokens, curve = recovery(measured, ideal)
    assert curve[0] == pytest.approx(0.5)
    assert curve[-1] == pytest.approx(1.0)
    assert tokens == 60
    at_once, _ = recovery(ideal, ideal)
    assert at_once == 0
    # lucky and unlucky stretches cancel out: only the ratio to the ideal counts
    uneven = [0.0]
    for token in range(299):
        uneven.append(uneven[-1] + (0.03 if token % 50 < 25 else 0.01))
    assert recovery([[2 * t for t in uneven]], [uneven])[0] == 0


def test_a_phase_has_an_ideal_of_its_own() -> None:
    """Tokens of a bad phase come slower than those of a good one, by the very same output."""
    document = emulated_document(Point(0.9), max_tokens=200, acceptance_changes=[(116, 0.2)])
    law = draft_law(parse_config(document, source="test"))
    whole = list(range(16))
    while len(whole) < 216:
        whole.append(law.favourite(law.states(whole)[-1]))
    good, bad = (_ideal_times(Phase(a, s, 100), law, whole) for a, s in ((0.9, 0), (0.2, 100)))
    assert len(good) == len(bad) == 100
    assert bad[-1] - bad[0] > 1.5 * (good[-1] - good[0])
    assert [phase.start for phase in phases_of(100)] == [0, 100, 200]


def test_right_drafts_are_those_of_the_drafters_law() -> None:
    ideal = Ideal(Point(0.7))
    law = draft_law(ideal.config)
    whole = [list(range(20)), list(range(20, 40))]
    is_right, right_other = right_drafts(law, whole)
    states = law.states(whole[1])
    assert [is_right(1, p) for p in range(1, 20)] == [
        law.agrees(states[p - 1], p) for p in range(1, 20)
    ]
    assert {is_right(0, p) for p in range(1, 20)} == {True, False}
    assert [right_other(1, p) for p in range(1, 20)] == [
        law.right_other(states[p - 1], p) for p in range(1, 20)
    ]
    assert {right_other(0, p) for p in range(1, 20)} == {0, 1, None}
