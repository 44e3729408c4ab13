"""Which worker serves a session, and how long one is waited for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from worker_fakes import FakeWorker, rest

from orchestrator.affinity import BLOCK_TOKENS, Demand, prefix_keys
from orchestrator.load import AFFINITY_SESSIONS
from orchestrator.router import Router
from paceline.errors import PacelineError, UnavailableError


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


# --- where the prefix lies, who is avoided, who drains --------------------------------------------

SYSTEM = tuple(range(2 * BLOCK_TOKENS))


def demand_of(*token_ids: int, cache_key: str = "", num_tokens: int = 0) -> Demand:
    return Demand(num_tokens or len(token_ids), cache_key, prefix_keys(token_ids))


async def two() -> tuple[Router, FakeWorker, FakeWorker]:
    workers = [await FakeWorker(name=name).start() for name in "ab"]
    return Router(workers, []), workers[0], workers[1]


async def test_a_verifier_that_refused_a_session_gets_it_again_only_if_it_is_the_only_one() -> None:
    """E01: one that is full or on its way down attracts nobody by being idle."""
    router, first, second = await two()
    load(second, 9)
    assert router.verifier(avoid=first) is second
    assert await router.wait_for_verifier(0, avoid=first) is second
    assert router.verifier(avoid=second) is first
    second.lose(*[UnavailableError("down")] * 9)
    assert router.verifier(avoid=first) is first
    await router.close()


async def test_a_prefix_goes_where_it_was_served_last_for_verifiers_and_drafters_alike() -> None:
    router, first, second = await two()
    drafters = [await FakeWorker("drafter", name=name).start() for name in "cd"]
    for drafter in drafters:
        router.add_drafter(drafter)
    turn = demand_of(*SYSTEM)
    assert (router.verifier(turn), router.drafter(turn)) == (first, drafters[0])
    router.served_by(second, turn)
    router.served_by(drafters[1], turn)
    next_turn = demand_of(*SYSTEM, 1, 2, 3)
    assert (router.verifier(next_turn), router.drafter(next_turn)) == (second, drafters[1])
    assert router.verifier(demand_of(9, *SYSTEM)) is first
    load(second, AFFINITY_SESSIONS + 1)
    assert router.verifier(next_turn) is first, "the prefix is not worth that much"
    await router.close()


async def test_a_worker_that_was_lost_attracts_no_prefix_when_it_is_back() -> None:
    """Its KV is gone."""
    router, first, second = await two()
    router.served_by(second, demand_of(*SYSTEM, cache_key="k"))
    second.lose()
    await second.is_back()
    assert router.verifier(demand_of(*SYSTEM, cache_key="k")) is first
    await router.close()


async def test_a_session_goes_where_the_kv_pool_has_room_and_others_sessions_count() -> None:
    router, first, second = await two()
    pool = {"kv_page_size": 16, "kv_pages_total": 10}
    first.client.info = replace(first.client.info, **pool, kv_pages_reserved=9, live_sessions=0)
    second.client.info = replace(second.client.info, **pool, live_sessions=3)
    for worker in (first, second):
        await worker.refresh()
    assert router.verifier(demand_of(num_tokens=16)) is first
    assert router.verifier(demand_of(num_tokens=17)) is second
    assert router.verifier(demand_of(num_tokens=999)) is first, "it waits there then"
    session = first.open_session(ignore, ignore, num_tokens=16)
    assert router.verifier(demand_of(num_tokens=1)) is second
    session.close()
    assert router.verifier(demand_of(num_tokens=1)) is first
    await router.close()


async def test_a_worker_that_drains_gets_no_session_and_is_left_when_its_last_one_ends() -> None:
    router, first, second = await two()
    heard: list[PacelineError] = []
    session = first.open_session(ignore, heard.append)
    load(second, 5)
    router.served_by(first, demand_of(*SYSTEM))
    draining = asyncio.create_task(router.drain(first, 60))
    await rest()
    assert not draining.done()
    assert router.verifier(demand_of(*SYSTEM)) is second
    session.close()
    await asyncio.wait_for(draining, 10)
    assert router.verifiers == [second]
    assert first.client.num_closes == 1
    assert heard == [], "it ended by itself"
    await router.close()


async def test_after_its_grace_a_draining_worker_gives_its_sessions_up() -> None:
    router, first, second = await two()
    heard: list[PacelineError] = []
    first.open_session(ignore, heard.append)
    await router.drain(first, 0.0)
    assert [type(error) for error in heard] == [UnavailableError]
    assert router.verifiers == [second]
    assert router.can_serve
    await router.close()


async def test_the_last_verifier_serves_while_it_drains_if_there_is_no_other() -> None:
    router, first, second = await two()
    second.lose(*[UnavailableError("down")] * 99)
    session = first.open_session(ignore, ignore)
    draining = asyncio.create_task(router.drain(first, 60))
    await rest()
    assert router.verifier() is first
    session.close()
    await asyncio.wait_for(draining, 10)
    with pytest.raises(UnavailableError):
        router.verifier()
    await router.close()


async def test_sessions_that_wait_for_a_drafter_hear_of_one_that_is_added() -> None:
    router, _, _ = await two()
    heard: list[str] = []
    router.listen(lambda: heard.append("news"))
    drafter = FakeWorker("drafter")
    router.add_drafter(drafter)
    assert router.drafter() is None
    await drafter.start()
    assert heard == ["news"]
    assert router.drafter() is drafter
    await router.close()


def test_drafts_come_back_when_an_eighth_of_the_limit_is_free_and_not_at_every_end() -> None:
    router = Router([], [], max_drafting_sessions=16)
    heard: list[bool] = []
    router.listen(lambda: heard.append(router.allows_drafts))
    for change in 17 * [1] + 3 * [-1, 1]:
        router.count_session(change)
    assert heard == [False]
    for _ in range(3):
        router.count_session(-1)
    assert heard == [False, True]


def test_a_listener_that_fails_keeps_the_news_from_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = Router([], [], max_drafting_sessions=1)
    heard: list[str] = []

    def fails() -> None:
        raise ValueError("a bug of ours")

    router.listen(fails)
    router.listen(lambda: heard.append("news"))
    router.count_session(2)
    assert heard == ["news"]
    assert "a listener failed" in caplog.text
