"""Which worker serves a session, and how long one is waited for."""

from __future__ import annotations

import asyncio

import pytest
from worker_fakes import FakeWorker, rest

from orchestrator.router import Router
from paceline.errors import UnavailableError


def ignore(*_: object) -> None:
    pass


def load(worker: FakeWorker, num_sessions: int) -> None:
    for _ in range(num_sessions):
        worker.open_session(ignore, ignore)


async def test_the_connected_worker_with_the_fewest_sessions_is_chosen() -> None:
    workers = [await FakeWorker(name=name).start() for name in "abc"]
    router = Router(workers, [])
    load(workers[0], 2)
    load(workers[1], 1)
    load(workers[2], 1)
    assert router.verifier() is workers[1], "the first of equals"
    load(workers[1], 2)
    assert router.verifier() is workers[2]
    workers[2].lose(*[UnavailableError("down")] * 9)
    assert router.verifier() is workers[0]
    await router.close()


async def test_drafters_are_chosen_alike_and_may_be_missing() -> None:
    drafters = [await FakeWorker("drafter", name=name).start() for name in "ab"]
    router = Router([], drafters)
    load(drafters[0], 1)
    assert router.drafter() is drafters[1]
    for drafter in drafters:
        drafter.lose(*[UnavailableError("down")] * 9)
    assert router.drafter() is None
    assert Router([], []).drafter() is None
    await router.close()


async def test_without_a_verifier_each_ones_problem_is_named() -> None:
    """H01: fail fast, and say why."""
    lost = await FakeWorker(name="a").start()
    router = Router([lost, FakeWorker(name="b")], [])
    lost.lose(UnavailableError("down"))
    assert not router.can_serve
    with pytest.raises(UnavailableError) as caught:
        router.verifier()
    assert str(caught.value) == (
        "no verifier is connected (a:1: the process is gone; b:1: not connected yet)"
    )
    await router.close()


async def test_a_connected_verifier_is_waited_for_no_longer_than_need_be() -> None:
    worker = FakeWorker()
    router = Router([worker], [])
    waiting = asyncio.create_task(router.wait_for_verifier(60))
    await rest()
    assert not waiting.done()
    await worker.start()
    assert await asyncio.wait_for(waiting, 10) is worker
    assert await router.wait_for_verifier(60) is worker
    assert await router.wait_for_verifier(0) is worker
    await router.close()


@pytest.mark.parametrize("timeout_s", [0, 0.01])
async def test_waiting_for_a_verifier_ends(timeout_s: float) -> None:
    """H01: UNAVAILABLE within the failover time."""
    router = Router([FakeWorker()], [])
    with pytest.raises(UnavailableError, match="no verifier is connected"):
        await router.wait_for_verifier(timeout_s)


async def test_a_verifier_that_is_lost_again_is_waited_for_again() -> None:
    worker = FakeWorker()
    router = Router([worker], [])
    await worker.start()
    worker.lose(UnavailableError("down"))
    waiting = asyncio.create_task(router.wait_for_verifier(60))
    await rest()
    assert not waiting.done()
    await worker.is_back()
    assert await asyncio.wait_for(waiting, 10) is worker
    await router.close()


async def test_listeners_hear_of_every_change_until_they_stop() -> None:
    verifier, drafter = FakeWorker(), FakeWorker("drafter")
    router = Router([verifier], [drafter])
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        stop_once()

    stop_once = router.listen(once)
    stop = router.listen(lambda: heard.append("each"))
    await verifier.start()
    assert heard == ["once", "each"], "leaving in the midst of it hides the news from nobody"
    await drafter.start()
    drafter.lose(*[UnavailableError("down")] * 9)
    assert heard == ["once", "each", "each", "each"]
    stop()
    verifier.lose(*[UnavailableError("down")] * 9)
    assert len(heard) == 4
    await router.close()


async def test_closing_ends_every_link() -> None:
    workers = [await FakeWorker().start(), await FakeWorker("drafter").start()]
    router = Router(workers[:1], workers[1:])
    await router.close()
    assert [worker.client.num_closes for worker in workers] == [1, 1]
