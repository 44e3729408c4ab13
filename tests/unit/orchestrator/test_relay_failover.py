"""Real engines behind the relay: a verifier that fails, is replaced, or answers too late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.pipeline import Pipeline, outputs, reference, verdicts
from worker_fakes import rest

from orchestrator.relay import Relay
from paceline.errors import UnavailableError
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import Verdict

VOCAB = 11
TARGET = hashed_script(VOCAB, seed=1)
PROMPT = [1, 2, 3]
GREEDY = SamplingParams(temperature=0, max_tokens=30)
REF = reference(TARGET, PROMPT, 30)


class Failing:
    """A target whose passes fail where the test says; counts the calls of `forward`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.num_passes = 0
        self.fails_at: set[int] = set()
        self._forward = pipeline.target.forward
        pipeline.target.forward = self.forward  # type: ignore[method-assign]

    def forward(self, chunks: Sequence[Any]) -> torch.Tensor:
        self.num_passes += 1
        if self.num_passes in self.fails_at:
            raise RuntimeError("out of memory")
        return self._forward(chunks)


def pipeline_with(script: Any = TARGET) -> Pipeline:
    return Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB), ScriptedRunner(script, vocab_size=VOCAB)
    )


async def run(pipeline: Pipeline) -> None:
    """Let everything happen, reopenings included."""
    for _ in range(12):
        pipeline.run()
        await rest()


def check_lengths(pipeline: Pipeline, relay: Relay) -> None:
    """Both caches hold no more than what is committed and, at the drafter, live drafts."""
    for session in pipeline.verifier_engine._sessions.values():
        assert session.table is None or session.table.length < len(session.tokens)
        assert session.tokens == relay.session.tokens
    pipeline.target.pool.check_integrity()


@pytest.mark.parametrize("round_", range(1, 7))
@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.COUPLED])
async def test_a_pass_that_fails_once_costs_no_token(round_: int, acceptance: Acceptance) -> None:
    """D07: UNAVAILABLE at any round, the third among them; no doubled or lost token."""
    sampling = SamplingParams(
        temperature=0 if acceptance is Acceptance.REJECTION else 1,
        acceptance=acceptance,
        max_tokens=30,
        seed=5,
    )
    untroubled = pipeline_with()
    expected = untroubled.open(PROMPT, sampling)
    untroubled.run()
    pipeline = pipeline_with()
    target = Failing(pipeline)
    target.fails_at = {round_}
    relay = pipeline.open(PROMPT, sampling)
    await run(pipeline)
    assert outputs(relay) == outputs(expected)
    assert len(outputs(relay)) == 30
    positions = [verdict.base for verdict in verdicts(relay)]
    assert positions == sorted(set(positions))
    assert relay.session.counts.accepted > 0, "it speculates again"
    assert target.num_passes > round_
    assert pipeline.target.pool.used_pages == 0
    assert pipeline.drafter is not None
    assert pipeline.drafter.engine.describe().kv_pages_used == 0


async def test_a_target_that_fails_for_good_ends_the_generation_with_its_reason() -> None:
    """D07: three reopenings, then the client is told."""
    pipeline = pipeline_with()
    target = Failing(pipeline)
    target.fails_at = set(range(3, 100))
    relay = pipeline.open(PROMPT, GREEDY)
    await run(pipeline)
    assert target.num_passes == 2 + 1 + 3
    with pytest.raises(UnavailableError, match="verification failed: unexpected RuntimeError"):
        verdicts(relay)
    assert outputs(relay) == REF[: len(outputs(relay))]
    assert pipeline.verifier_engine.describe().live_sessions == 0
    assert pipeline.drafter is not None
    assert pipeline.drafter.engine.describe().live_sessions == 0


def hold_verdict(pipeline: Pipeline, accepted: int) -> Any:
    """Run until a verdict has accepted so many drafts, and keep it from the relay."""
    for _ in range(1000):
        for reply in pipeline.verifier.replies:
            if isinstance(reply, Verdict) and reply.accepted_length == accepted:
                pipeline.verifier.replies.remove(reply)
                return reply
        hops = pipeline.hops()
        if hops:
            hops[0]()
        else:
            due = pipeline.verifier_engine.next_step_at(pipeline.now)
            assert due is not None
            pipeline.now = due
    raise AssertionError("no such verdict")


def right_of(num_right: int) -> Any:
    """A draft model whose blocks of 4 hold so many right tokens, seen from the first token on."""

    def script(history: Sequence[int]) -> torch.Tensor:
        logits = TARGET(history)
        return logits if (len(history) - len(PROMPT) - 1) % (num_right + 1) < num_right else -logits

    return script


@pytest.mark.parametrize("accepted", [0, 1, 3])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_verdict_that_comes_after_a_reopening_is_dropped(accepted: int, times: int) -> None:
    """E08: the session was evicted and prefilled again; its old answer touches nothing."""
    pipeline = pipeline_with(right_of(accepted))
    relay = pipeline.open(PROMPT, GREEDY)
    late = []
    for _ in range(times):
        late.append(hold_verdict(pipeline, accepted))
        before = list(relay.session.tokens)
        pipeline.verifier.lose()
        pipeline.verifier.restore()
        await rest()
        for verdict in late:  # the answers of all earlier lives come again
            pipeline.verifier.replies.append(verdict)
        while pipeline.verifier.replies:
            pipeline.verifier.take_reply()
        assert relay.session.tokens == before
        check_lengths(pipeline, relay)
    for _ in range(40):
        if hops := pipeline.hops():
            hops[0]()
        pipeline.target.pool.check_integrity()
    for verdict in late:
        pipeline.verifier.replies.append(verdict)
    await run(pipeline)
    assert outputs(relay) == REF
    assert pipeline.target.pool.used_pages == 0


async def test_credit_taken_during_a_failover_is_not_lost() -> None:
    """D07: a client that reads while no verifier is there gets its answer to the end."""
    pipeline = pipeline_with()
    relay = pipeline.open(PROMPT, GREEDY, commit_credit=8)
    await run(pipeline)
    assert len(outputs(relay)) == 8
    pipeline.verifier.lose()
    relay.taken(8)
    pipeline.verifier.restore()
    await run(pipeline)
    assert len(outputs(relay)) == 16
    relay.close()


async def test_a_drafter_that_dies_and_returns_leaves_no_mark_on_the_output() -> None:
    """H02: after five tokens it is gone; later it drafts again."""
    pipeline = pipeline_with()
    assert pipeline.drafter is not None
    relay = pipeline.open(PROMPT, GREEDY)
    while len(outputs(relay)) < 5:
        pipeline.hops()[0]()
    pipeline.drafter.lose()
    while len(outputs(relay)) < 10:
        pipeline.hops()[0]()
    drafted = relay.session.counts.drafted
    pipeline.drafter.restore()
    await run(pipeline)
    assert outputs(relay) == REF
    assert relay.session.counts.drafted > drafted
    assert relay.session.counts.epochs > 0


async def test_a_faulty_block_for_an_outcome_costs_the_drafts_and_not_the_answer() -> None:
    pipeline = pipeline_with()
    relay = pipeline.open(PROMPT, GREEDY, num_outcome_tokens=2)
    drafter = pipeline.drafter
    assert drafter is not None
    pipeline.verifier.take_event()
    while drafter.events:
        drafter.take_event()
    while not drafter.replies:
        drafter.step(0.0)
    good = drafter.replies[-1]
    drafter.replies.append(replace(good, outcome=VOCAB, epoch=good.epoch + 1))
    for _ in range(400):
        if possible := pipeline.hops():
            possible[0]()
        else:
            pipeline.now = pipeline.verifier_engine.next_step_at(pipeline.now) or pipeline.now
        await asyncio.sleep(0)
    assert outputs(relay) == REF
    assert not relay._drafts.is_open
    assert relay.session.counts.reopenings == 1
