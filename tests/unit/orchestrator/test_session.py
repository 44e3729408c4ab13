"""What the orchestrator knows of a generation: tokens, epoch, counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.session import Session
from paceline.types import DraftBlock, DrafterState, Origin, PassTimings, Verdict


def verdict(base: int, *token_ids: int, epoch: int = 0, accepted: int = 0) -> Verdict:
    return Verdict(
        session_id=1,
        epoch=epoch,
        base=base,
        token_ids=token_ids,
        accepted_length=accepted,
        next_origin=Origin.BONUS,
        num_judged=4,
        finish_reason=None,
        logprobs=(),
        kv_length=base + len(token_ids) - 1,
        timings=PassTimings(queue_us=5, forward_us=100, judge_us=20, rows=5, sessions=1),
        num_discarded=0,
    )


def block(epoch: int, *token_ids: int) -> DraftBlock:
    return DraftBlock(1, epoch, 3, token_ids, None, 3, DrafterState.RUNNING, 9, 50)


def test_verdicts_add_up() -> None:
    session = Session(prompt_length=3, tokens=[1, 2, 3])
    session.commit(verdict(3, 4, 5, 6, accepted=2))
    session.commit(verdict(6, 7, epoch=1))
    assert session.tokens == [1, 2, 3, 4, 5, 6, 7]
    assert (session.epoch, session.verifier_kv_length) == (1, 6)
    counts = session.counts
    assert (counts.passes, counts.judged, counts.accepted, counts.committed) == (2, 8, 2, 4)
    assert (counts.verify_us, counts.queue_us, counts.epochs) == (240, 10, 1)


@pytest.mark.parametrize("base", [2, 4])
def test_a_position_is_committed_once_and_none_is_skipped(base: int) -> None:
    """DESIGN 3.8."""
    session = Session(prompt_length=3, tokens=[1, 2, 3])
    with pytest.raises(AssertionError, match="skipped or repeated"):
        session.commit(verdict(base, 9))
    assert session.tokens == [1, 2, 3]


def test_blocks_of_an_epoch_that_has_passed_are_counted_and_dropped() -> None:
    session = Session(prompt_length=3, tokens=[1, 2, 3], epoch=2)
    assert session.takes(block(2, 5, 6))
    assert not session.takes(block(1, 7))
    assert session.takes(block(3, 8)), "the drafter has seen a difference before the verifier"
    assert session.epoch == 3
    assert (session.counts.drafted, session.counts.draft_us) == (4, 150)
    assert session.drafter_kv_length == 9


def test_a_verdict_of_an_older_epoch_still_commits() -> None:
    session = Session(prompt_length=3, tokens=[1, 2, 3], epoch=5)
    session.commit(verdict(3, 4, epoch=4))
    assert (session.tokens[-1], session.epoch, session.counts.epochs) == (4, 5, 0)


def test_a_new_epoch_is_above_what_either_side_can_have_reached() -> None:
    session = Session(prompt_length=3, tokens=[1, 2, 3], epoch=5, drafter_kv_length=9)
    assert session.begin_epoch() == session.epoch == 7
    assert session.counts.epochs == 1
    assert session.drafter_kv_length == 3, "its cache beyond the committed tokens is void"


def test_it_is_above_what_was_drafted_ahead_for_tokens_that_nobody_saw() -> None:
    """A drafter may have gone on behind one outcome after another, an epoch a token."""
    session = Session(prompt_length=3, tokens=[1, 2, 3], epoch=1)
    for base in range(3, 8):
        session.commit(verdict(base, 4, epoch=1))
    assert session.takes(replace(block(6, 5), outcome=4))
    assert session.epoch == 1, "its epoch may never come"
    assert session.begin_epoch() > 6 + 1
