"""How an orchestrator follows what it is told of its workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.byte_tokenizer import build_byte_tokenizer
from worker_fakes import VERIFIER_INFO, FakeWorker, rest

from orchestrator.membership import LoadWatch, Membership
from orchestrator.router import Router
from orchestrator.worker_set import WorkerSet
from paceline.errors import PacelineError, UnavailableError
from paceline.runtime.tokenizer import Tokenizer

TOKENIZER = Tokenizer(build_byte_tokenizer())


class FakeMaker:
    """Makes scripted workers, one an address."""

    def __init__(self) -> None:
        self.made: dict[str, FakeWorker] = {}

    def verifier(self, address: str) -> FakeWorker:
        worker = self.made[address] = FakeWorker("verifier", name=address.removesuffix(":1"))
        worker.client.info = replace(
            worker.client.info, tokenizer_fingerprint=TOKENIZER.fingerprint
        )
        return worker

    def drafter(self, address: str) -> FakeWorker:
        worker = self.made[address] = FakeWorker("drafter", name=address.removesuffix(":1"))
        return worker


class Bench:
    def __init__(self) -> None:
        self.maker = FakeMaker()
        self.router = Router([], [])
        maker: Any = self.maker
        self.membership = Membership(self.router, maker, TOKENIZER, VERIFIER_INFO)
        self.version = 0

    async def tell(self, verifiers: str, drafters: str = "", *, grace_s: float = 0.0) -> None:
        """Names of workers, one letter each."""
        self.version += 1
        workers = WorkerSet(
            self.version, tuple(f"{v}:1" for v in verifiers), tuple(f"{d}:1" for d in drafters)
        )
        await self.membership.update(workers, grace_s)
        await rest()

    @property
    def connected(self) -> list[str]:
        return [worker.address[0] for worker in self.router.workers if worker.is_connected]


@pytest.fixture
async def bench() -> Any:
    bench = Bench()
    yield bench
    await bench.router.close()


async def test_workers_that_are_named_join_and_those_that_are_not_leave(bench: Bench) -> None:
    await bench.tell("ab", "x")
    assert bench.connected == ["a", "b", "x"]
    first = bench.router.verifiers[0]
    await bench.tell("ca", "yx")
    assert bench.connected == ["a", "c", "x", "y"]
    assert bench.router.verifiers[0] is first, "one that stays is left alone"
    assert bench.maker.made["b:1"].client.num_closes == 1
    await bench.tell("c", "")
    assert bench.connected == ["c"]


async def test_a_worker_that_is_down_and_named_is_kept_and_comes_back_by_itself(
    bench: Bench,
) -> None:
    """H02: it is restarted at its address."""
    await bench.tell("ab")
    worker = bench.maker.made["b:1"]
    worker.lose(*[UnavailableError("down")] * 3)
    await bench.tell("ab")
    assert bench.maker.made["b:1"] is worker
    await worker.is_back()
    assert bench.connected == ["a", "b"]


async def test_an_older_set_that_comes_late_changes_nothing(bench: Bench) -> None:
    await bench.tell("ab")
    await bench.membership.update(WorkerSet(1, (), ()), 0.0)
    await bench.membership.update(WorkerSet(0, ("z:1",), ()), 0.0)
    assert bench.connected == ["a", "b"]


async def test_telling_returns_when_the_last_session_of_those_that_leave_has_ended(
    bench: Bench,
) -> None:
    await bench.tell("ab")
    session = bench.maker.made["b:1"].open_session(lambda *_: None, lambda _: None)
    telling = asyncio.create_task(bench.tell("a", grace_s=60))
    await rest()
    assert not telling.done()
    assert [w.is_draining for w in bench.router.verifiers] == [False, True]
    await bench.tell("ac", grace_s=60)
    assert bench.connected == ["a", "b", "c"], "others come and go meanwhile"
    session.close()
    await asyncio.wait_for(telling, 10)
    assert bench.connected == ["a", "c"]


async def test_an_address_that_is_named_again_while_its_worker_drains_is_a_new_worker(
    bench: Bench,
) -> None:
    await bench.tell("ab")
    old = bench.maker.made["b:1"]
    session = old.open_session(lambda *_: None, lambda _: None)
    telling = asyncio.create_task(bench.tell("a", grace_s=60))
    await rest()
    await bench.tell("ab")
    new = bench.maker.made["b:1"]
    assert new is not old
    session.close()
    await asyncio.wait_for(telling, 10)
    assert bench.router.verifiers[1:] == [new]
    assert not new.is_draining


async def test_a_new_worker_with_another_model_is_refused_and_says_why(bench: Bench) -> None:
    """C02: what is added while serving is checked as at the start."""
    await bench.tell("a")
    bench.version += 1
    maker = bench.maker
    make = maker.verifier

    def other(address: str) -> FakeWorker:
        worker = make(address)
        worker.client.info = replace(worker.client.info, model="another")
        return worker

    maker.verifier = other  # type: ignore[method-assign]
    await bench.tell("ab")
    assert bench.connected == ["a"]
    problem = maker.made["b:1"].problem
    assert "b:1 serves another target: model is 'another', expected 'scripted'" in problem


@pytest.mark.parametrize("error", [PacelineError("no answer"), ZeroDivisionError("a bug of ours")])
async def test_load_is_asked_for_again_and_again_and_one_that_fails_hides_no_other(
    error: Exception,
) -> None:
    first, second = [await FakeWorker(name=name).start() for name in "ab"]
    asked = asyncio.Event()
    second.client.info = replace(second.client.info, live_sessions=5)

    async def fails() -> None:
        raise error

    refresh, times = second.refresh, []

    async def refreshed() -> None:
        await refresh()
        times.append(second.load)
        if len(times) == 2:
            asked.set()

    first.refresh, second.refresh = fails, refreshed  # type: ignore[method-assign]
    router = Router([first, second], [])
    watch = LoadWatch(router, every_s=0.001)
    watch.start()
    await asyncio.wait_for(asked.wait(), 10)
    await watch.stop()
    await watch.stop()
    assert times == [5, 5]
    assert router.verifier() is first
    await router.close()
