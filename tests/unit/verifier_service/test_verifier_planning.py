"""When a session's next pass runs, and what it judges: patience, bonus, credit, limits."""

from __future__ import annotations

from typing import Any

import pytest
from verifier_harness import PATIENCE_S, SessionBench, block

from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import DrafterState, Origin
from verifier_service.plan import PassPlan

SAMPLED = SamplingParams(temperature=1.0, max_tokens=50)
COUPLED = SamplingParams(temperature=1.0, acceptance=Acceptance.COUPLED, max_tokens=50)
BLOCKWISE = SamplingParams(temperature=1.0, acceptance=Acceptance.BLOCK, max_tokens=50)


def waits(bench: SessionBench) -> float | None:
    """Seconds until the session has something to do by itself."""
    due = bench.session.ready_at(bench.now)
    return None if due is None else due - bench.now


# --- patience -------------------------------------------------------------------------------------


def test_the_first_token_never_waits_for_drafts() -> None:
    """DESIGN 3.1: it comes straight from the prefill."""
    bench = SessionBench(prefilled=False)
    assert waits(bench) == 0.0
    assert bench.plan() == PassPlan(num_uncached=3, num_drafts=0, wants_next=True)


def test_the_first_token_after_a_reopening_waits_for_nobody_either() -> None:
    bench = SessionBench(prefilled=False, token_ids=(1, 2, 3, 4, 5), prompt_length=3)
    assert waits(bench) == 0.0
    verdict = bench.decide(bench.plan(), accepted=0, next_token=6)
    assert verdict.next_origin is Origin.AUTOREGRESSIVE, "the prefill of the prompt was elsewhere"


def test_a_late_drafter_is_waited_for_once() -> None:
    """H02: patience, then autoregressive steps without waiting until a block comes."""
    bench = SessionBench()
    assert waits(bench) == PATIENCE_S
    just_before = PATIENCE_S * 0.999
    assert bench.session.plan(just_before) is None
    bench.now = PATIENCE_S
    assert waits(bench) == 0.0
    for token_id in (5, 6, 7):
        plan = bench.plan()
        assert (plan.num_drafts, plan.wants_next) == (0, True)
        verdict = bench.decide(plan, accepted=0, next_token=token_id)
        assert verdict.next_origin is Origin.AUTOREGRESSIVE
        assert waits(bench) == 0.0, "it has lost its patience for good"
    bench.session.add_block(block(7, [8]))
    assert waits(bench) == 0.0, "drafts are there"
    bench.decide(bench.plan(), accepted=1, next_token=None)
    assert waits(bench) == PATIENCE_S, "it is worth waiting again"


def test_waiting_counts_from_the_verdict_and_not_from_the_block() -> None:
    bench = SessionBench()
    bench.session.ready_at(0.0)
    bench.now = 0.75 * PATIENCE_S
    bench.session.add_block(block(4, []))  # no drafts: nothing has changed
    assert waits(bench) == pytest.approx(0.25 * PATIENCE_S)


def test_a_drafter_without_an_idea_costs_no_round_trip_a_token() -> None:
    """DESIGN 3.7: until prompt lookup finds something, nobody waits for its answers."""
    bench = SessionBench()
    bench.session.add_block(block(4, [], state=DrafterState.PAUSED, known_committed=4))
    for token_id in (5, 6):
        assert waits(bench) == 0.0
        bench.decide(bench.plan(), accepted=0, next_token=token_id)
    bench.session.add_block(block(5, [6, 7], known_committed=5))  # found one token late
    assert bench.plan().num_drafts == 1
    bench.decide(bench.plan(), accepted=1, next_token=None)
    assert waits(bench) == PATIENCE_S


def test_a_patience_that_was_told_holds_for_a_drafter_without_an_idea_too() -> None:
    """Who told it has weighed how often there is one."""
    bench = SessionBench()
    bench.session.set_speculation(enabled=True, patience_s=2 * PATIENCE_S)
    bench.session.add_block(block(4, [], state=DrafterState.PAUSED, known_committed=4))
    bench.decide(bench.plan(), accepted=0, next_token=5)
    assert waits(bench) == 2 * PATIENCE_S


def test_a_reproducible_session_waits_for_the_answer_of_a_drafter_without_an_idea() -> None:
    """A06: whether it comes in time must not shape the output."""
    bench = SessionBench(reproducible=True)
    bench.session.add_block(block(4, [], state=DrafterState.PAUSED, known_committed=4))
    bench.decide(bench.plan(), accepted=0, next_token=5)
    assert waits(bench) == PATIENCE_S


@pytest.mark.parametrize("state", [DrafterState.PAUSED, DrafterState.ENDED])
def test_a_resting_drafter_is_not_waited_for(state: DrafterState) -> None:
    bench = SessionBench()
    bench.session.add_block(block(4, [], state=state, known_committed=4))
    assert waits(bench) == 0.0


def test_a_paused_drafter_that_a_verdict_will_wake_is_waited_for() -> None:
    bench = SessionBench()
    bench.session.add_block(block(4, [5], state=DrafterState.PAUSED, known_committed=4))
    bench.decide(bench.plan(), accepted=1, next_token=6)
    assert waits(bench) == PATIENCE_S


def test_an_ended_drafter_stays_so_after_further_verdicts() -> None:
    """D04: past the draft model's context nothing is waited for."""
    bench = SessionBench()
    bench.session.add_block(block(4, [5], state=DrafterState.ENDED, known_committed=4))
    bench.decide(bench.plan(), accepted=1, next_token=6)
    assert waits(bench) == 0.0


def test_a_new_patience_does_not_wait_for_a_drafter_that_has_ended() -> None:
    """It has said so once, and is silent from then on."""
    bench = SessionBench()
    bench.session.add_block(block(4, [], state=DrafterState.ENDED, known_committed=4))
    bench.session.set_speculation(enabled=True, patience_s=2 * PATIENCE_S)
    assert waits(bench) == 0.0
    bench.session.set_speculation(enabled=False)
    bench.session.set_speculation(enabled=True)
    assert waits(bench) == PATIENCE_S, "another one drafts"


def test_without_speculation_nothing_is_waited_for() -> None:
    bench = SessionBench(speculation=False)
    assert waits(bench) == 0.0
    bench.session.set_speculation(enabled=True)
    assert waits(bench) == PATIENCE_S, "the drafter has come back"
    bench.session.set_speculation(enabled=False)
    assert waits(bench) == 0.0


@pytest.mark.parametrize(("most", "judged"), [(2, 2), (99, 3), (None, 3)])
def test_an_orchestrator_may_have_less_judged_at_once_but_no_more(
    most: int | None, judged: int
) -> None:
    bench = SessionBench(max_drafts=3)
    bench.session.set_speculation(enabled=True, max_drafts=most)
    bench.session.add_block(block(4, [5, 6, 7, 8]))
    plan = bench.plan()
    assert (plan.num_drafts, plan.wants_next) == (judged, False), "the rest is for the next pass"
    bench.session.set_speculation(enabled=True)
    assert bench.plan().num_drafts == 3


# --- bonus ----------------------------------------------------------------------------------------

PAUSED, ENDED, RUNNING = DrafterState.PAUSED, DrafterState.ENDED, DrafterState.RUNNING
UNSURE = DrafterState.UNSURE


@pytest.mark.parametrize(
    ("sampling", "state", "known_committed", "options", "takes_bonus"),
    [
        (SamplingParams(temperature=0, max_tokens=50), RUNNING, 4, {}, True),
        (COUPLED, RUNNING, 4, {}, True),
        (COUPLED, RUNNING, 4, {"reproducible": True}, True),
        (SAMPLED, RUNNING, 4, {}, False),
        (SAMPLED, PAUSED, 4, {}, True),
        (SAMPLED, PAUSED, 3, {}, False),  # a verdict is on its way and wakes the drafter
        (SAMPLED, ENDED, 3, {}, True),
        (SAMPLED, PAUSED, 4, {"reproducible": True}, False),
        (SAMPLED, ENDED, 4, {"reproducible": True}, False),
        (SAMPLED, PAUSED, 4, {"reproducible": True, "window": 4}, True),
        (SAMPLED, RUNNING, 4, {"reproducible": True, "window": 4}, False),
        (BLOCKWISE, PAUSED, 4, {"reproducible": True, "window": 4}, True),
        (BLOCKWISE, PAUSED, 4, {}, True),
        (SAMPLED, UNSURE, 3, {}, True),  # whatever it hears, it rests there
        (SAMPLED, UNSURE, 3, {"reproducible": True}, True),
        (BLOCKWISE, UNSURE, 3, {"reproducible": True}, True),
    ],
)
def test_the_bonus_is_taken_where_it_voids_no_drafts(
    sampling: SamplingParams,
    state: DrafterState,
    known_committed: int,
    options: dict[str, Any],
    takes_bonus: bool,
) -> None:
    """DESIGN 3.6: always where the target's token is deterministic, else at the drafter's rest.

    A reproducible output may not depend on whether the drafter rests, unless it always does.
    """
    bench = SessionBench(sampling=sampling, **options)
    bench.session.add_block(block(4, [5, 6, 7], state=state, known_committed=known_committed))
    plan = bench.plan()
    assert plan == PassPlan(num_uncached=1, num_drafts=3, wants_next=takes_bonus)
    assert plan.num_rows == 3 + takes_bonus
    assert plan.num_inputs == 3 + takes_bonus, "without a bonus the last draft is no input"
    verdict = bench.decide(plan, accepted=3, next_token=8 if takes_bonus else None)
    assert verdict.next_origin is (Origin.BONUS if takes_bonus else None)
    assert verdict.kv_length == 6 + takes_bonus


@pytest.mark.parametrize("accepted", [0, 2])
def test_drafts_of_an_unsure_drafter_are_waited_for_once_its_block_is_judged(accepted: int) -> None:
    bench = SessionBench(sampling=SAMPLED)
    bench.session.add_block(block(4, [5, 6], state=UNSURE))
    bench.decide(bench.plan(), accepted=accepted, next_token=8)
    assert waits(bench) == PATIENCE_S


def test_an_unsure_drafters_block_that_was_overtaken_leaves_no_rest() -> None:
    """Autoregressive steps committed just what it had drafted: it has heard so, and goes on."""
    bench = SessionBench(sampling=SAMPLED)
    bench.now += PATIENCE_S
    bench.decide(bench.plan(), accepted=0, next_token=5)
    bench.session.add_block(block(4, [5], state=UNSURE))
    assert waits(bench) == pytest.approx(PATIENCE_S)


@pytest.mark.parametrize("sampling", [SAMPLED, BLOCKWISE])
def test_credit_withholds_no_bonus_of_an_unsure_drafter(sampling: SamplingParams) -> None:
    """A06: the number that decides the token there must not depend on it."""
    bench = SessionBench(sampling=sampling, reproducible=True, committed_limit=6)
    bench.session.add_block(block(4, [5, 6], state=UNSURE))
    assert bench.session.plan(0.0) is None
    bench.session.grant(7)
    assert bench.plan() == PassPlan(num_uncached=1, num_drafts=2, wants_next=True)


def test_no_bonus_while_drafts_are_left() -> None:
    bench = SessionBench(max_drafts=4)
    bench.session.add_block(block(4, [5, 6, 7, 8, 9, 10, 0, 1, 2, 3], state=ENDED))
    judged = []
    while bench.session.tail:
        plan = bench.plan()
        judged.append((plan.num_drafts, plan.wants_next))
        bench.decide(plan, accepted=plan.num_drafts, next_token=4 if plan.wants_next else None)
    assert judged == [(4, False), (4, False), (2, True)]


# --- credit and length ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "expected"), [(1, (1, False)), (2, (2, False)), (3, (3, False)), (4, (3, True))]
)
def test_a_pass_never_commits_past_the_credit(room: int, expected: tuple[int, bool]) -> None:
    bench = SessionBench(committed_limit=4 + room)
    bench.session.add_block(block(4, [5, 6, 7]))
    plan = bench.plan()
    assert (plan.num_drafts, plan.wants_next) == expected


@pytest.mark.parametrize("room", range(1, 5))
def test_a_pass_never_commits_past_max_tokens(room: int) -> None:
    """B03: drafts beyond the end are not even judged."""
    bench = SessionBench(sampling=SamplingParams(temperature=0, max_tokens=1 + room))
    bench.session.add_block(block(4, [5, 6, 7]))
    plan = bench.plan()
    assert plan.num_rows == room


def test_without_credit_nothing_runs_until_more_is_granted() -> None:
    bench = SessionBench(committed_limit=4)
    bench.session.add_block(block(4, [5]))
    assert waits(bench) is None
    assert bench.session.plan(100.0) is None
    bench.session.grant(6)
    bench.session.grant(2)  # credit never shrinks
    assert bench.plan().num_rows == 2


def test_reproducible_block_verification_judges_the_drafters_blocks_one_by_one() -> None:
    """What one pass judges shapes the output, so timing may not merge or split blocks."""
    bench = SessionBench(sampling=BLOCKWISE, reproducible=True, max_drafts=2, committed_limit=6)
    bench.session.add_block(block(4, [5, 6, 7]))
    bench.session.add_block(block(7, [8, 9, 10]))
    assert waits(bench) is None, "the credit ends within the block"
    bench.session.grant(100)
    for _ in range(2):
        plan = bench.plan()
        assert (plan.num_drafts, plan.wants_next) == (3, False)
        bench.decide(plan, accepted=3, next_token=None)


def test_reproducible_block_verification_reaches_max_tokens_inside_a_block() -> None:
    sampling = SamplingParams(acceptance=Acceptance.BLOCK, max_tokens=3)
    bench = SessionBench(sampling=sampling, reproducible=True)
    bench.session.add_block(block(4, [5, 6, 7]))
    plan = bench.plan()
    assert (plan.num_drafts, plan.wants_next) == (2, False)


def test_a_session_without_pages_waits() -> None:
    bench = SessionBench(prefilled=False)
    bench.session.table = None
    assert waits(bench) is None


def test_the_queue_time_runs_from_being_ready_to_the_pass() -> None:
    bench = SessionBench()
    bench.session.add_block(block(4, [5]))
    bench.plan()
    assert bench.session.waited_us(bench.now + 0.25) == 250_000
    bench.decide(bench.plan(), accepted=1, next_token=None)
    assert bench.session.waited_us(bench.now + 1.0) == 0
