"""The controller chooses what pays, leaves what does not, and finds its way back."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orchestrator.estimates import (
    CURVE_STEP,
    KNOWN_TRIALS,
    PASSES_REMEMBERED,
    AcceptanceEstimate,
    CostCurve,
    Experience,
    LowerQuartile,
    PassCost,
    rounded,
    rounded_curve,
)
from orchestrator.pipeline_rate import (
    BLOCK_OVERHEAD_S,
    Conditions,
    expected_tokens,
    plain_rate,
    riding_rate,
    waiting_rate,
)
from orchestrator.window_controller import (
    FIRST_BLOCKS,
    FIRST_PROBE_TOKENS,
    FIRST_TRY_TOKENS,
    READING_S,
    WindowController,
)
from orchestrator.window_plan import (
    GAIN_BESIDE,
    GAIN_IN_COMPANY,
    GAIN_IN_TURNS,
    GAIN_TO_GO_ON_BESIDE,
    GAIN_TO_GO_ON_IN_TURNS,
    MIN_PROBE_TOKENS,
    NO_SPECULATION,
    PROBE_LENGTH,
    PROBE_SHARE,
    WindowPlan,
    best_plan,
    most_judged,
    patience,
    probe_interval,
    rate,
)
from paceline.outcomes import MAX_SESSIONS_AHEAD
from paceline.runtime.pass_cost import PassCost as DeviceCost
from paceline.simulation.scenario import Scenario
from paceline.simulation.simulator import simulate

PROBE = WindowPlan(PROBE_LENGTH, PROBE_LENGTH, 0.0, max_judged=PROBE_LENGTH)
START = WindowPlan(4, 40, None)


def cost(base_s: float = 0.030, per_row_s: float = 0.0) -> CostCurve:
    """A target with this cost."""
    return CostCurve(tuple((rows, base_s + per_row_s * rows) for rows in (1.0, 1000.0)))


def learnt(base_s: float = 0.030) -> Experience:
    """A verifier whose passes are known to take so long, and nothing of its drafter."""
    passes = PassCost()
    for rows in (1, 5, 9, 40):
        passes.update(rows, base_s, sessions=1)
    return Experience(passes)


def conditions(acceptance: float, **changes: object) -> Conditions:
    values: dict[str, object] = {
        "agreement": acceptance,
        "draft_s": 0.003,
        "round_trip_s": 0.0,
        "sessions": 1,
        "cost": cost(),
    }
    return Conditions(acceptance=acceptance, **(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("acceptance", "drafts", "tokens"), [(0.5, 2, 1.75), (0.0, 4, 1.0), (1.0, 4, 5.0)]
)
def test_expected_tokens_of_a_pass(acceptance: float, drafts: int, tokens: float) -> None:
    assert expected_tokens(acceptance, drafts) == tokens


def test_waiting_without_drafts_ahead_is_the_closed_form_of_stop_and_wait() -> None:
    """E / (1 + gamma c) passes' worth of tokens, with c the draft's share of a pass."""
    found = waiting_rate(conditions(0.8, draft_s=0.003 - BLOCK_OVERHEAD_S / 4), 4, 0) * 0.030
    assert found == pytest.approx(expected_tokens(0.8, 4) / (1 + 4 * 0.1))


def test_drafting_ahead_is_the_renewal_of_full_acceptances() -> None:
    """By hand for a = 0.5, block 1, ahead 1."""
    visits = 0.25 / 0.75
    tokens = 1.5 + visits * 1.5
    seconds = 0.033 + visits * 0.030
    found = waiting_rate(conditions(0.5, draft_s=0.003 - BLOCK_OVERHEAD_S), 1, 1)
    assert found == pytest.approx(tokens / seconds)


def test_in_company_a_block_that_is_waited_for_costs_a_whole_pass() -> None:
    alone = waiting_rate(conditions(0.8), 4, 0)
    assert alone > 1.3 * waiting_rate(conditions(0.8, sessions=2), 4, 0)


def test_riding_by_hand() -> None:
    """a = 0.5, one draft a pass, which comes within the pass: a token each until it agrees."""
    caught = 0.5
    visits = 0.25 / 0.75  # the draft is accepted, and the next one agrees with the bonus
    tokens = 1 + caught * (1.5 + visits * 1.5)
    passes = 1 + caught * (1 + visits)
    found = riding_rate(conditions(0.5), block=1, ahead=1)
    assert found == pytest.approx(tokens / (passes * 0.030))


@pytest.mark.parametrize("trip_s", [0.0, 0.02, 0.5])
def test_riding_is_never_slower_than_plain_decoding_but_for_messages_where_rows_are_free(
    trip_s: float,
) -> None:
    for acceptance in (0.0, 0.3, 0.9):
        found = conditions(acceptance, round_trip_s=trip_s, sessions=8)
        longest_s = 1 / plain_rate(found) + found.messages_s(1)
        assert riding_rate(found, block=2, ahead=4) >= (1 - 1e-9) / longest_s


@hypothesis_settings(max_examples=80, deadline=None, derandomize=True)
@given(
    acceptance=st.floats(0, 0.99),
    draft_ms=st.floats(0.1, 80),
    trip_ms=st.floats(0, 60),
    sessions=st.integers(1, 64),
    slope_ms=st.floats(0, 2),
)
def test_the_plan_is_never_worse_than_none_and_fits_the_window(
    acceptance: float, draft_ms: float, trip_ms: float, sessions: int, slope_ms: float
) -> None:
    found = conditions(
        acceptance,
        draft_s=draft_ms / 1e3,
        round_trip_s=trip_ms / 1e3,
        sessions=sessions,
        cost=cost(per_row_s=slope_ms / 1e3),
    )
    best, plan = best_plan(found, max_window=12)
    assert best >= plain_rate(found)
    assert best == rate(found, plan)
    assert 0 <= plan.window <= 12
    assert plan is NO_SPECULATION or 1 <= plan.num_speculative_tokens <= plan.window


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance": 0.0},
        {"acceptance": 0.5, "draft_s": 0.040},
        {"acceptance": 0.8, "sessions": 64, "cost": cost(0.005, 0.001)},
        {"acceptance": 0.1, "round_trip_s": 0.060},
    ],
    ids=["useless drafter", "drafter slower than the target", "compute-bound", "far away"],
)
def test_drafts_that_do_not_pay_are_not_made(changes: dict[str, object]) -> None:
    acceptance = changes.pop("acceptance")
    assert best_plan(conditions(acceptance, **changes), max_window=40)[1] is NO_SPECULATION  # type: ignore[arg-type]


def test_better_drafts_and_a_cheaper_drafter_make_longer_blocks() -> None:
    def block(acceptance: float, draft_s: float) -> int:
        found = conditions(acceptance, draft_s=draft_s)
        return best_plan(found, max_window=40)[1].num_speculative_tokens

    assert block(0.95, 0.003) > block(0.6, 0.003) >= 1
    assert block(0.8, 0.0005) > block(0.8, 0.006)


def drive(
    controller: WindowController, acceptance: float, num_tokens: int, seed: int = 0
) -> list[WindowPlan]:
    """Feed verdicts of a drafter that is right with this probability; one plan a verdict."""
    chance = random.Random(seed)
    plans = []
    committed = 0
    while committed < num_tokens:
        drafts = min(controller.plan.window, controller.plan.num_speculative_tokens)
        accepted = 0
        while accepted < drafts and chance.random() < acceptance:
            accepted += 1
        if drafts:
            controller.saw_block(num_tokens=drafts, draft_s=0.003 * drafts)
        controller.saw_round_trip(0.001)
        controller.saw_verdict(judged=drafts, accepted=accepted, committed=accepted + 1, sessions=1)
        committed += accepted + 1
        plans.append(controller.plan)
    return plans


def test_a_useless_drafter_is_left_soon_and_probed_without_waiting() -> None:
    controller = WindowController(learnt(), max_window=40, start=START)
    plans = drive(controller, 0.0, 2000)
    assert min(index for index, plan in enumerate(plans) if not plan.window) < 20
    probes = [index for index, plan in enumerate(plans) if plan.window and index > 40]
    assert all(plans[index].window == PROBE_LENGTH for index in probes)
    assert {plans[index].patience_s for index in probes} == {0.0}, "nobody waits for a probe"
    assert 0 < len(probes) <= 2000 / MIN_PROBE_TOKENS


def test_a_probe_is_rarer_where_its_rows_cost_the_other_sessions() -> None:
    free = conditions(0.0, draft_s=0.0, sessions=64)
    bound = conditions(0.0, draft_s=0.0, sessions=64, cost=cost(0.005, 0.001))
    assert probe_interval(free) == MIN_PROBE_TOKENS
    assert probe_interval(bound) > 1 / PROBE_SHARE


@pytest.mark.parametrize("acceptance", [0.5, 0.8, 0.95])
def test_workers_of_one_device_take_turns(acceptance: float) -> None:
    """Nothing is drafted during a pass, and the verifier waits for the drafts that it wants."""
    controller = WindowController(learnt(), max_window=40, start=START, in_turns=True)
    plans = drive(controller, acceptance, 300)
    assert {plan.ahead for plan in plans} == {0}
    later = plans[-1]
    assert later.window == later.num_speculative_tokens > 0
    assert later.patience_s
    _, free = best_plan(conditions(acceptance, round_trip_s=0.001), max_window=40)
    assert free.ahead > 0


def test_on_one_device_the_verifier_reads_the_prompt_first() -> None:
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, in_turns=True)
    assert controller.plan is NO_SPECULATION
    told: dict[str, int] = {"judged": 0, "accepted": 0, "committed": 1, "sessions": 1}
    controller.saw_verdict(**told)
    controller.saw_verdict(**told)
    plan = replace(controller.plan, max_judged=None)
    assert plan == WindowPlan(PROBE_LENGTH, PROBE_LENGTH, None), "nobody knows the pair"
    drive(controller, 0.9, 100)
    second = WindowController(experience, max_window=40, start=START, in_turns=True)
    assert second.plan is NO_SPECULATION
    second.saw_verdict(**told)
    second.saw_verdict(**told)
    assert second.plan.window > PROBE_LENGTH


def test_on_one_device_a_window_opens_a_pass_after_the_verifier_heard_of_it() -> None:
    """It has begun a pass by then, beside which the drafter would read and draft."""
    experience = learnt()
    for _ in range(FIRST_BLOCKS):
        experience.draft_s.update(0.003)
    experience.round_trip_s.update(0.001)
    controller = WindowController(experience, max_window=40, start=START, in_turns=True)
    told: dict[str, int] = {"judged": 0, "accepted": 0, "committed": 1, "sessions": 1}
    controller.saw_verdict(**told)
    announced = controller.plan
    assert announced.is_about_to_open
    assert announced.window == 0
    controller.saw_verdict(**told)
    opened = controller.plan
    assert opened.window
    assert not opened.is_about_to_open
    usual_s = patience(controller._seen.conditions(1), opened.num_speculative_tokens)
    assert usual_s is not None
    assert announced.patience_s == opened.patience_s == usual_s + READING_S
    controller.saw_verdict(judged=1, accepted=1, committed=2, sessions=1)
    assert controller.plan.window, "it stays open"
    assert controller.plan.patience_s is not None
    assert controller.plan.patience_s < READING_S


def test_a_probe_of_one_device_is_rarer_and_waits_for_its_drafts() -> None:
    """What they take, and what is read before them, counts."""
    controller = WindowController(learnt(), max_window=40, start=START, in_turns=True)
    plans = drive(controller, 0.0, 2000)
    probes = [plan for plan in plans[40:] if plan.window]
    assert all(plan.patience_s for plan in probes)
    found = conditions(0.0, draft_s=0.003)
    assert probe_interval(found, in_turns=True) > 4 * probe_interval(found)
    assert 0 < len(probes) <= 1 + 2000 / probe_interval(found, in_turns=True)


def test_on_one_device_a_step_that_took_long_once_does_not_decide_for_ever() -> None:
    """Nothing but probes would show what a draft takes."""
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, in_turns=True)
    for _ in range(2):
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    for _ in range(FIRST_BLOCKS):
        controller.saw_block(num_tokens=2, draft_s=0.4)  # what it really takes is 3 ms a token
        controller.saw_verdict(judged=2, accepted=2, committed=3, sessions=1)
    assert not controller.plan.window
    plans = drive(controller, 0.8, 1200)
    assert plans[-1].window > PROBE_LENGTH
    assert experience.draft_s.value == 0.003


def test_on_one_device_no_single_block_decides_at_first() -> None:
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, in_turns=True)
    for _ in range(2):
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    controller.saw_block(num_tokens=2, draft_s=0.4)
    plans = drive(controller, 0.8, 100)
    assert all(plan.window for plan in plans)


def test_company_that_leaves_leaves_its_times_behind() -> None:
    """On one device a draft beside a pass takes what two take."""
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, in_turns=True, sessions=3)
    for _ in range(40):
        controller.saw_block(num_tokens=2, draft_s=0.09)
        controller.saw_verdict(judged=2, accepted=2, committed=3, sessions=3)
    assert not controller.plan.window
    plans = drive(controller, 0.8, 600)
    assert plans[-1].window > PROBE_LENGTH
    assert (experience.draft_s.value, experience.draft_beside_s.value) == (0.003, 0.045)


@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("in_turns", [False, True])
def test_a_drafter_of_which_nothing_is_heard_is_tried_ever_more_seldom(
    sessions: int, in_turns: bool
) -> None:
    """It may be so slow that each draft is overtaken before a block is full."""
    experience = learnt()
    tried = []
    for _ in range(4):
        controller = WindowController(
            experience, max_window=40, start=START, sessions=sessions, in_turns=in_turns
        )
        plans = []
        for _ in range(1000):
            controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=sessions)
            plans.append(controller.plan)
        tried.append(sum(plan.window > 0 for plan in plans))
    assert tried[-1] <= 2 * FIRST_TRY_TOKENS
    again = next(plan for plan in plans if plan.window and plan != START)
    controller.saw_block(num_tokens=1, draft_s=0.087)
    assert experience.draft_s.value or experience.draft_beside_s.value
    assert again.window <= PROBE_LENGTH


def test_a_plan_that_is_kept_waits_as_long_as_drafts_take_by_now() -> None:
    experience = learnt(0.1)
    controller = WindowController(experience, max_window=40, start=START)
    for step_s in [0.001] * 60 + [0.004] * 60:
        block = controller.plan.num_speculative_tokens
        controller.saw_block(num_tokens=block, draft_s=step_s * block)
        controller.saw_round_trip(0.001)
        controller.saw_verdict(judged=block, accepted=block, committed=block + 1, sessions=1)
    plan = controller.plan
    assert plan.ahead
    assert plan.patience_s
    assert plan.patience_s > 0.004 * plan.num_speculative_tokens


def test_in_company_one_device_is_busy_with_the_others_anyway() -> None:
    """A draft that takes twice as long beside a pass is still worth it."""
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, in_turns=True, sessions=4)
    told: dict[str, int] = {"judged": 2, "accepted": 2, "committed": 3, "sessions": 4}
    controller.saw_block(num_tokens=2, draft_s=0.012)
    for _ in range(20):
        controller.saw_verdict(**told)
    assert controller.plan.ahead > 0
    for _ in range(3):
        controller.saw_verdict(**{**told, "sessions": 1})
    assert controller.plan.ahead == 0


@pytest.mark.parametrize("seed", range(5))
def test_it_follows_a_jump_of_acceptance_both_ways(seed: int) -> None:
    """0.9 to 0.2 and back: 50 tokens later the plan is within 5 % of the best one."""
    controller = WindowController(learnt(), max_window=40, start=START)
    for step, (acceptance, num_tokens) in enumerate([(0.9, 300), (0.2, 50), (0.9, 50)]):
        drive(controller, acceptance, num_tokens, seed + 100 * step)
        truth = conditions(acceptance, round_trip_s=0.001)
        best, _ = best_plan(truth, max_window=40)
        assert rate(truth, controller.plan) >= 0.95 * best


def test_nothing_changes_before_the_drafter_was_measured() -> None:
    controller = WindowController(learnt(), max_window=40, start=START)
    controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    assert controller.plan == START


def test_acceptance_counts_a_rejection_once_and_forgets() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(200):
        estimate.update(judged=4, accepted=1)  # one success, one failure, two not tried
    assert estimate.value == pytest.approx(0.5, abs=0.02)
    for _ in range(40):
        estimate.update(judged=4, accepted=4)
    assert estimate.value > 0.95


def test_pass_cost_finds_where_the_time_begins_to_rise() -> None:
    """A knee at 64 rows, seen through passes of many sizes, with a little noise."""
    passes = PassCost()
    chance = random.Random(1)
    for _ in range(2000):
        rows = chance.choice((4, 8, 16, 32, 60, 90, 128))
        seconds = 0.030 * max(1.0, rows / 64) * chance.uniform(0.95, 1.05)
        passes.update(rows, seconds, sessions=1)
    curve = passes.curve()
    assert curve.seconds(1) == pytest.approx(0.030, rel=0.05)
    assert curve.seconds(50) == pytest.approx(0.030, rel=0.05)
    assert curve.seconds(128) == pytest.approx(0.060, rel=0.05)
    assert curve.seconds(256) == pytest.approx(0.120, rel=0.15)


def test_more_rows_never_seem_to_take_less_time() -> None:
    passes = PassCost()
    for rows, seconds in ((4, 0.03), (8, 0.02), (16, 0.04), (32, 0.01)):
        passes.update(rows, seconds, sessions=1)
    found = [passes.curve().seconds(rows) for rows in range(1, 64)]
    assert found == sorted(found)


def test_pass_cost_counts_a_pass_once_however_many_report_it() -> None:
    alone, together = PassCost(), PassCost()
    for rows in (8, 24, 8, 40):
        alone.update(rows, 0.001 * rows, sessions=1)
        for _ in range(8):
            together.update(rows, 0.001 * rows, sessions=8)
    assert together.curve().seconds(30) == pytest.approx(alone.curve().seconds(30))


def test_one_slow_pass_among_many_of_its_size_says_nothing_of_the_size() -> None:
    passes = PassCost()
    for seconds in (0.03, 0.03, 0.5, 0.03):
        passes.update(5, seconds, sessions=1)
    assert passes.curve().seconds(5) == 0.03


def test_what_plans_are_remembered_by_is_the_same_for_passes_that_take_the_same() -> None:
    chance, found = random.Random(1), set()
    pass_s = rounded(0.0305, CURVE_STEP)
    for _ in range(50):
        flat = [(rows, pass_s * chance.uniform(0.997, 1.003)) for rows in (1.0, 4.04, 9.3, 17.0)]
        found.add(rounded_curve(CostCurve(tuple(flat))))
    assert found == {CostCurve(((1.0, pass_s),))}
    rising = CostCurve(((1.0, 0.03), (4.0, 0.03), (8.0, 0.03), (16.0, 0.06), (32.0, 0.12)))
    seen = rounded_curve(rising)
    assert [rows for rows, _ in seen.points] == [1.0, 8.0, 16.0, 32.0]
    padded = CostCurve(((1.0, 0.03), (2.0, 0.04), (5.0, 0.0401), (9.0, 0.0402)))
    assert rounded_curve(padded).seconds(40) == pytest.approx(0.04, rel=0.01), "as it was behind 2"
    assert all(
        seen.seconds(rows) == pytest.approx(rising.seconds(rows), rel=0.006) for rows in range(64)
    )


def test_a_session_begins_with_the_plan_of_the_one_before() -> None:
    """A search takes a millisecond, for which its first token would wait."""
    experience = learnt()
    first = WindowController(experience, max_window=40, start=START)
    drive(first, 0.8, 60)
    second = WindowController(experience, max_window=40, start=START)
    assert second.plan == next(iter(experience.last_plans.values()))
    assert second.plan.window
    narrow = WindowController(experience, max_window=4, start=START)
    assert 0 < narrow.plan.window <= 4


def test_a_size_whose_only_pass_was_slow_is_tried_again() -> None:
    """Its plans are not made, so that nothing else would ever show that it is not dear."""
    passes = PassCost()
    passes.update(5, 0.5, sessions=1)
    for _ in range(PASSES_REMEMBERED):
        passes.update(1, 0.03, sessions=1)
        assert passes.curve().seconds(5) == 0.5
    passes.update(1, 0.03, sessions=1)
    assert passes.curve().seconds(5) == 0.03


def test_plain_passes_are_not_forgotten_however_long_there_were_none() -> None:
    passes = PassCost()
    passes.update(4, 0.03, sessions=4)
    for _ in range(2 * PASSES_REMEMBERED):
        passes.update(40, 0.06, sessions=4)
    assert passes.least_rows == 4
    assert passes.curve().seconds(4) == pytest.approx(0.03)


def test_drafts_are_worth_less_of_a_gain_where_their_rows_cost_nobody_anything() -> None:
    """Four sessions, an acceptance rate at which riding gains 4 %."""
    little = conditions(0.25, sessions=4, round_trip_s=0.02)
    gain, plan = best_plan(little, max_window=40)
    assert plan.window > 0
    assert 1.02 < gain / plain_rate(little) < GAIN_IN_COMPANY
    costly = conditions(0.2, sessions=4, round_trip_s=0.02, cost=cost(per_row_s=0.0005))
    assert best_plan(costly, max_window=40)[1] is NO_SPECULATION


def test_a_plan_that_is_kept_judges_what_rows_cost_by_now() -> None:
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START)
    drive(controller, 0.9, 40)
    kept = controller.plan
    assert kept.ahead
    assert kept.max_judged is None, "rows cost nothing so far"
    dear = conditions(0.9, round_trip_s=0.001, cost=cost(per_row_s=0.0004))
    controller._decide(dear, 1)
    plan = controller.plan
    assert (plan.num_speculative_tokens, plan.ahead) == (kept.num_speculative_tokens, kept.ahead)
    assert plan.max_judged == most_judged(dear, plan)
    assert plan.max_judged is not None


def test_a_block_is_timed_as_drafted_alone_unless_the_verifier_went_on_without_it() -> None:
    """What is read before the first one may outlast the wait."""
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, in_turns=True)
    told: dict[str, int] = {"judged": 0, "accepted": 0, "committed": 1, "sessions": 1}
    for _ in range(2):
        controller.saw_verdict(**told)
    assert controller.plan.window
    controller.saw_verdict(**told)
    controller.saw_block(num_tokens=2, draft_s=0.032)
    assert (experience.draft_s.value, experience.draft_beside_s.value) == (None, 0.016)
    controller.saw_verdict(judged=2, accepted=1, committed=2, sessions=1)
    controller.saw_block(num_tokens=2, draft_s=0.010)
    controller.saw_verdict(**told, is_plain=False)
    controller.saw_block(num_tokens=2, draft_s=0.010)
    assert experience.draft_s.value == 0.005
    assert experience.draft_s.num_samples == 2


def test_company_that_comes_meanwhile_leaves_an_announcement_without_object() -> None:
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, in_turns=True)
    controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    assert controller.plan.is_about_to_open
    controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=2)
    assert not controller.plan.is_about_to_open
    assert controller.plan.patience_s == 0.0, "nobody waits in company for a pair that nobody knows"


def test_a_pass_judges_no_more_than_the_plan_pays_for() -> None:
    """Where drafts take no time all of a window may be there at once."""
    found = {"draft_s": 0.0001, "round_trip_s": 0.003}
    costly = conditions(0.6, cost=cost(per_row_s=0.002), **found)
    _, plan = best_plan(costly, max_window=40)
    assert plan.max_judged == 1 + max(plan.num_speculative_tokens, plan.ahead)
    assert plan.max_judged < plan.window
    _, plan = best_plan(conditions(0.6, **found), max_window=40)
    assert plan.max_judged is None, "rows cost nothing"


def test_the_lower_quartile_is_of_the_last_samples() -> None:
    quartile = LowerQuartile(window=5)
    assert quartile.value is None
    quartile.update(90.0)
    assert quartile.value == 90.0
    for sample in (5.0, 60.0, 7.0, 6.0, 1.0):
        quartile.update(sample)
    assert quartile.value == 5.0
    assert quartile.num_samples == 5


def test_a_session_begins_with_what_others_have_learnt() -> None:
    experience = learnt()
    first = WindowController(experience, max_window=40, start=START)
    assert first.plan == START
    drive(first, 0.9, 300)
    second = WindowController(experience, max_window=40, start=START)
    truth = conditions(0.9, round_trip_s=0.001)
    assert rate(truth, second.plan) >= 0.95 * best_plan(truth, max_window=40)[0]


def test_many_that_begin_at_once_learn_what_a_plain_pass_takes_first() -> None:
    controller = WindowController(learnt(), max_window=40, start=START, sessions=64)
    plans = []
    for _ in range(12):
        plans.append(controller.plan)
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=64)
    assert plans[:FIRST_PROBE_TOKENS] == [NO_SPECULATION] * FIRST_PROBE_TOKENS
    assert set(plans[FIRST_PROBE_TOKENS:]) == {PROBE}
    small = WindowController(learnt(), max_window=1, start=WindowPlan(1, 1, None), sessions=2)
    drive(small, 0.0, 60)
    assert small.plan.window <= 1, "a probe fits the window too"


def test_a_burst_waits_for_its_first_verdict_where_rows_cost_something() -> None:
    """Eight have come so far, for whom drafts pay; others follow before the prompts are read."""
    shared = Experience(PassCost())
    for rows in (1, 8, 32, 64, 128, 256):
        shared.cost.update(rows, 0.030 * max(1.0, rows / 64), sessions=1)
    shared.draft_s.update(0.003)
    shared.acceptance.update(judged=20, accepted=16)

    def opened(sessions: int) -> WindowController:
        return WindowController(shared, max_window=40, start=START, sessions=sessions)

    burst, company = opened(8), opened(8)
    assert burst.plan == company.plan == NO_SPECULATION
    burst.saw_verdict(judged=0, accepted=0, committed=1, sessions=64)
    assert not burst.plan.window
    company.saw_verdict(judged=0, accepted=0, committed=1, sessions=8)
    assert company.plan.window
    assert opened(1).plan.window
    assert opened(3).plan.window, "all of their drafts cost a pass nothing"


def test_of_a_sampled_target_overtaken_drafts_tell_less_than_acceptance() -> None:
    """They agree by chance alone; that drafts are accepted more often is seen by judging them."""
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START, is_deterministic=False)
    for _ in range(50):
        controller.saw_overtaken(compared=1, agreed=0)
    assert experience.agreement.value < 0.1
    assert experience.acceptance.value == pytest.approx(0.7)


def test_a_drafter_that_is_useless_to_a_sampled_target_is_left_too() -> None:
    """Nothing may be overtaken where the verifier waits: judged drafts bound the agreement."""
    controller = WindowController(learnt(), max_window=40, start=START, is_deterministic=False)
    plans = drive(controller, 0.0, 400)
    assert sum(plan.window == 0 for plan in plans) > 0.8 * len(plans)


def test_a_drafter_that_becomes_good_again_is_found_without_judging_anything() -> None:
    """Its probes come too late each time, but they agree with what was committed meanwhile."""
    controller = WindowController(learnt(), max_window=40, start=START)
    drive(controller, 0.0, 300)
    for _ in range(200):
        if controller.plan == PROBE:
            controller.saw_overtaken(compared=2, agreed=2)
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
        if controller.plan.ahead:
            return
    raise AssertionError("never found out")


def test_a_drafter_that_seldom_has_anything_to_propose_is_not_waited_for() -> None:
    """What it copies is right, but for one answer in thirty the verifier would wait each time."""
    rare = conditions(0.7, draft_s=0.0, round_trip_s=0.003, offers=0.03)
    assert waiting_rate(rare, 4, 0) < plain_rate(rare)
    assert best_plan(rare, max_window=12)[1].patience_s == 0.0
    often = conditions(0.7, draft_s=0.0, round_trip_s=0.003, offers=0.5)
    assert best_plan(often, max_window=12)[1].patience_s != 0.0
    controller = WindowController(learnt(), max_window=12, start=START)
    controller.saw_round_trip(0.003)
    controller.saw_block(num_tokens=4, draft_s=0.0004)
    for _ in range(60):
        controller.saw_offer(num_tokens=0)
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    assert controller.plan.patience_s == 0.0


def test_an_answer_that_there_is_nothing_ends_a_probe() -> None:
    """To ask on would cost a message at every token."""
    controller = WindowController(learnt(), max_window=40, start=START)
    drive(controller, 0.0, 300)
    while controller.plan != PROBE:
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    controller.saw_offer(num_tokens=0)
    controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    assert controller.plan is NO_SPECULATION


def test_what_others_know_is_not_lost_on_one_wrong_draft() -> None:
    experience = learnt()
    drive(WindowController(experience, max_window=40, start=START), 0.6, 400)
    second = WindowController(experience, max_window=40, start=START)
    second.saw_verdict(judged=2, accepted=0, committed=1, sessions=1)
    assert second.plan.window
    known = AcceptanceEstimate.beginning_with(experience.acceptance)
    assert known.value == pytest.approx(experience.acceptance.value)
    assert known.trials == KNOWN_TRIALS
    assert AcceptanceEstimate.beginning_with(AcceptanceEstimate()).trials < KNOWN_TRIALS


def test_on_one_device_drafts_begin_for_a_clear_gain_and_go_on_for_a_small_one() -> None:
    """What an opening window costs, and messages beside a pass, is in no measured time."""
    experience = learnt()
    for _ in range(FIRST_BLOCKS):
        experience.draft_s.update(0.009)
    found = conditions(0.36, draft_s=0.009)
    gains = {
        gain: best_plan(found, max_window=40, in_turns=True, gain=gain)[1].window
        for gain in (1.0, GAIN_TO_GO_ON_IN_TURNS, GAIN_IN_TURNS)
    }
    assert gains[GAIN_TO_GO_ON_IN_TURNS]
    assert not gains[GAIN_IN_TURNS]
    drawing = WindowController(experience, max_window=40, start=START, in_turns=True)
    copying = WindowController(experience, max_window=40, start=START, on_one_device=True)
    for controller, begin, go_on in (
        (drawing, GAIN_IN_TURNS, GAIN_TO_GO_ON_IN_TURNS),
        (copying, GAIN_BESIDE, GAIN_TO_GO_ON_BESIDE),
    ):
        controller.plan = NO_SPECULATION
        assert controller._gain(1) == begin
        controller.plan = WindowPlan(1, 1, 0.05)
        assert controller._gain(1) == go_on
        assert controller._gain(4) is None, "in company the device is busy anyway"
    apart = WindowController(experience, max_window=40, start=START)
    assert apart._gain(1) is None


@pytest.mark.parametrize(("sessions", "in_turns"), [(1, True), (4, True), (4, False)])
def test_a_pair_that_was_silent_once_is_known_to_short_sessions_too(
    sessions: int, in_turns: bool
) -> None:
    """A drafter may have been slow at first: what it is now shows within some thousand tokens."""
    experience = learnt()

    def session(num_tokens: int, *, answers: bool) -> int:
        controller = WindowController(
            experience, max_window=40, start=START, sessions=sessions, in_turns=in_turns
        )
        blocks = 0
        for _ in range(num_tokens):
            if answers and controller.plan.window:
                controller.saw_block(num_tokens=1, draft_s=0.003)
                blocks += 1
            controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=sessions)
        return blocks

    session(400, answers=False)
    assert experience.failed_tries >= 2
    assert sum(session(100, answers=True) for _ in range(12)) > 0
    assert experience.failed_tries == 0


def test_an_answer_without_drafts_is_no_silence() -> None:
    """Prompt lookup may find nothing for long."""
    experience = learnt()
    controller = WindowController(experience, max_window=40, start=START)
    for _ in range(200):
        controller.saw_offer(num_tokens=0)
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
    assert experience.failed_tries == 0
    assert controller.plan.window


def test_on_one_device_a_new_session_copies_for_a_clear_gain_only() -> None:
    experience = learnt()
    experience.draft_s.update(0.0001)
    for _ in range(300):
        experience.acceptance.update(judged=1, accepted=0)
        experience.offers.update(judged=1, accepted=1)
    for _ in range(4):
        experience.acceptance.update(judged=4, accepted=3)
    apart = WindowController(experience, max_window=40, start=START)
    gain, _ = best_plan(apart._seen.conditions(1), max_window=40)
    ratio = gain / plain_rate(apart._seen.conditions(1))
    assert GAIN_TO_GO_ON_BESIDE < ratio < GAIN_BESIDE, "as the test wants it"
    assert apart.plan.window
    shared = WindowController(experience, max_window=40, start=START, on_one_device=True)
    assert shared.plan is NO_SPECULATION


@pytest.mark.parametrize("round_trip_s", [0.0, 0.020])
@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.9])
def test_rates_with_outcomes_ahead_are_near_the_simulated_ones(
    acceptance: float, round_trip_s: float
) -> None:
    """Within 12 % of four runs: how many come in time is what the session measures."""
    scenario = Scenario(
        DeviceCost(0.030),
        DeviceCost(0.003),
        num_speculative_tokens=4,
        window=16,
        max_tokens=3000,
        verifier_delay_s=round_trip_s / 2,
        num_outcome_tokens=8,
    )
    coins = random.Random(1)
    guesses = [0 if coins.random() < 0.6 else None for _ in range(3100)]
    simulated = [
        simulate(
            scenario,
            acceptance=acceptance,
            right_other=lambda _, position: guesses[position],
            seed=seed,
        ).tokens_per_second
        for seed in range(4)
    ]
    # those that come late are waited for
    found = conditions(acceptance, round_trip_s=round_trip_s, outcomes=0.6, outcome_tokens=8)
    assert waiting_rate(found, 4, 6) == pytest.approx(sum(simulated) / 4, rel=0.12)
    without = waiting_rate(replace(found, outcomes=0.0), 4, 6)
    assert waiting_rate(found, 4, 6) > 1.1 * without


def test_outcomes_that_come_late_are_of_use_to_who_waits() -> None:
    found = conditions(0.8, outcomes=0.2, outcome_tokens=8)
    late = replace(found, late_outcomes=0.3)
    assert waiting_rate(late, 2, 6) > waiting_rate(found, 2, 6)
    assert riding_rate(late, 2, 6) == riding_rate(found, 2, 6)


def test_a_session_learns_how_many_rejections_find_drafts() -> None:
    shared = learnt()
    controller = WindowController(
        shared, max_window=24, start=WindowPlan(4, 12, None), outcome_tokens=8
    )
    controller.saw_block(num_tokens=4, draft_s=0.012)
    for turn in range(200):
        controller.saw_rejection(finds_drafts=turn % 4 == 0, late=turn % 4 == 1)
    known = controller._seen.conditions(1)
    assert known.outcomes == pytest.approx(0.25, abs=0.1)
    assert known.late_outcomes == pytest.approx(0.25, abs=0.1)
    assert known.outcome_tokens == 8
    assert controller._seen.conditions(MAX_SESSIONS_AHEAD + 1).outcome_tokens == 0
    later = WindowController(shared, max_window=24, start=WindowPlan(4, 12, None), outcome_tokens=8)
    assert later._seen.conditions(1).outcomes == pytest.approx(0.25, abs=0.1)


def test_in_company_no_hair_decides_how_many_passes_a_block_takes() -> None:
    """It comes sooner or later than expected: between two whole numbers the rate falls steadily."""
    rates = [
        waiting_rate(conditions(0.8, sessions=8, round_trip_s=round_trip_ms / 1e3), 4, 4)
        for round_trip_ms in range(60)
    ]
    steps = [later / earlier for earlier, later in pairwise(rates)]
    assert all(0.9 < step <= 1.0 for step in steps)
    assert rates[0] > 1.5 * rates[-1]
    assert rates[30] == rates[31], "a block that surely comes within the pass waits no longer"


def test_in_company_a_run_of_bad_luck_counts_less() -> None:
    """What is usual says as much, as long as others share the verifier."""
    shared = learnt()
    for _ in range(200):
        shared.acceptance.update(judged=5, accepted=4)
    controller = WindowController(shared, max_window=40, start=START, sessions=8)
    controller.saw_block(num_tokens=4, draft_s=0.012)
    usual = shared.acceptance.value
    for _ in range(60):
        controller._seen.acceptance.update(judged=1, accepted=0)
    own = controller._seen.acceptance.value
    assert own < 0.1
    assert controller._seen.conditions(8).acceptance == pytest.approx((own + usual) / 2, abs=0.03)
    assert controller._seen.conditions(1).acceptance == pytest.approx(own, abs=0.02)
