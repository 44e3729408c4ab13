"""The verifier's engine: many sessions in one pass, and one session's trouble is its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import reference
from verifier_harness import (
    GREEDY,
    TARGET,
    VOCAB,
    VerifierBench,
    block,
    only_error,
    opening,
    tokens_of,
)

from paceline.runtime.engine_thread import DeviceLostError, FailureCount
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import SamplingParams
from paceline.types import (
    CloseSession,
    Credit,
    FinishReason,
    PromptLogprobs,
    SessionError,
    SetSpeculation,
    Verdict,
)

PROMPTS = {1: (1, 2, 3), 2: (4, 4), 3: (5, 6, 7, 8, 9)}


def start(bench: VerifierBench, *session_ids: int, **changes: Any) -> None:
    """Open sessions and run their prefill."""
    for session_id in session_ids:
        assert bench.post(opening(session_id, token_ids=PROMPTS[session_id], **changes)) == []
    bench.step()


def draft(
    bench: VerifierBench, session_id: int, num_tokens: int, wrong_at: int | None = None
) -> Any:
    """A block of the target's own choices, one of them spoilt."""
    tokens = bench.session(session_id).tokens
    drafts = reference(TARGET, tokens, num_tokens)
    if wrong_at is not None:
        drafts[wrong_at] = (drafts[wrong_at] + 1) % VOCAB
    epoch = bench.session(session_id).epoch
    return block(len(tokens), drafts, session_id=session_id, epoch=epoch)


# --- faults ---------------------------------------------------------------------------------------

BAD_PROBS = DraftProbs(None, torch.full((2, VOCAB), 0.5))


@pytest.mark.parametrize(
    "bad",
    [
        block(6, [5, -1], session_id=2),
        block(6, [5, VOCAB], session_id=2),
        block(9, [5], session_id=2),
        block(3, [5] * 13, session_id=2),
        block(3, [5, 6], session_id=2, draft_probs=BAD_PROBS),
    ],
    ids=["placeholder", "vocabulary", "gap", "window", "probabilities"],
)
def test_a_bad_block_ends_its_own_session_and_no_other(bad: Any) -> None:
    """E07: INVALID_ARGUMENT for that session; the service and the others go on."""
    bench = VerifierBench()
    start(bench, 1, 2)
    bench.post(draft(bench, 1, 3))
    pages = bench.runner.pool.used_pages
    error = only_error(bench.post(bad))
    assert (error.session_id, error.code) == (2, "INVALID_ARGUMENT")
    assert bench.runner.pool.used_pages < pages
    assert bench.post(block(3, [5], session_id=2)) == [], "a late event of a dead session"
    (verdict,) = bench.step()
    assert tokens_of([verdict]) == reference(TARGET, [*PROMPTS[1]], 5)[1:]
    assert bench.verifier.describe().live_sessions == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": ()}, "token_ids"),
        ({"prompt_length": 0}, "token_ids"),
        ({"prompt_length": 4}, "token_ids"),
        ({"token_ids": (1, -1)}, "token_ids"),
        ({"token_ids": (1, VOCAB)}, "token_ids"),
        ({"features": True}, "features"),
        ({"vocab_size": VOCAB + 1}, "vocab_size"),
        ({"sampling": SamplingParams(max_tokens=30)}, "max_tokens"),  # 3 + 30 > 32
        ({"token_ids": (1,) * 8, "prompt_length": 3, "sampling": SamplingParams(max_tokens=5)},
         "max_tokens"),
        ({"sampling": SamplingParams(stop_token_ids=(VOCAB,), max_tokens=5)}, "stop_token_ids"),
    ],
)  # fmt: skip
def test_an_opening_that_cannot_be_served_is_refused(changes: dict[str, Any], field: str) -> None:
    bench = VerifierBench(context_length=32)
    changes = {"sampling": SamplingParams(max_tokens=5), **changes}
    error = only_error(bench.post(opening(**changes)))
    assert error.code == "INVALID_ARGUMENT"
    assert error.message.startswith(f"{field}: ")
    assert bench.verifier.describe().live_sessions == 0
    assert bench.post(opening(sampling=SamplingParams(max_tokens=29))) == [], "29 just fit"


def test_opening_a_session_twice_ends_it() -> None:
    bench = VerifierBench()
    start(bench, 1)
    assert "already open" in only_error(bench.post(opening())).message
    assert bench.runner.pool.used_pages == bench.verifier.describe().live_sessions == 0


def test_a_pass_that_fails_once_costs_nothing() -> None:
    """D07: each session is run again alone, from the length it had."""
    failures = iter([True])

    def script(history: Sequence[int]) -> torch.Tensor:
        if len(history) == 5 and next(failures, False):
            raise RuntimeError("a passing fault")
        return TARGET(history)

    bench = VerifierBench(script)
    for session_id, prompt in PROMPTS.items():
        bench.post(opening(session_id, token_ids=prompt, speculation=False))
    replies = bench.run()
    assert next(failures, None) is None, "it did fail"
    for session_id, prompt in PROMPTS.items():
        assert tokens_of(replies, session_id) == reference(TARGET, prompt, GREEDY.max_tokens)


@pytest.mark.parametrize("fault", [RuntimeError("out of memory"), ValueError("no such row")])
def test_a_session_whose_pass_fails_hurts_no_other(fault: Exception) -> None:
    """D07: it is answered with UNAVAILABLE, so that it may go on elsewhere."""

    def script(history: Sequence[int]) -> torch.Tensor:
        if tuple(history[:2]) == PROMPTS[2] and len(history) > 6:
            raise fault
        return TARGET(history)

    bench = VerifierBench(script)
    for session_id, prompt in PROMPTS.items():
        bench.post(opening(session_id, token_ids=prompt, speculation=False))
    replies = bench.run()
    (error,) = [reply for reply in replies if isinstance(reply, SessionError)]
    assert (error.session_id, error.code) == (2, "UNAVAILABLE")
    assert type(fault).__name__ in error.message
    assert str(fault) not in error.message  # what it says is for the log
    assert tokens_of(replies, 2) == reference(TARGET, PROMPTS[2], 5)
    for session_id in (1, 3):
        expected = reference(TARGET, PROMPTS[session_id], GREEDY.max_tokens)
        assert tokens_of(replies, session_id) == expected
    assert bench.runner.pool.used_pages == 0


def test_a_device_that_fails_every_pass_is_not_tried_for_ever() -> None:
    """H01: it would look healthy and idle, and be given every session."""

    def script(history: Sequence[int]) -> torch.Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    bench = VerifierBench(script)
    for session_id in range(1, FailureCount.LIMIT):
        bench.post(opening(session_id))
        assert only_error(bench.step()).code == "UNAVAILABLE"
    bench.post(opening(99))
    with pytest.raises(DeviceLostError):
        bench.step()


def test_logits_that_are_not_numbers_end_only_their_session() -> None:
    """A04: a NaN never becomes a token."""

    def script(history: Sequence[int]) -> torch.Tensor:
        logits = TARGET(history)
        return logits * float("nan") if tuple(history[:2]) == PROMPTS[2] else logits

    bench = VerifierBench(script)
    for session_id in (1, 2):
        bench.post(opening(session_id, token_ids=PROMPTS[session_id]))
    by_session = {reply.session_id: reply for reply in bench.step()}
    assert isinstance(by_session[1], Verdict)
    assert isinstance(by_session[2], SessionError)
    assert len(bench.runner.passes) == 1, "one pass served both"


def test_a_judge_that_fails_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """D07: what the pass cached is rolled back before the sessions are run again."""
    from verifier_service import ragged_pass as module

    judge, failures = module.judge_pass, iter([True])

    def judge_pass(*arguments: Any) -> Any:
        if len(arguments[1]) > 1 and next(failures, False):
            raise RuntimeError("a fault of the judge")
        return judge(*arguments)

    monkeypatch.setattr(module, "judge_pass", judge_pass)
    bench = VerifierBench()
    for session_id, prompt in PROMPTS.items():
        bench.post(opening(session_id, token_ids=prompt, speculation=False))
    replies = bench.run()
    for session_id, prompt in PROMPTS.items():
        assert tokens_of(replies, session_id) == reference(TARGET, prompt, GREEDY.max_tokens)


# --- lives ----------------------------------------------------------------------------------------


def test_closing_frees_pages_at_once_and_late_events_touch_nothing() -> None:
    """G01, E08."""
    bench = VerifierBench()
    start(bench, 1, 2)
    late = [draft(bench, 1, 2), Credit(1, 99), SetSpeculation(1, enabled=False), CloseSession(1)]
    assert bench.post(CloseSession(1)) == []
    assert bench.verifier.describe().live_sessions == 1
    used = bench.runner.pool.used_pages
    for event in late:
        assert bench.post(event) == []
    assert bench.runner.pool.used_pages == used == bench.verifier.describe().kv_pages_used
    bench.post(CloseSession(2))
    assert bench.runner.pool.used_pages == 0


def test_links_do_not_share_session_ids() -> None:
    bench = VerifierBench()
    bench.post(opening(), link=1)
    bench.post(opening(token_ids=(9,)), link=2)
    replies = bench.verifier.step(0.0)
    assert sorted(link for link, _ in replies) == [1, 2]
    first = {link: reply.token_ids for link, reply in replies if isinstance(reply, Verdict)}
    assert first[1] == tuple(reference(TARGET, [1, 2, 3], 1))
    assert first[2] == tuple(reference(TARGET, [9], 1))
    bench.verifier.close_link(1)
    assert bench.verifier.describe().live_sessions == 1
    assert bench.session(1, link=2).tokens[0] == 9


def test_failing_all_answers_each_session_and_frees_it() -> None:
    bench = VerifierBench(num_pages=20)
    for session_id in (1, 2, 3):  # the third has no room and waits
        bench.post(opening(session_id, sampling=SamplingParams(max_tokens=30)))
    assert bench.verifier.describe().waiting_sessions == 1
    errors = bench.verifier.fail_all(ValueError())
    assert [(link, error.session_id) for link, error in errors] == [(1, 1), (1, 2), (1, 3)]
    described = bench.verifier.describe()
    assert described.live_sessions == described.waiting_sessions == described.kv_pages_used == 0
    assert bench.verifier.next_step_at(0.0) is None


def test_a_finished_session_is_freed_before_its_last_verdict_is_read() -> None:
    bench = VerifierBench()
    bench.post(opening(sampling=SamplingParams(temperature=0, max_tokens=1)))
    (verdict,) = bench.step()
    assert verdict.finish_reason is FinishReason.LENGTH
    assert bench.runner.pool.used_pages == bench.verifier.describe().live_sessions == 0


def test_counters_add_up_over_sessions() -> None:
    bench = VerifierBench()
    start(bench, 1, 2)
    bench.post(draft(bench, 1, 4, wrong_at=2))
    bench.post(draft(bench, 2, 3))
    bench.step()
    assert bench.verifier.describe().counters == {
        "passes": 2,
        "rows": 5 + (1 + 4) + (1 + 3),
        "draft_tokens": 7,
        "accepted_tokens": 5,
        "committed_tokens": 2 + 3 + 4,
        "prefix_tokens_reused": 0,
        "prefix_tokens_computed": 5,
        "prefix_pages_evicted": 0,
    }


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_sessions_of_one_pass_keep_their_own_rows(order: tuple[int, ...]) -> None:
    """E01, E02: 4, 0 and 2 drafts in one pass, accepting 1, none and all, in any order."""
    bench = VerifierBench()
    for session_id in order:
        speculation = session_id != 2
        bench.post(opening(session_id, token_ids=PROMPTS[session_id], speculation=speculation))
    replies = bench.step()
    for _ in range(6):
        if 1 in order:
            bench.post(draft(bench, 1, 4, wrong_at=1))
        bench.post(draft(bench, 3, 2))
        verdicts = bench.step()
        assert {v.session_id: v.accepted_length for v in verdicts} == {1: 1, 2: 0, 3: 2}
        replies += verdicts
    assert [len(chunks) for chunks in bench.runner.passes] == [3] * 7
    for session_id in order:
        produced = tokens_of(replies, session_id)
        assert produced == reference(TARGET, PROMPTS[session_id], len(produced))


# --- room in the pool -----------------------------------------------------------------------------


def small(session_id: int, num_tokens: int = 16) -> Any:
    """A session that reserves a page for each four tokens."""
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens - 1)
    return opening(session_id, token_ids=(session_id,), sampling=sampling)


def test_sessions_without_room_wait_and_are_admitted_in_order() -> None:
    """First come, first served: a small one does not slip past a large one."""
    bench = VerifierBench(num_pages=8)
    bench.post(small(1, 24))
    bench.post(small(2, 16))
    bench.post(small(3, 8))
    assert bench.verifier.describe().waiting_sessions == 2
    assert [reply.session_id for reply in bench.step()] == [1]
    bench.post(CloseSession(1))
    assert bench.verifier.describe().waiting_sessions == 0
    assert {reply.session_id for reply in bench.step()} == {2, 3}


def test_a_session_that_waits_too_long_is_told_the_numbers() -> None:
    bench = VerifierBench(num_pages=8, max_waiting_s=2.0)
    bench.post(small(1, 24))
    bench.post(Credit(1, 1))  # it has its token and rests
    bench.step()
    bench.now = 1.0
    bench.post(small(2, 16))
    bench.post(small(3, 8))
    bench.post(CloseSession(3))
    bench.session(1)._committed_limit = 2
    assert bench.verifier.next_step_at(1.0) == 3.0, "nothing else is to do"
    bench.now = 3.0
    error = only_error(bench.step())
    assert (error.session_id, error.code) == (2, "RESOURCE_EXHAUSTED")
    assert error.message == "no room in the KV pool after 2 s: 4 pages needed, 2 of 8 free"
    assert bench.verifier.describe().live_sessions == 1


def test_an_expired_session_lets_the_next_one_in() -> None:
    bench = VerifierBench(num_pages=8, max_waiting_s=2.0)
    bench.post(small(1, 24))
    bench.post(small(2, 16))
    bench.now = 1.0
    bench.post(small(3, 8))
    bench.now = 2.0
    replies = bench.step()
    assert [reply.session_id for reply in replies] == [2, 1, 3]


def test_a_session_that_can_never_fit_is_refused_at_once() -> None:
    bench = VerifierBench(num_pages=8)
    error = only_error(bench.post(small(1, 33)))
    assert error.code == "INVALID_ARGUMENT"
    assert error.message == (
        "max_tokens: prompt and output need 9 KV pages of 4 tokens, the pool has 8"
    )


def test_a_full_queue_refuses_with_its_limit() -> None:
    bench = VerifierBench(num_pages=8, max_waiting_sessions=1)
    bench.post(small(1, 32))
    bench.post(small(2, 4))
    error = only_error(bench.post(small(3, 4)))
    assert error.code == "RESOURCE_EXHAUSTED"
    assert "the limit is 1" in error.message


def test_a_session_that_is_closed_while_it_waits_leaves_the_queue() -> None:
    bench = VerifierBench(num_pages=8)
    bench.post(small(1, 32))
    bench.post(small(2, 32))
    bench.post(small(3, 4))
    bench.post(CloseSession(2))
    bench.post(CloseSession(1))
    assert [reply.session_id for reply in bench.step()] == [3]


# --- long prompts ---------------------------------------------------------------------------------


def test_a_long_prompt_is_prefilled_between_the_decoding_of_others() -> None:
    """E06: a decoding session commits tokens between any two chunks of a 2,000-token prompt."""
    bench = VerifierBench(max_batch_tokens=64, num_pages=1024)
    bench.post(opening(1, speculation=False, sampling=SamplingParams(temperature=0, max_tokens=99)))
    bench.step()
    prompt = tuple(i % VOCAB for i in range(2000))
    bench.post(opening(2, token_ids=prompt, speculation=False, sampling=GREEDY))
    replies: list[Any] = []
    num_chunks = 0
    while not tokens_of(replies, 2):
        step = bench.step()
        assert len(tokens_of(step, 1)) == 1
        assert sum(n for n, _ in bench.runner.passes[-1]) <= 64
        replies += step
        num_chunks += 1
    assert num_chunks == -(-2000 // 63)
    replies += bench.run()
    assert tokens_of(replies, 2) == reference(TARGET, prompt, GREEDY.max_tokens)


def test_two_prompts_share_what_decoding_leaves() -> None:
    """E06: a short prompt is not held up by a long one before it."""
    bench = VerifierBench(max_batch_tokens=32, num_pages=1024)
    bench.post(opening(1, token_ids=(1,) * 1000))
    bench.post(opening(2, token_ids=(2,) * 30))
    replies: list[Any] = []
    while not tokens_of(replies, 2):
        replies += bench.step()
    assert len(bench.runner.passes) == 2


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    prompt_length=st.integers(1, 30),
    num_drafts=st.integers(0, 12),
    num_right=st.integers(0, 12),
    budget=st.integers(1, 40),
    late=st.booleans(),
)
def test_chunks_of_any_size_give_the_result_of_one_pass(
    prompt_length: int, num_drafts: int, num_right: int, budget: int, late: bool
) -> None:
    """E06: also when a fast drafter's block is there before the prompt is cached."""
    prompt = tuple((3 * i) % VOCAB for i in range(prompt_length))
    drafts = reference(TARGET, prompt, num_drafts)
    if num_right < num_drafts:
        drafts[num_right] = (drafts[num_right] + 1) % VOCAB
    bench = VerifierBench(max_batch_tokens=budget)
    sampling = SamplingParams(temperature=0, max_tokens=16)
    bench.post(opening(token_ids=prompt, sampling=sampling))
    replies = bench.step() if late else []
    if not tokens_of(replies):
        bench.post(block(prompt_length, drafts))
    while not tokens_of(replies):
        replies += bench.step()
        for num_inputs, num_logits in bench.runner.passes[-1]:
            assert 0 <= num_logits <= num_inputs > 0, "a runner has no other rows"
        table = bench.verifier._sessions.get((1, 1)) and bench.session().table
        assert table is None or table.length < len(bench.session().tokens)
    replies += bench.run()
    assert tokens_of(replies) == reference(TARGET, prompt, 16)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    prompt_length=st.integers(1, 20),
    budget=st.integers(1, 30),
    num_drafts=st.integers(0, 4),
    has_neighbour=st.booleans(),
)
def test_the_prompts_logprobs_come_whole_in_whatever_chunks(
    prompt_length: int, budget: int, num_drafts: int, has_neighbour: bool
) -> None:
    """Before the first verdict, each position once, from the rows of one plain pass."""
    prompt = tuple((3 * i) % VOCAB for i in range(prompt_length))
    bench = VerifierBench(max_batch_tokens=budget)
    if has_neighbour:
        start(bench, 2, speculation=False)
    asked = SamplingParams(temperature=0, max_tokens=16, prompt_logprobs=2, logprobs=0)
    bench.post(opening(token_ids=prompt, sampling=asked))
    bench.post(block(prompt_length, reference(TARGET, prompt, num_drafts)))
    replies: list[Any] = []
    while not tokens_of(replies):
        replies += bench.step()
    own = [reply for reply in replies if reply.session_id == 1]
    assert [type(reply) for reply in own] == [PromptLogprobs] * (len(own) - 1) + [Verdict]
    rows = [row for reply in own[:-1] for row in reply.logprobs]
    assert [reply.base for reply in own[:-1]] == [
        1 + sum(len(reply.logprobs) for reply in own[:index]) for index in range(len(own) - 1)
    ]
    assert len(rows) == prompt_length - 1
    for position, row in enumerate(rows, start=1):
        law = TARGET(prompt[:position]).log_softmax(0)
        assert row.logprob == pytest.approx(float(law[prompt[position]]))
        assert row.top_token_ids == tuple(law.topk(2).indices.tolist())
    assert len(own[-1].logprobs) == len(own[-1].token_ids)
    assert not any(isinstance(reply, PromptLogprobs) for reply in bench.run())


def test_a_demand_above_the_budget_is_served_in_turns() -> None:
    """Least recently served first: nobody starves."""
    bench = VerifierBench(max_batch_tokens=2)
    for session_id in (1, 2, 3):
        bench.post(opening(session_id, token_ids=(session_id,), speculation=False))
    served = [reply.session_id for _ in range(30) for reply in bench.step()]
    counts = [served.count(session_id) for session_id in (1, 2, 3)]
    assert max(counts) - min(counts) <= 1
