"""Windows, blocks, epochs and states of drafting sessions, and whose trouble is whose."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from drafter_harness import (
    PROMPT,
    VOCAB,
    CountingDrafter,
    DrafterBench,
    drafted,
    only_error,
    opening,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.drafter import Proposal, ProposeRequest
from paceline.errors import InvalidArgumentError
from paceline.runtime.engine_thread import DeviceLostError, FailureCount
from paceline.sampling.draw import Draw
from paceline.sampling.params import SamplingParams
from paceline.types import Advance, CloseSession, DraftBlock, DrafterState, SessionError

RUNNING, PAUSED, ENDED = DrafterState.RUNNING, DrafterState.PAUSED, DrafterState.ENDED


def shapes(replies: list[Any]) -> list[tuple[int, int, DrafterState]]:
    """Base, length and state of each block."""
    return [(block.base, len(block.token_ids), block.state) for block in replies]


# --- window and blocks ----------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3, 10])
@pytest.mark.parametrize(
    ("window", "block", "expected"),
    [
        (8, 4, [(3, 4, RUNNING), (7, 4, PAUSED)]),
        (7, 3, [(3, 3, RUNNING), (6, 3, RUNNING), (9, 1, PAUSED)]),
        (4, 4, [(3, 4, PAUSED)]),
        (2, 4, [(3, 2, PAUSED)]),
        (1, 1, [(3, 1, PAUSED)]),
    ],
)
def test_blocks_are_split_at_their_length_until_the_window_is_full(
    window: int, block: int, expected: list[Any], at_once: int
) -> None:
    bench = DrafterBench(CountingDrafter(at_once=at_once))
    bench.post(opening(window=window, num_speculative_tokens=block))
    replies = bench.run()
    assert shapes(replies) == expected
    assert drafted(replies) == [(3 + i) % VOCAB for i in range(window)]
    assert {reply.known_committed for reply in replies} == {3}
    assert {reply.kv_length for reply in replies} == {7}


def test_the_window_slides_with_what_is_committed() -> None:
    bench = DrafterBench()
    bench.post(opening())
    bench.run()
    bench.advance(3, 4, 5)
    replies = bench.run()
    assert shapes(replies) == [(11, 3, PAUSED)]
    assert replies[0].known_committed == 6
    assert bench.drafter.rollbacks == []


def test_the_last_token_of_the_output_is_not_drafted() -> None:
    """F01: the budget less one; a draft for the last token cannot pay."""
    bench = DrafterBench(CountingDrafter(at_once=9))
    bench.post(opening(sampling=SamplingParams(temperature=0, max_tokens=6), window=12))
    assert len(drafted(bench.run())) == 5
    assert bench.session().tokens == [1, 2, 3, *range(3, 8)]


def test_a_context_shorter_than_the_output_ends_drafting_there() -> None:
    """D04: the state tells the verifier not to wait for more."""
    bench = DrafterBench(CountingDrafter(context_length=6))
    bench.post(opening())
    assert shapes(bench.run()) == [(3, 3, PAUSED)]
    bench.advance(3, 4)
    assert shapes(bench.run()) == [(6, 0, PAUSED)]
    bench.advance(5, 6)
    assert shapes(bench.run()) == [(7, 0, ENDED)]


def test_a_prompt_beyond_the_context_is_ended_at_once() -> None:
    """D04."""
    bench = DrafterBench(CountingDrafter(context_length=3))
    bench.post(opening())
    assert shapes(bench.run()) == [(3, 0, ENDED)]
    assert bench.drafter.asked == []


def test_a_drafter_with_nothing_to_propose_pauses_until_the_next_advance() -> None:
    bench = DrafterBench()
    bench.drafter.answer = lambda request: Proposal()
    bench.post(opening())
    assert shapes(bench.run()) == [(3, 0, PAUSED)]
    bench.drafter.answer = bench.drafter.count
    assert bench.run() == []
    bench.advance(9)
    assert shapes(bench.run()) == [(4, 4, RUNNING), (8, 4, PAUSED)]


def test_a_block_that_is_begun_is_sent_when_nothing_follows() -> None:
    bench = DrafterBench()
    bench.drafter.answer = lambda request: (
        bench.drafter.count(request) if len(request.token_ids) < 5 else Proposal()
    )
    bench.post(opening())
    assert shapes(bench.run()) == [(3, 2, PAUSED)]


def test_a_drafter_that_is_still_at_work_sends_nothing() -> None:
    bench = DrafterBench()
    bench.drafter.answer = lambda request: Proposal(is_pending=True)
    bench.post(opening())
    assert bench.step() == []
    assert bench.engine.next_step_at(5.0) == 5.0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_outstanding_drafts_never_exceed_the_window(data: st.DataObject) -> None:
    """Whatever is committed and when, blocks are contiguous and within the window."""
    window, block = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    bench = DrafterBench(CountingDrafter(at_once=data.draw(st.integers(1, 4))))
    bench.post(
        opening(window=window, num_speculative_tokens=block, sampling=SamplingParams(max_tokens=30))
    )
    committed = list(PROMPT)
    live: list[int] = []  # drafts of the current epoch beyond the committed length, as sent
    epoch = 0
    for _ in range(data.draw(st.integers(1, 15))):
        for reply in bench.step() if data.draw(st.booleans()) else []:
            assert isinstance(reply, DraftBlock)
            assert reply.base == len(committed) + len(live)
            assert (reply.epoch, reply.known_committed) == (epoch, len(committed))
            assert len(reply.token_ids) <= block
            live += reply.token_ids
            assert len(live) <= window
            assert len(committed) + len(live) < 33
        if data.draw(st.booleans()) and len(committed) < 30:
            kept = data.draw(st.integers(0, min(len(live), 32 - len(committed))))
            news = live[:kept]
            del live[:kept]
            if data.draw(st.booleans()):  # then a token that no draft said: id 0 below never fits
                wrong = (len(committed) + kept + 1) % VOCAB
                news.append(wrong)
                epoch += bool(live)
                live.clear()
            assert bench.advance(*news, epoch=0) == []
            assert bench.session().epoch == epoch
            committed += news


# --- another window on the way --------------------------------------------------------------------


def adjusted(*token_ids: int, base: int = 3, **changes: int) -> Advance:
    return Advance(1, 0, base, token_ids, **changes)


def test_an_advance_may_change_window_and_block_length() -> None:
    bench = DrafterBench()
    bench.post(opening(window=8))
    bench.run()
    bench.post(adjusted(3, 4, window=6, num_speculative_tokens=2))
    assert shapes(bench.run()) == [(11, 0, PAUSED)], "as many as that are outstanding"
    bench.advance(5, 6, 7)
    assert shapes(bench.run()) == [(11, 2, RUNNING), (13, 1, PAUSED)]
    bench.post(adjusted(8, base=8, window=8, num_speculative_tokens=4))
    assert shapes(bench.run()) == [(14, 3, PAUSED)]


def test_a_window_of_0_drafts_nothing_until_it_opens_again() -> None:
    """E04: the off switch pays for no draft."""
    bench = DrafterBench()
    bench.post(opening())
    bench.run()
    asked = len(bench.drafter.asked)
    bench.post(adjusted(9, window=0))
    for _ in range(3):
        bench.advance(9)
        assert bench.run() == []
    assert len(bench.drafter.asked) == asked
    bench.post(adjusted(9, base=7, window=2))
    assert shapes(bench.run()) == [(8, 2, PAUSED)]


def test_a_shorter_block_sends_what_is_drawn_and_goes_on() -> None:
    bench = DrafterBench()
    bench.post(opening())
    for _ in range(3):
        bench.step()
    bench.post(adjusted(num_speculative_tokens=2))
    replies = bench.run()
    assert shapes(replies)[0] == (3, 3, RUNNING)
    assert shapes(replies)[-1] == (10, 1, PAUSED)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": -1},
        {"window": 9},
        {"num_speculative_tokens": 0},
        {"draw_window": -1},
        {"num_drawn_tokens": 0},
        {"min_confidence": 1.5},
        {"min_copy_confidence": float("nan")},
    ],
    ids=str,
)
def test_a_window_beyond_the_openings_is_refused(changes: dict[str, int]) -> None:
    bench = DrafterBench()
    bench.post(opening(window=8))
    error = only_error(bench.post(adjusted(3, **changes)))
    assert error.code == "INVALID_ARGUMENT"
    assert error.message.startswith(f"{next(iter(changes))}: ")


# --- epochs ---------------------------------------------------------------------------------------


def test_a_rejection_moves_to_the_verdicts_epoch() -> None:
    bench = DrafterBench()
    bench.post(opening())
    bench.run()
    bench.advance(3, 4, 9, epoch=1)  # two accepted, one recovered
    assert bench.session().tokens == [1, 2, 3, 3, 4, 9]
    assert bench.drafter.rollbacks == [5], "the cache of the tokens that agree is kept"
    replies = bench.run()
    assert shapes(replies) == [(6, 4, RUNNING), (10, 4, PAUSED)]
    assert {reply.epoch for reply in replies} == {1}


def test_a_rejection_that_repeats_the_draft_still_voids_what_follows() -> None:
    """Recovered tokens may equal the draft by rounding; the verifier has dropped its tail."""
    bench = DrafterBench()
    bench.post(opening())
    bench.run()
    bench.advance(3, epoch=1)
    assert bench.session().tokens == [1, 2, 3, 3]
    assert bench.drafter.rollbacks == [4]
    assert shapes(bench.run())[0] == (4, 4, RUNNING)


def test_a_committed_token_that_differs_from_a_sent_draft_raises_the_epoch() -> None:
    bench = DrafterBench()
    bench.post(opening())
    bench.run()
    bench.advance(3, 9)  # an autoregressive or bonus token, in the same epoch
    assert bench.session().epoch == 1
    assert {reply.epoch for reply in bench.run()} == {1}


def test_drafts_that_were_not_sent_vanish_without_a_trace() -> None:
    """Nobody else knows of them, so nobody else would count."""
    bench = DrafterBench()
    bench.post(opening())
    bench.step()
    bench.step()
    assert len(bench.session().tokens) == 5, "two drawn, the block is not full"
    bench.advance(9)
    assert bench.session().epoch == 0
    assert bench.session().tokens == [1, 2, 3, 9]
    assert bench.drafter.rollbacks == [3]
    assert shapes(bench.run())[0] == (4, 4, RUNNING)


def test_unsent_drafts_that_agree_are_taken_over() -> None:
    bench = DrafterBench()
    bench.post(opening())
    for _ in range(3):
        bench.step()
    bench.advance(3, 4)
    replies = bench.run()
    assert shapes(replies) == [(5, 4, RUNNING), (9, 4, PAUSED)]
    assert drafted(replies)[0] == 5, "drawn before the advance"
    assert bench.drafter.rollbacks == []


def test_a_sent_block_that_agrees_keeps_unsent_drafts_behind_it() -> None:
    bench = DrafterBench()
    bench.post(opening())
    for _ in range(6):
        bench.step()
    bench.advance(3, 4, 5, 6, 7)  # all four of the block, and the first of two unsent ones
    replies = bench.run()
    assert replies[0].base == 8
    assert drafted(replies)[:2] == [8, 9]
    assert bench.session().epoch == 0


def test_committed_tokens_beyond_the_drafts_continue_the_sequence() -> None:
    bench = DrafterBench()
    bench.post(opening(window=2))
    bench.run()
    bench.advance(3, 4, 5)
    assert bench.session().epoch == 0
    assert bench.drafter.rollbacks == []
    assert shapes(bench.run()) == [(6, 2, PAUSED)]


def test_an_epoch_alone_voids_all_outstanding_drafts() -> None:
    """D07: the session was reopened on another verifier."""
    bench = DrafterBench()
    bench.post(opening())
    bench.run()
    bench.advance(epoch=4)
    assert bench.drafter.rollbacks == [3]
    replies = bench.run()
    assert shapes(replies) == [(3, 4, RUNNING), (7, 4, PAUSED)]
    assert {reply.epoch for reply in replies} == {4}


def test_an_advance_of_an_older_epoch_still_commits() -> None:
    bench = DrafterBench()
    bench.post(opening(epoch=5))
    bench.run()
    bench.advance(3, epoch=2)
    assert bench.session().epoch == 5
    assert bench.session().committed == 4


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Advance(2, 0, 4, (5,)), "base"),
        (Advance(2, 0, 2, (5,)), "base"),
        (Advance(2, 0, 3, (5, -1)), "token_ids"),
        (Advance(2, 0, 3, (VOCAB,)), "token_ids"),
        (opening(2), "session_id"),
    ],
    ids=["gap", "repetition", "placeholder", "vocabulary", "twice"],
)
def test_a_wrong_event_ends_its_own_session_and_no_other(bad: Any, field: str) -> None:
    """E07."""
    bench = DrafterBench()
    bench.post(opening(1))
    bench.post(opening(2))
    bench.step()
    error = only_error(bench.post(bad))
    assert (error.session_id, error.code) == (2, "INVALID_ARGUMENT")
    assert error.message.startswith(f"{field}: ")
    assert bench.drafter.released == [(1, 2)]
    assert bench.post(Advance(2, 0, 3, (5,))) == [], "a late event of a dead session"
    assert {reply.session_id for reply in bench.run()} == {1}
    assert bench.engine.describe().live_sessions == 1


@pytest.mark.parametrize(
    "changes", [{"token_ids": ()}, {"window": 0}, {"num_speculative_tokens": 0}]
)
def test_an_opening_without_prompt_or_window_is_refused(changes: dict[str, Any]) -> None:
    bench = DrafterBench()
    assert only_error(bench.post(opening(**changes))).code == "INVALID_ARGUMENT"
    assert bench.engine.describe().live_sessions == 0


def fails_for(bench: DrafterBench, session_id: int, error: Exception) -> None:
    def answer(request: ProposeRequest) -> Proposal:
        if request.key[1] == session_id:
            raise error
        proposal: Proposal = bench.drafter.count(request)
        return proposal

    bench.drafter.answer = answer


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (RuntimeError("out of memory"), "UNAVAILABLE"),
        (InvalidArgumentError("x", "y"), "INVALID_ARGUMENT"),
    ],
)
def test_a_session_whose_drafting_fails_hurts_no_other(fault: Exception, code: str) -> None:
    bench = DrafterBench()
    for session_id in (1, 2, 3):
        bench.post(opening(session_id))
    fails_for(bench, 2, fault)
    replies = bench.run()
    (error,) = [reply for reply in replies if isinstance(reply, SessionError)]
    assert (error.session_id, error.code) == (2, code)
    assert bench.drafter.released == [(1, 2)]
    for session_id in (1, 3):
        assert drafted(replies, session_id) == [(3 + i) % VOCAB for i in range(8)]


def test_a_device_that_fails_every_step_is_not_tried_for_ever() -> None:
    bench = DrafterBench()
    for session_id in range(1, FailureCount.LIMIT):
        bench.post(opening(session_id))
        fails_for(bench, session_id, RuntimeError("an illegal memory access was encountered"))
        assert only_error(bench.run()).code == "UNAVAILABLE"
    bench.post(opening(99))
    fails_for(bench, 99, RuntimeError("an illegal memory access was encountered"))
    with pytest.raises(DeviceLostError):
        bench.run()


def test_a_proposal_may_be_an_error_of_its_session() -> None:
    bench = DrafterBench()
    bench.drafter.answer = lambda request: Proposal(error=InvalidArgumentError("ids", "none left"))
    bench.post(opening())
    assert only_error(bench.step()).message == "ids: none left"
    assert bench.engine.describe().live_sessions == 0


# --- lives ----------------------------------------------------------------------------------------


def test_closing_releases_the_session_and_late_advances_touch_nothing() -> None:
    bench = DrafterBench()
    bench.post(opening())
    bench.post(CloseSession(1))
    bench.post(CloseSession(1))
    assert bench.post(Advance(1, 0, 3, (5,))) == []
    assert set(bench.drafter.released) == {(1, 1)}
    assert bench.engine.next_step_at(0.0) is None


def test_a_link_that_ends_frees_its_own_sessions() -> None:
    bench = DrafterBench()
    bench.post(opening(1), link=1)
    bench.post(opening(2), link=1)
    bench.post(opening(1), link=2)
    bench.engine.close_link(1)
    assert bench.drafter.released == [(1, 1), (1, 2)]
    assert [link for link, _ in bench.engine.step(0.0) + bench.engine.step(0.0)] == []
    assert bench.engine.describe().live_sessions == 1


def test_failing_all_answers_each_session() -> None:
    bench = DrafterBench()
    bench.post(opening(1))
    bench.post(opening(2))
    errors = bench.engine.fail_all(KeyError("boom"))
    assert [(link, error.session_id, error.code) for link, error in errors] == [
        (1, 1, "INTERNAL"),
        (1, 2, "INTERNAL"),
    ]
    assert bench.engine.describe().live_sessions == 0


def test_blocks_and_tokens_are_counted() -> None:
    bench = DrafterBench(CountingDrafter(at_once=4))
    bench.post(opening())
    bench.run()
    counters = bench.engine.describe().counters
    assert counters == {"steps": 2, "blocks": 2, "draft_tokens": 8, "outcomes_used": 0}


def test_sampled_blocks_carry_what_each_token_was_drawn_from() -> None:
    import torch

    from paceline.sampling.draft_probs import DraftProbs

    bench = DrafterBench()
    law = DraftProbs(None, torch.full((1, VOCAB), 1 / VOCAB))
    bench.drafter.answer = lambda request: Proposal([Draw(5, law)])
    bench.post(opening())
    (block,) = [reply for _ in range(4) for reply in bench.step()]
    assert block.draft_probs is not None
    assert block.draft_probs.num_tokens == 4
    assert block.draft_us >= 0


class TimedDrafting:
    """Steps of a drafter on a clock of their own: 3 ms each, or what `next_s` says."""

    def __init__(self, bench: DrafterBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.next_s = 0.003
        self.num_read = 1
        self._count = bench.drafter.count
        bench.drafter.answer = self.answer
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("drafter_service.engine.time", clock)

    def answer(self, request: ProposeRequest) -> Proposal:
        self.now += self.next_s
        proposal: Proposal = replace(self._count(request), num_read=self.num_read)
        self.next_s, self.num_read = 0.003, 1
        return proposal


def test_a_block_took_what_its_own_tokens_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was drawn before it and has become void: a round trip is what is left of a wait."""
    bench = DrafterBench()
    TimedDrafting(bench, monkeypatch)
    bench.post(opening())
    assert [bench.step() for _ in range(3)] == [[], [], []]
    bench.advance(10)
    (block,) = [reply for _ in range(4) for reply in bench.step()]
    assert block.draft_us == 12_000


def test_reading_a_prompt_is_not_the_time_of_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DrafterBench()
    timed = TimedDrafting(bench, monkeypatch)
    bench.post(opening())
    timed.next_s, timed.num_read = 0.5, 500
    (block,) = [reply for _ in range(4) for reply in bench.step()]
    assert block.draft_us == 12_000
