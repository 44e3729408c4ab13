"""Blocks that came ahead: one of them answers a rejection at once, the others are nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from verifier_harness import SessionBench, block

from paceline.errors import InvalidArgumentError
from paceline.outcomes import OUTCOMES_A_POSITION
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import SamplingParams
from paceline.types import DraftBlock, DrafterState


def bench_of(**changes: Any) -> SessionBench:
    """Three drafts at position 4 are on their way to a pass."""
    bench = SessionBench(num_outcome_tokens=4, **changes)
    bench.session.add_block(block(4, [5, 6, 7]))
    return bench


def made_for(base: int, outcome: int, *token_ids: int, epoch: int = 1, **values: Any) -> DraftBlock:
    """Drafts for the case that `outcome` comes before `base`."""
    made = block(base, token_ids, epoch=epoch, known_committed=base, **values)
    return replace(made, outcome=outcome)


def discarded(bench: SessionBench) -> dict[str, int]:
    return bench.session.discards.by_reason


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_a_rejection_finds_the_next_drafts(accepted: int) -> None:
    bench = bench_of()
    for position in range(3):
        bench.session.add_block(made_for(5 + position, 9, position, 8))
    verdict = bench.decide(bench.plan(), accepted=accepted, next_token=9)
    assert (verdict.epoch, bench.session.epoch) == (1, 1)
    assert bench.session.tail.token_ids == [accepted, 8]
    assert bench.session.ready_at(bench.now) == bench.now, "nothing to wait for"
    assert discarded(bench) == {"outcome": 4}
    assert bench.session.outcomes.num_tokens == 0
    second = bench.decide(bench.plan(), accepted=2, next_token=3)
    assert second.token_ids == (accepted, 8, 3)


@pytest.mark.parametrize("came", [8, 9])
def test_one_of_two_that_may_come_is_the_one_that_counts(came: int) -> None:
    bench = bench_of()
    bench.session.add_block(made_for(5, 9, 9, 1))
    bench.session.add_block(made_for(5, 8, 8, 1))
    bench.decide(bench.plan(), accepted=0, next_token=came)
    assert bench.session.tail.token_ids == [came, 1]
    assert discarded(bench)["outcome"] == 2


def test_one_that_comes_again_takes_the_place_of_the_first() -> None:
    bench = bench_of()
    for again in (1, 2):
        bench.session.add_block(made_for(5, 9, again))
    assert bench.session.outcomes.num_tokens == 1
    bench.decide(bench.plan(), accepted=0, next_token=9)
    assert bench.session.tail.token_ids == [2]


def test_no_drafter_sends_more_for_a_position_than_there_are() -> None:
    bench = bench_of()
    for outcome in range(OUTCOMES_A_POSITION):
        bench.session.add_block(made_for(5, outcome, 1))
        bench.session.add_block(made_for(6, outcome, 1))
    with pytest.raises(InvalidArgumentError, match=r"outcome: more than 2 .* position 4"):
        bench.session.add_block(made_for(5, 9, 1))


def test_another_token_than_was_guessed_finds_nothing() -> None:
    bench = bench_of()
    bench.session.add_block(made_for(5, 9, 1, 2))
    bench.decide(bench.plan(), accepted=0, next_token=8)
    assert not bench.session.tail
    assert discarded(bench)["outcome"] == 2


def test_what_is_behind_an_accepted_draft_is_gone() -> None:
    bench = bench_of()
    bench.session.add_block(made_for(5, 9, 1, 2))
    bench.session.add_block(block(7, [8]))
    bench.session.add_block(made_for(8, 9, 3))
    plan = bench.plan()
    assert plan.num_drafts == 4
    bench.decide(plan, accepted=4, next_token=1)
    assert bench.session.outcomes.num_tokens == 0
    assert discarded(bench) == {"outcome": 3}


def test_one_that_comes_late_is_a_block_like_any() -> None:
    bench = bench_of()
    bench.decide(bench.plan(), accepted=1, next_token=9)
    bench.session.add_block(made_for(6, 9, 1, 2), arrived=3.0)
    assert bench.session.tail.token_ids == [1, 2]
    assert bench.session.waited_us(3.5) == 500_000


def test_one_that_comes_later_still_meets_what_was_decoded_meanwhile() -> None:
    bench = bench_of()
    bench.decide(bench.plan(), accepted=1, next_token=9)
    bench.decide(bench.plan(), accepted=0, next_token=1)  # patience is over
    bench.session.add_block(made_for(6, 9, 1, 2))
    assert bench.session.tail.token_ids == [2]
    bench.decide(bench.plan(), accepted=0, next_token=4)
    bench.session.add_block(made_for(6, 9, 1, 2))
    assert not bench.session.tail, "of an epoch that has passed"


def test_the_same_token_by_chance_is_not_the_outcome() -> None:
    """The epoch began elsewhere: what was drafted behind other drafts does not hold here."""
    bench = bench_of()
    bench.decide(bench.plan(), accepted=0, next_token=9)  # the epoch begins at 5
    bench.decide(bench.plan(), accepted=0, next_token=6)
    bench.session.add_block(made_for(6, 6, 1, 2))
    assert not bench.session.tail
    assert bench.session.epoch == 1
    assert discarded(bench)["outcome"] == 2


def test_drafts_that_differ_from_what_was_committed_begin_an_epoch_too() -> None:
    bench = SessionBench(num_outcome_tokens=4)
    bench.decide(bench.plan(), accepted=0, next_token=5)
    bench.decide(bench.plan(), accepted=0, next_token=9)
    bench.session.add_block(block(4, [5, 6, 7]))  # guessed 6 where 9 came
    assert bench.session.epoch == 1
    bench.session.add_block(made_for(5, 4, 1))
    bench.session.add_block(made_for(6, 9, 2, 3))
    assert bench.session.tail.token_ids == [2, 3]


def test_the_drafter_is_then_as_the_block_says() -> None:
    bench = bench_of(window=4)
    bench.session.add_block(made_for(5, 9, 1, 2, state=DrafterState.PAUSED))
    bench.decide(bench.plan(), accepted=0, next_token=9)
    assert bench.session._drafter.rests(len(bench.session.tokens))


def test_switched_off_it_forgets_them() -> None:
    bench = bench_of()
    bench.session.add_block(made_for(5, 9, 1, 2))
    bench.session.set_speculation(enabled=False)
    bench.session.set_speculation(enabled=True)
    assert bench.session.outcomes.num_tokens == 0
    assert discarded(bench)["outcome"] == 2


def test_a_later_epoch_of_another_drafter_makes_them_void() -> None:
    bench = bench_of()
    bench.session.add_block(made_for(5, 9, 1, 2))
    bench.session.add_block(block(4, [3], epoch=3))
    assert bench.session.outcomes.num_tokens == 0
    bench.decide(bench.plan(), accepted=0, next_token=9)
    assert not bench.session.tail


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"outcome": -1}, "outcome"),
        ({"outcome": 11}, "outcome"),
        ({"token_ids": (1,) * 13}, "token_ids"),
        ({"token_ids": (1, 99)}, "token_ids"),
        ({"base": 17}, "base"),
        ({"parents": (-1, -1)}, "parents"),
    ],
    ids=str,
)
def test_what_no_drafter_sends_is_refused(changes: dict[str, Any], field: str) -> None:
    bench = bench_of()
    with pytest.raises(InvalidArgumentError, match=field):
        bench.session.add_block(replace(made_for(5, 9, 1, 2), **changes))


@pytest.mark.parametrize(
    ("draft_top_k", "is_taken"), [(11, True), (64, True), (10, False), (0, False)]
)
def test_distributions_may_be_as_wide_as_was_agreed(draft_top_k: int, is_taken: bool) -> None:
    """They tell no ids where the vocabulary has no more than are asked for."""
    bench = bench_of(draft_top_k=draft_top_k, sampling=SamplingParams(max_tokens=20))
    made = replace(made_for(5, 9, 1), draft_probs=DraftProbs(None, torch.full((1, 11), 1 / 11)))
    if is_taken:
        bench.session.add_block(made)
        assert bench.session.outcomes.num_tokens == 1
        return
    with pytest.raises(InvalidArgumentError, match="draft_probs: they are dense"):
        bench.session.add_block(made)


def test_a_session_that_was_opened_without_refuses_them() -> None:
    bench = SessionBench()
    with pytest.raises(InvalidArgumentError, match="outcome: the session was not opened"):
        bench.session.add_block(made_for(5, 9, 1))


def test_no_more_are_kept_than_the_window_has_positions() -> None:
    """The last one for a position counts."""
    bench = bench_of()
    for _ in range(3):
        for position in range(4, 16):
            bench.session.add_block(made_for(position + 1, 9, 1, 2))
    assert bench.session.outcomes.num_tokens == 24
    assert discarded(bench)["outcome"] == 48
