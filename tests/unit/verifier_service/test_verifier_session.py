"""What a draft block does to a session: taken, dropped, cut, or refused."""

from __future__ import annotations

import pytest
from verifier_harness import SessionBench, block

from paceline.errors import InvalidArgumentError
from paceline.types import DrafterState


def test_a_block_of_an_older_epoch_is_dropped_and_counted() -> None:
    """E08: what was drafted before the epoch rose touches nothing."""
    bench = SessionBench(epoch=3)
    bench.session.add_block(block(4, [5, 6], epoch=2, state=DrafterState.ENDED))
    assert len(bench.session.tail) == 0
    assert bench.session.ready_at(0.0) == pytest.approx(0.01), "its state says nothing either"
    bench.session.add_block(block(4, [7], epoch=3))
    verdict = bench.decide(bench.plan(), accepted=1, next_token=None)
    assert verdict.token_ids == (7,)
    assert (verdict.num_discarded, verdict.epoch) == (2, 3)


def test_a_block_of_a_newer_epoch_voids_the_tail() -> None:
    bench = SessionBench()
    bench.session.add_block(block(4, [5, 6, 7]))
    bench.session.add_block(block(4, [8], epoch=1))
    assert bench.session.epoch == 1
    assert bench.session.tail.token_ids == [8]
    verdict = bench.decide(bench.plan(), accepted=1, next_token=9)
    assert (verdict.num_discarded, verdict.epoch) == (3, 1)


@pytest.mark.parametrize("num_tokens", range(7))
def test_drafts_that_repeat_committed_tokens_are_skipped_and_the_rest_kept(num_tokens: int) -> None:
    """A bonus or autoregressive token that the drafter had guessed breaks no epoch."""
    bench = SessionBench()
    for token_id in (5, 6, 7):  # committed while the block was on its way
        bench.decide(bench.plan(), accepted=0, next_token=token_id)
    bench.session.add_block(block(4, [5, 6, 7, 8, 9, 10][:num_tokens]))
    assert bench.session.epoch == 0
    assert bench.session.tail.token_ids == [8, 9, 10][: max(0, num_tokens - 3)]
    assert bench.session.tail.first_block == max(0, num_tokens - 3)


@pytest.mark.parametrize("wrong_at", range(3))
def test_drafts_that_differ_from_committed_tokens_raise_the_epoch(wrong_at: int) -> None:
    bench = SessionBench()
    for token_id in (5, 6, 7):
        bench.decide(bench.plan(), accepted=0, next_token=token_id)
    drafts = [5, 6, 7, 8, 9]
    drafts[wrong_at] = 0
    bench.session.add_block(block(4, drafts, state=DrafterState.PAUSED, known_committed=7))
    assert bench.session.epoch == 1
    assert len(bench.session.tail) == 0
    due = bench.session.ready_at(bench.now)
    assert due is not None
    assert due > bench.now, "the drafter hears of it and goes on: worth waiting"
    bench.session.add_block(block(9, [1], epoch=0))  # follows the void block, and is void too
    assert len(bench.session.tail) == 0
    verdict = bench.decide(bench.plan(), accepted=0, next_token=1)
    assert (verdict.num_discarded, verdict.epoch) == (6, 1)


def test_a_rejection_raises_the_epoch_and_drops_the_rest() -> None:
    bench = SessionBench()
    bench.session.add_block(block(4, [5, 6, 7, 8]))
    verdict = bench.decide(bench.plan(), accepted=1, next_token=0)
    assert verdict.token_ids == (5, 0)
    assert (verdict.epoch, verdict.accepted_length, verdict.num_judged) == (1, 1, 4)
    bench.session.add_block(block(8, [9]))  # still in flight when the drafts were rejected
    assert len(bench.session.tail) == 0


def test_full_acceptance_leaves_the_epoch() -> None:
    bench = SessionBench()
    bench.session.add_block(block(4, [5, 6]))
    verdict = bench.decide(bench.plan(), accepted=2, next_token=7)
    assert verdict.epoch == 0
    bench.session.add_block(block(6, [7, 8]))  # its first token is the bonus
    assert bench.session.tail.token_ids == [8]


def test_blocks_that_follow_each_other_are_merged() -> None:
    bench = SessionBench()
    bench.session.add_block(block(4, [5, 6]))
    bench.session.add_block(block(6, []))
    bench.session.add_block(block(6, [7]))
    assert bench.session.tail.token_ids == [5, 6, 7]
    assert bench.plan().num_drafts == 3


@pytest.mark.parametrize(("base", "has_tail"), [(5, False), (7, True), (5, True), (4, True)])
def test_a_gap_or_an_overlap_with_the_tail_is_refused(base: int, has_tail: bool) -> None:
    bench = SessionBench()
    if has_tail:
        bench.session.add_block(block(4, [5, 6]))
    with pytest.raises(InvalidArgumentError, match=rf"^base: {base} does not continue at "):
        bench.session.add_block(block(base, [7]))


@pytest.mark.parametrize("base", [-1, 0, 2])
def test_a_block_inside_the_prompt_is_refused(base: int) -> None:
    bench = SessionBench()
    with pytest.raises(InvalidArgumentError, match=r"^base: "):
        bench.session.add_block(block(base, [2]))


@pytest.mark.parametrize("token_id", [-1, 11])
def test_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    """E07: placeholder ids never reach the model."""
    bench = SessionBench()
    with pytest.raises(InvalidArgumentError, match=rf"^token_ids: {token_id} is outside"):
        bench.session.add_block(block(4, [5, token_id]))
    assert len(bench.session.tail) == 0


def test_more_outstanding_drafts_than_the_window_are_refused() -> None:
    bench = SessionBench(window=5)
    bench.session.add_block(block(4, [5, 6, 7]))
    with pytest.raises(InvalidArgumentError, match="6 draft tokens outstanding, the window is 5"):
        bench.session.add_block(block(7, [8, 9, 10]))
    bench.session.add_block(block(7, [8, 9]))
    assert len(bench.session.tail) == 5


def test_switching_speculation_off_drops_the_tail_and_later_blocks() -> None:
    """H02: a lost drafter's blocks are of no use."""
    bench = SessionBench()
    bench.session.add_block(block(4, [5, 6]))
    bench.session.set_speculation(enabled=False)
    bench.session.add_block(block(6, [7]))
    assert len(bench.session.tail) == 0
    assert bench.session.ready_at(0.0) == 0.0, "nothing to wait for"
    verdict = bench.decide(bench.plan(), accepted=0, next_token=5)
    assert verdict.num_discarded == 3
    bench.session.set_speculation(enabled=True)
    bench.session.add_block(block(5, [6], epoch=2))
    assert bench.session.tail.token_ids == [6]
