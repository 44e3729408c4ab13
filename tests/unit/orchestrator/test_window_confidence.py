"""Where workers take turns, blocks end by confidence for as long as that means anything."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from orchestrator.confidence_trust import ConfidenceTrust, DrawnBlock
from orchestrator.estimates import AcceptanceEstimate, CostCurve, Experience, PassCost
from orchestrator.pipeline_rate import Conditions, expected_tokens
from orchestrator.window_controller import FIRST_BLOCKS, WindowController
from orchestrator.window_plan import (
    MAX_BLOCK,
    NO_SPECULATION,
    PROBE_SHARE,
    PROBE_SHARE_IN_HOPE,
    WindowPlan,
    best_plan,
    probe_interval,
)

PASS_S, ROW_S, DRAFT_S, HOP_S = 0.040, 0.0015, 0.007, 0.004


def conditions(acceptance: float, *, row_s: float = ROW_S, draft_s: float = DRAFT_S) -> Conditions:
    curve = CostCurve(tuple((rows, PASS_S + row_s * (rows - 1)) for rows in (1.0, 100.0)))
    return Conditions(acceptance, acceptance, draft_s, HOP_S, 1, curve)


def in_turns(found: Conditions) -> WindowPlan:
    return best_plan(found, max_window=40, in_turns=True, gain=1.0, by_confidence=True)[1]


def test_a_block_may_be_longer_and_ends_where_a_draft_is_not_worth_its_time() -> None:
    plan = in_turns(conditions(0.5))
    _, usual = best_plan(conditions(0.5), max_window=40, in_turns=True, gain=1.0)
    assert plan.usual_block == usual.num_speculative_tokens
    assert plan.num_speculative_tokens == plan.window == 2 * usual.num_speculative_tokens + 1
    tokens_s = expected_tokens(0.5, usual.num_speculative_tokens) / (
        PASS_S + usual.num_speculative_tokens * (ROW_S + DRAFT_S) + HOP_S
    )
    assert plan.min_confidence == pytest.approx((DRAFT_S + ROW_S) * tokens_s / 0.5, abs=0.03)


def test_the_dearer_a_draft_the_surer_the_drafter_has_to_be() -> None:
    found = [
        in_turns(conditions(0.6, draft_s=cost)).min_confidence for cost in (0.002, 0.005, 0.01)
    ]
    assert 0.0 < found[0] < found[1] < found[2] < 1.0


def test_copies_end_where_a_row_is_not_worth_its_time() -> None:
    """And are judged to the last where rows cost nothing."""
    found = [
        best_plan(conditions(0.6, row_s=row_s, draft_s=0.0), max_window=40, copies=True)[1]
        for row_s in (0.0, 0.0015, 0.003)
    ]
    limits = [plan.min_copy_confidence for plan in found]
    assert limits[0] == 0.0 < limits[1] < limits[2] < 0.5
    assert {plan.min_confidence for plan in found} == {0.0}


def test_drafts_that_ran_ahead_end_by_no_confidence() -> None:
    plan = best_plan(conditions(0.6), max_window=40, by_confidence=True)[1]
    assert (plan.min_confidence, plan.usual_block) == (0.0, None)


def controller_in_turns(acceptance: float) -> WindowController:
    """Of workers whose times are known, and that a draft is right so often."""
    cost = PassCost()
    for rows in (1, 2, 5, 9):
        cost.update(rows, PASS_S + ROW_S * (rows - 1), sessions=1)
    experience = Experience(cost)
    for _ in range(FIRST_BLOCKS):
        experience.draft_s.update(DRAFT_S)
    experience.round_trip_s.update(HOP_S)
    for right in (1, 0):
        share = acceptance if right else 1 - acceptance
        for _ in range(round(40 * share)):
            experience.acceptance.update(judged=1, accepted=right)
    return WindowController(experience, max_window=40, start=WindowPlan(4, 40, None), in_turns=True)


def drive(
    controller: WindowController, acceptance: float, num_tokens: int, *, is_sure: bool = True
) -> list[WindowPlan]:
    """A drafter that holds every draft certain, or none, right so often."""
    chance = random.Random(0)
    plans = []
    while num_tokens > 0:
        plan = controller.plan
        drafts = 0 if plan.is_about_to_open else min(plan.window, plan.num_speculative_tokens)
        if plan.min_confidence and not is_sure:
            drafts = min(drafts, 1)
        accepted = 0
        while accepted < drafts and chance.random() < acceptance:
            accepted += 1
        controller.saw_block(
            num_tokens=drafts, draft_s=DRAFT_S * drafts, is_unsure=bool(drafts) and not is_sure
        )
        controller.saw_verdict(judged=drafts, accepted=accepted, committed=accepted + 1, sessions=1)
        plans.append(controller.plan)
        num_tokens -= accepted + 1
    return plans


def test_confidence_that_means_nothing_is_soon_not_believed() -> None:
    plans = [plan for plan in drive(controller_in_turns(0.5), 0.5, 200) if plan.window]
    assert plans[0].usual_block is not None
    assert {plan.usual_block for plan in plans[len(plans) // 2 :]} == {None}
    assert all(plan.num_speculative_tokens <= 2 for plan in plans[len(plans) // 2 :])


def test_a_drafter_that_is_sure_of_nothing_is_not_kept_short_for_long() -> None:
    """Although it is mostly right."""
    plans = drive(controller_in_turns(0.8), 0.8, 200, is_sure=False)
    plans = [plan for plan in plans if plan.window]
    assert plans[0].usual_block is not None
    assert {plan.usual_block for plan in plans[len(plans) // 2 :]} == {None}
    assert plans[-1].num_speculative_tokens > 2


def test_what_is_not_believed_is_tried_again() -> None:
    controller = controller_in_turns(0.8)
    plans = drive(controller, 0.8, 2000, is_sure=False)
    believed = [plan.usual_block is not None for plan in plans]
    assert believed.index(False) < believed.index(True, believed.index(False))


@pytest.mark.parametrize(("num_judged", "is_unsure"), [(1, False), (0, True)])
def test_only_a_block_that_ended_unsure_and_was_judged_whole_should_have_gone_on(
    num_judged: int, is_unsure: bool
) -> None:
    """Not one that copies followed, nor one that the verifier broke off."""
    trust = ConfidenceTrust()
    plan = WindowPlan(5, 5, None, min_confidence=0.4, usual_block=2)
    for _ in range(20):
        trust.saw(plan, DrawnBlock(1, is_unsure), judged=num_judged, accepted=num_judged)
    assert trust.holds(0.2)
    for _ in range(20):
        trust.saw(plan, DrawnBlock(1, is_unsure=True), judged=1, accepted=1)
    assert not trust.holds(0.2)


def test_what_does_not_pay_without_confidence_and_cannot_have_it_is_no_plan() -> None:
    found = conditions(0.3)
    options = {"in_turns": True, "gain": 1.0, "by_confidence": True}
    assert best_plan(found, max_window=1, **options)[1] is NO_SPECULATION
    assert best_plan(found, max_window=40, **options)[1].min_confidence


def test_in_company_a_knee_at_many_rows_is_not_forgotten() -> None:
    curve = CostCurve(((64.0, 0.01), (256.0, 0.01), (512.0, 0.02), (1024.0, 0.04)))
    found = replace(conditions(0.8, draft_s=0.0001), sessions=64, cost=curve).rounded()
    assert found.pass_s(16) == pytest.approx(0.04, rel=0.05)
    assert best_plan(found, max_window=48)[1].num_speculative_tokens <= 4


def test_confidence_that_is_right_is_believed() -> None:
    plans = drive(controller_in_turns(0.9), 0.95, 400)
    blocks = [plan for plan in plans if plan.window]
    assert all(plan.usual_block or plan.num_speculative_tokens == MAX_BLOCK for plan in blocks)


def test_what_confidence_gains_counts_before_speculation_is_given_up() -> None:
    """Just below where blocks of one length would pay."""
    found = conditions(0.32)
    options = {"max_window": 40, "in_turns": True, "gain": 1.01}
    assert best_plan(found, **options)[1] is NO_SPECULATION
    assert best_plan(found, **options, by_confidence=True)[1].window
    assert best_plan(conditions(0.2), **options, by_confidence=True)[1] is NO_SPECULATION


@pytest.mark.parametrize(("trials", "share"), [(8.0, PROBE_SHARE_IN_HOPE), (800.0, PROBE_SHARE)])
def test_a_drafter_that_may_pay_after_all_is_probed_sooner(trials: float, share: float) -> None:
    """What few drafts say is not certain."""
    controller = controller_in_turns(0.18)
    controller._seen.acceptance = AcceptanceEstimate(0.18 * trials, trials)
    due = probe_interval(controller._seen.conditions(1), in_turns=True, share=share)
    tokens = 0
    while not controller.plan.is_about_to_open:
        controller.saw_verdict(judged=0, accepted=0, committed=1, sessions=1)
        tokens += 1
    assert tokens == math.ceil(due)


def test_a_copying_plan_that_is_kept_ends_by_what_rows_cost_by_now() -> None:
    cost = PassCost()
    for rows in (1, 5, 40):
        cost.update(rows, PASS_S, sessions=1)
    experience = Experience(cost).copying
    controller = WindowController(
        experience, max_window=40, start=WindowPlan(4, 40, None), copies=True
    )
    limits = []
    for row_s in (0.0, 0.0001):  # 20 of it a row
        for _ in range(60):
            for rows in (1, 9, 17, 40):
                cost.update(rows, PASS_S + 20 * row_s * (rows - 1), sessions=1)
            controller.saw_verdict(judged=8, accepted=8, committed=9, sessions=1)
        assert controller.plan.ahead
        limits.append(controller.plan.min_copy_confidence)
    assert limits[0] == 0.0 < limits[1]
