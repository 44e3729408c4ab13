"""The one commit point: where a decided block is cut, what is counted, what stays cached."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verifier_harness import (
    TARGET,
    VOCAB,
    SessionBench,
    VerifierBench,
    block,
    opening,
    tokens_of,
)

from paceline.sampling.acceptance import Judgement
from paceline.sampling.logprobs import Logprobs
from paceline.sampling.params import SamplingParams
from paceline.types import DrafterState, FinishReason, Origin, Verdict

END = 10


@pytest.mark.parametrize("accepted", range(5))
@pytest.mark.parametrize("end_at", [*range(6), None])
@pytest.mark.parametrize("kind", ["eos", "stop id", "ignored"])
def test_a_block_is_cut_at_the_first_end_id(accepted: int, end_at: int | None, kind: str) -> None:
    """B01, K02: whatever place of the block it has, counts never exceed what is delivered."""
    drafts = [5, 6, 7, 8]
    next_token = 9
    decided = [*drafts[:accepted], next_token]
    if end_at is not None and end_at < accepted:
        drafts[end_at] = decided[end_at] = END
    elif end_at == accepted:
        next_token = decided[-1] = END
    sampling = SamplingParams(
        temperature=0,
        stop_token_ids=(END,) if kind == "stop id" else (),
        ignore_eos=kind == "ignored",
    )
    bench = SessionBench(sampling=sampling, eos_token_ids=(2, END) if kind != "stop id" else (2,))
    bench.session.add_block(block(4, drafts, state=DrafterState.ENDED))
    verdict = bench.decide(bench.plan(), accepted=accepted, next_token=next_token)
    ends = END in decided and kind != "ignored"
    expected = decided[: decided.index(END) + 1] if ends else decided
    assert list(verdict.token_ids) == expected
    assert bench.session.tokens == [1, 2, 3, 4, *expected]
    assert verdict.finish_reason is (FinishReason.STOP if ends else None)
    assert verdict.accepted_length == min(accepted, len(expected))
    has_next = len(expected) > accepted
    origin = Origin.BONUS if accepted == 4 else Origin.RECOVERED
    assert verdict.next_origin is (origin if has_next else None)
    assert verdict.num_judged == 4


@pytest.mark.parametrize("room", range(1, 6))
@pytest.mark.parametrize("accepted", range(5))
def test_a_block_is_cut_at_max_tokens(room: int, accepted: int) -> None:
    """B03, K02: a cap at each place of a block of 5."""
    bench = SessionBench(sampling=SamplingParams(temperature=0, max_tokens=1 + room))
    bench.session.add_block(block(4, [5, 6, 7, 8], state=DrafterState.ENDED))
    plan = bench.plan()
    accepted = min(accepted, plan.num_drafts)
    has_row = accepted < plan.num_drafts or plan.wants_next
    verdict = bench.decide(plan, accepted=accepted, next_token=9 if has_row else None)
    decided = [*[5, 6, 7, 8][:accepted], *[9] * has_row]
    assert list(verdict.token_ids) == decided
    assert len(decided) <= room
    full = len(decided) == room
    assert verdict.finish_reason is (FinishReason.LENGTH if full else None)
    assert verdict.num_judged == plan.num_drafts <= room


def test_an_end_id_at_max_tokens_is_a_stop() -> None:
    bench = SessionBench(sampling=SamplingParams(temperature=0, max_tokens=2), eos_token_ids=(END,))
    bench.session.add_block(block(4, [END]))
    verdict = bench.decide(bench.plan(), accepted=1, next_token=None)
    assert verdict.finish_reason is FinishReason.STOP


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_after_every_verdict_one_token_less_than_committed_is_cached(data: st.DataObject) -> None:
    """DESIGN 3.8: pages hold the committed length at most, whatever was accepted."""
    bench = SessionBench(max_drafts=data.draw(st.integers(1, 6)))
    session = bench.session
    for _ in range(data.draw(st.integers(1, 8))):
        end = len(session.tokens) + len(session.tail)
        room = min(session.opening.window - len(session.tail), 5)
        if data.draw(st.booleans()) and room:
            drafts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=room))
            state = data.draw(st.sampled_from(DrafterState))
            session.add_block(block(end, drafts, epoch=session.epoch, state=state))
        if session.ready_at(bench.now) is None:
            break
        plan = bench.plan()
        before = list(session.tokens)
        accepted = data.draw(st.integers(0, plan.num_drafts))
        has_row = accepted < plan.num_drafts or plan.wants_next
        verdict = bench.decide(plan, accepted=accepted, next_token=3 if has_row else None)
        assert session.table is not None
        assert verdict.kv_length == session.table.length == len(session.tokens) - 1
        assert session.tokens == before + list(verdict.token_ids)
        assert verdict.base == len(before)
        assert verdict.accepted_length <= verdict.num_judged


def test_logprobs_are_cut_with_their_tokens() -> None:
    bench = SessionBench(eos_token_ids=(END,))
    bench.session.add_block(block(4, [5, END, 7]))
    plan = bench.plan()
    assert bench.session.table is not None
    bench.session.table.grow(plan.num_inputs)
    rows = tuple(Logprobs(-float(i), (i,), (-float(i),)) for i in range(4))
    verdict = bench.session.commit(plan, Judgement(3, 9, rows), None)  # type: ignore[arg-type]
    assert [row.logprob for row in verdict.logprobs] == [0.0, -1.0]


def test_the_first_token_of_a_prompt_is_marked_so() -> None:
    bench = SessionBench(prefilled=False)
    assert bench.decide(bench.plan(), accepted=0, next_token=4).next_origin is Origin.PREFILL


def masked_reference(num_tokens: int, min_tokens: int, end: int) -> list[int]:
    """The target alone, greedy, `end` masked before `min_tokens`."""
    tokens = [1, 2, 3]
    for count in range(num_tokens):
        logits = TARGET(tokens).clone()
        if count < min_tokens:
            logits[end] = float("-inf")
        tokens.append(int(logits.argmax()))
        if tokens[-1] == end:
            break
    return tokens[3:]


@pytest.mark.parametrize("ends_by", ["eos", "stop id"])
@pytest.mark.parametrize("min_tokens", [0, 2, 3, 8, 30])
@pytest.mark.parametrize("block_length", [1, 2, 5])
def test_min_tokens_holds_inside_a_block(min_tokens: int, block_length: int, ends_by: str) -> None:
    """B01: an end id drafted before `min_tokens` is rejected, after it it ends the output."""
    plain = masked_reference(40, 0, END)
    end = plain[2] if END not in plain else END
    sampling = SamplingParams(
        temperature=0,
        max_tokens=40,
        min_tokens=min_tokens,
        stop_token_ids=(end,) if ends_by == "stop id" else (),
    )
    bench = VerifierBench()
    bench.post(opening(sampling=sampling, eos_token_ids=(end,) if ends_by == "eos" else ()))
    expected = masked_reference(40, min_tokens, end)
    replies = bench.step()
    turn = 0
    while not replies[-1].finish_reason:
        session = bench.session()
        committed = len(session.tokens)
        drafts = (expected[committed - 3 :] + [0] * block_length)[:block_length]
        turn += 1
        if turn % 2:
            drafts[-1] = end  # often too early
        bench.post(block(committed, drafts, epoch=session.epoch))
        replies += bench.step()
    assert tokens_of(replies) == expected
    counted = sum(r.accepted_length + (r.next_origin is not None) for r in replies)
    assert counted == len(expected), "parts add up to the total"
    assert bench.runner.pool.used_pages == 0


@pytest.mark.parametrize("end_at", range(6))
def test_counts_are_those_of_a_run_without_drafts(end_at: int) -> None:
    """K02: an end at each place of a block of five gives the same completion."""
    full = masked_reference(12, 0, VOCAB)
    end = full[1 + end_at]

    def run(num_drafts: int) -> list[Verdict]:
        bench = VerifierBench()
        bench.post(opening(eos_token_ids=(end,), speculation=num_drafts > 0))
        replies = bench.step()
        while not replies[-1].finish_reason:
            if num_drafts:
                committed = len(bench.session().tokens)
                bench.post(block(committed, full[committed - 3 :][:num_drafts]))
            replies += bench.step()
        return replies

    alone, drafted = run(0), run(5)
    assert tokens_of(alone) == tokens_of(drafted) == full[: full.index(end) + 1]
    for replies in (alone, drafted):
        accepted = sum(reply.accepted_length for reply in replies)
        assert accepted < len(tokens_of(replies))
