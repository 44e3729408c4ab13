"""A generation whose workers are taken away from it, and where the next one goes."""

from __future__ import annotations

from typing import Any

import pytest
from test_relay import PROMPT, RelayBench
from worker_fakes import FakeWorker, rest

from orchestrator.affinity import BLOCK_TOKENS, prefix_keys
from orchestrator.relay import Relay
from paceline.types import FinishReason, OpenSession, SetSpeculation


@pytest.fixture
async def bench() -> Any:
    bench = await RelayBench().connect()
    await bench.verifiers[1].start()
    yield bench
    await bench.router.close()


def opened(worker: FakeWorker) -> list[OpenSession]:
    return [event for event in worker.link.take() if isinstance(event, OpenSession)]


async def test_a_session_on_a_verifier_that_leaves_goes_on_elsewhere_from_what_is_committed(
    bench: RelayBench,
) -> None:
    relay = bench.start()
    bench.heard_by(bench.verifiers[0])
    bench.heard_by(bench.drafter)
    bench.verdict(3, 7)
    bench.verdict(4, 8)
    await bench.router.drain(bench.verifiers[0], 0.0)
    await rest()
    (again,) = opened(bench.verifiers[1])
    assert again.token_ids == (*PROMPT, 7, 8)
    assert again.prompt_length == len(PROMPT)
    assert again.epoch > 0, "late verdicts of the old life are dropped"
    bench.verifier_id = again.session_id
    bench.verdict(5, 9, epoch=again.epoch, worker=1, finish_reason=FinishReason.STOP)
    assert [v.token_ids async for v in relay.verdicts()] == [(7,), (8,), (9,)]


async def test_a_session_on_a_drafter_that_leaves_takes_up_another_at_once(
    bench: RelayBench,
) -> None:
    other = FakeWorker("drafter", name="other")
    bench.router.add_drafter(other)
    await other.start()
    relay = bench.start()
    bench.heard_by(bench.drafter)
    bench.heard_by(bench.verifiers[0])
    bench.verdict(3, 7)
    await bench.router.drain(bench.drafter, 0.0)
    (opening,) = opened(other)
    assert opening.token_ids == (*PROMPT, 7)
    assert opening.epoch > 0
    told = [e for e in bench.heard_by(bench.verifiers[0]) if isinstance(e, SetSpeculation)]
    assert [event.enabled for event in told] == [False, True]
    relay.close()


async def test_a_session_whose_only_drafter_leaves_goes_on_without_until_one_is_added(
    bench: RelayBench,
) -> None:
    relay = bench.start()
    bench.heard_by(bench.verifiers[0])
    await bench.router.drain(bench.drafter, 0.0)
    assert [e.enabled for e in bench.heard_by(bench.verifiers[0])] == [False]
    late = FakeWorker("drafter", name="late")
    bench.router.add_drafter(late)
    await late.start()
    assert len(opened(late)) == 1
    assert [e.enabled for e in bench.heard_by(bench.verifiers[0])] == [True]
    relay.close()


async def test_the_next_turn_goes_where_the_whole_of_the_last_one_lies(bench: RelayBench) -> None:
    """Its answer counts too: a short prompt has no whole block before."""
    busy = bench.verifiers[0].open_session(lambda *_: None, lambda _: None)
    relay = bench.start()
    bench.heard_by(bench.verifiers[1])
    answer = tuple(range(BLOCK_TOKENS))
    bench.verdict(3, *answer, worker=1, finish_reason=FinishReason.LENGTH)
    busy.close()
    whole = (*PROMPT, *answer, 1)
    for prompt, expected in ((whole, 1), ((9, *whole), 0)):
        next_turn: Relay = bench.start(prefix_keys=prefix_keys(prompt))
        assert [len(opened(worker)) for worker in bench.verifiers] == [1 - expected, expected]
        next_turn.close()
    assert relay.session.tokens == [*PROMPT, *answer]


async def test_a_session_counts_with_all_it_may_come_to_and_until_it_ends(
    bench: RelayBench,
) -> None:
    relay = bench.start()
    assert bench.verifiers[0]._num_tokens == bench.drafter._num_tokens == len(PROMPT) + 50
    relay.close()
    assert bench.verifiers[0]._num_tokens == bench.drafter._num_tokens == 0
