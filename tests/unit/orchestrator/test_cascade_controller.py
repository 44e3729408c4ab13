"""Copying and drawing are judged apart, and each is planned for what it is worth."""

from __future__ import annotations

import random

import pytest

from orchestrator.cascade_controller import CascadeController
from orchestrator.estimates import Experience, PassCost
from orchestrator.window_controller import WindowController
from orchestrator.window_plan import MAX_BLOCK, NO_SPECULATION, WindowPlan

START = WindowPlan(4, 12, None)
PASS_S = 0.030


def experience() -> Experience:
    passes = PassCost()
    for rows in (1, 3, 9, 13):
        passes.update(rows, PASS_S + 0.0005 * rows, sessions=1)
    return Experience(passes)


def cascade(shared: Experience, *, in_turns: bool = False) -> CascadeController:
    return CascadeController(
        drawing=WindowController(shared, max_window=12, start=START, in_turns=in_turns),
        copying=WindowController(shared.copying, max_window=12, start=START),
    )


def drive(
    controller: CascadeController,
    *,
    copied: float | None,
    drawn: float,
    draw_s: float = 0.003,
    rounds: int = 200,
    seed: int = 0,
) -> list[WindowPlan]:
    """Rounds in which every other one finds something to copy, which is right as often as `copied`
    says (None: never finds any), and in the others the model drafts, if it may."""
    chance, plans = random.Random(seed), []
    for number in range(rounds):
        plan = controller.plan
        copies = copied is not None and number % 2 == 0
        if copies:
            length, rate = min(plan.num_speculative_tokens, plan.window), copied or 0.0
        else:
            own = plan.window if plan.draw_window is None else plan.draw_window
            block = plan.num_drawn_tokens or plan.num_speculative_tokens
            length, rate = min(block, own), drawn
        accepted = 0
        while accepted < length and chance.random() < rate:
            accepted += 1
        if length:
            controller.saw_block(
                num_tokens=0 if copies else length, draft_s=0.0 if copies else length * draw_s
            )
        controller.saw_round_trip(0.001)
        controller.saw_verdict(
            judged=length,
            accepted=accepted,
            committed=accepted + 1,
            sessions=1,
            copied=range(length) if copies else (),
        )
        plans.append(controller.plan)
    return plans


def test_copies_that_do_not_pay_by_themselves_have_a_limit_too() -> None:
    """They come in place of drafts."""
    controller = cascade(experience(), in_turns=True)
    controller._drawing.plan = WindowPlan(5, 5, 0.1, min_copy_confidence=0.2, usual_block=2)
    controller._copying.plan = NO_SPECULATION
    assert controller.plan.min_copy_confidence == 0.2
    controller._copying.plan = WindowPlan(8, 8, 0.0, min_copy_confidence=0.1)
    assert controller.plan.min_copy_confidence == 0.1


def test_where_both_pay_each_has_its_own_length() -> None:
    controller = cascade(experience(), in_turns=True)
    plans = drive(controller, copied=0.95, drawn=0.5)[50:]
    assert all(plan.draw_window == plan.num_drawn_tokens for plan in plans), "in turns"
    assert sum(plan.num_drawn_tokens or 0 for plan in plans) / len(plans) < 5
    assert sum(plan.num_speculative_tokens for plan in plans) / len(plans) > 6
    assert all(plan.window >= plan.num_speculative_tokens for plan in plans)
    assert all(plan.num_speculative_tokens > (plan.num_drawn_tokens or 0) for plan in plans), (
        "room for a look-up behind what is drawn"
    )


def test_a_model_that_does_not_pay_is_probed_while_copying_goes_on() -> None:
    """It takes a third of the target's time and is hardly ever right."""
    controller = cascade(experience(), in_turns=True)
    plans = drive(controller, copied=0.9, drawn=0.05, draw_s=0.010, rounds=400)[50:]
    probes = [plan for plan in plans if plan.draw_window]
    assert 0 < len(probes) < len(plans) / 10
    assert all(plan.window >= 4 for plan in plans), "what is copied is as long as it was"
    assert {plan.draw_window for plan in probes} == {2}


def test_copying_that_does_not_pay_takes_nothing_from_the_model() -> None:
    controller = cascade(experience())
    plans = drive(controller, copied=0.0, drawn=0.9)[100:]
    assert all(plan.draw_window for plan in plans)


def test_where_neither_pays_nothing_is_drafted_but_probes() -> None:
    controller = cascade(experience(), in_turns=True)
    plans = drive(controller, copied=0.0, drawn=0.0, draw_s=0.02, rounds=400)[100:]
    assert sum(plan == NO_SPECULATION for plan in plans) > 0.7 * len(plans)
    assert any(plan.window for plan in plans)


def test_a_session_begins_with_what_others_have_learnt_of_either() -> None:
    shared = experience()
    first = cascade(shared)
    drive(first, copied=0.95, drawn=0.02, draw_s=0.02)
    second = cascade(shared)
    assert second.plan.draw_window == 0
    assert second.plan.num_speculative_tokens > 4


@pytest.mark.parametrize(
    ("judged", "accepted", "copied", "copies", "drawn"),
    [
        (4, 4, (0, 1), (2, 2), (2, 2)),
        (4, 2, (0, 1), (2, 2), (1, 0)),
        (4, 1, (0, 1), (2, 1), (0, 0)),
        (4, 1, (1, 3), (1, 0), (1, 1)),
        (3, 0, (), (0, 0), (1, 0)),
        (0, 0, (), (0, 0), (0, 0)),
    ],
)
def test_each_draft_that_was_tried_counts_for_its_source(
    judged: int,
    accepted: int,
    copied: tuple[int, ...],
    copies: tuple[int, int],
    drawn: tuple[int, int],
) -> None:
    """What lies behind the first wrong draft was not tried."""
    shared = experience()
    controller = cascade(shared)
    for own in (shared, shared.copying):
        own.acceptance._successes = own.acceptance._trials = 0.0
        own.acceptance.memory_trials = 1e9
    controller.saw_verdict(
        judged=judged, accepted=accepted, committed=accepted + 1, sessions=1, copied=copied
    )
    found = [
        (own.acceptance._trials, own.acceptance._successes) for own in (shared.copying, shared)
    ]
    assert found == [copies, drawn]


def test_that_the_model_is_about_to_draft_is_the_verifiers_to_know() -> None:
    controller = cascade(experience())
    controller._drawing.plan = WindowPlan(1, 0, 0.3, is_about_to_open=True)
    controller._copying.plan = NO_SPECULATION
    assert controller.plan == controller._drawing.plan
    controller._copying.plan = WindowPlan(4, 12, 0.0, 8, 9)
    plan = controller.plan
    assert (plan.window, plan.draw_window, plan.patience_s) == (12, 0, 0.3)
    assert plan.is_about_to_open
    controller._copying.plan = WindowPlan(4, 12, 0.01, 8, 9)
    plan = controller.plan
    assert (plan.window, plan.draw_window, plan.patience_s) == (12, 0, 0.01)
    assert not plan.is_about_to_open, "it waits for copies, and has begun no pass"
    controller._drawing.plan = WindowPlan(2, 2, 0.05)
    assert not controller.plan.is_about_to_open


@pytest.mark.parametrize(
    ("copying", "drawing", "most"),
    [
        (WindowPlan(4, 12, 0.0, 4, 5), WindowPlan(2, 2, 0.05, 0, 3), 5),
        (WindowPlan(4, 12, 0.0, 4, 5), WindowPlan(6, 6, 0.05, 0, 7), 7),
        (NO_SPECULATION, WindowPlan(6, 6, 0.05, 0, 7), 7),
        (WindowPlan(4, 12, 0.0, 4, None), WindowPlan(6, 6, 0.05, 0, 7), None),
        (WindowPlan(4, 12, 0.0, 4, 5), NO_SPECULATION, 5),
    ],
)
def test_a_pass_judges_what_either_source_wants_judged(
    copying: WindowPlan, drawing: WindowPlan, most: int | None
) -> None:
    controller = cascade(experience())
    controller._drawing.plan, controller._copying.plan = drawing, copying
    assert controller.plan.max_judged == most


def test_no_block_is_longer_than_the_longest() -> None:
    """Messages are checked to hold that."""
    controller = cascade(experience())
    controller._drawing.plan = WindowPlan(MAX_BLOCK, 2 * MAX_BLOCK, None)
    controller._copying.plan = WindowPlan(4, 12, None)
    assert controller.plan.num_speculative_tokens == MAX_BLOCK
