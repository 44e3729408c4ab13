"""A worker as the orchestrator sees it: connecting, sessions, loss, and coming back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from worker_fakes import FakeWorker, rest

from orchestrator import worker as module
from paceline.errors import (
    PacelineError,
    StartupError,
    UnauthenticatedError,
    UnavailableError,
    VocabularyMismatchError,
)
from paceline.types import CloseSession, Credit, SessionError

DOWN = UnavailableError("connection refused")


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between tries, which then take no time."""
    sleep, waited = asyncio.sleep, []

    async def record(seconds: float) -> None:
        if seconds:
            waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(module.asyncio, "sleep", record)
    return waited


@pytest.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    worker = await FakeWorker().start()
    yield worker
    await worker.close()


class Heard:
    """The two handlers of a session."""

    def __init__(self, worker: FakeWorker) -> None:
        self.replies: list[tuple[Any, int]] = []
        self.losses: list[PacelineError] = []
        self.session = worker.open_session(
            lambda reply, num_bytes: self.replies.append((reply, num_bytes)), self.losses.append
        )


# --- connecting -----------------------------------------------------------------------------------


async def test_connecting_describes_checks_and_announces() -> None:
    worker = FakeWorker()
    changes: list[bool] = []
    checked: list[Any] = []

    async def check(info: Any) -> None:
        checked.append(info)

    worker.on_change = lambda: changes.append(worker.is_connected)
    worker.check = check
    assert not worker.is_connected
    assert worker.problem == "not connected yet"
    await worker.start()
    assert worker.is_connected
    assert (worker.info, worker.problem) == (worker.client.info, "")
    assert checked == [worker.client.info]
    assert changes == [True]
    assert await worker.describe() == worker.client.info
    assert await worker.vocabulary() == worker.client.table
    await worker.close()


async def test_a_worker_that_is_not_there_yet_is_tried_again_ever_slower(
    delays: list[float],
) -> None:
    worker = FakeWorker("verifier", *[DOWN] * 7)
    await worker.connect(asyncio.get_running_loop().time() + 100)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert worker.is_connected
    assert worker.problem == ""
    await worker.close()


async def test_connecting_ends_at_its_deadline_with_the_last_reason(delays: list[float]) -> None:
    worker = FakeWorker("verifier", DOWN, UnavailableError("still not there"), DOWN)
    with pytest.raises(UnavailableError, match="still not there"):
        await worker.connect(asyncio.get_running_loop().time() + 0.15)
    assert worker.problem == "still not there"
    assert worker._keeper is None, "nothing goes on in the background"
    await worker.close()


async def test_a_wrong_worker_is_not_tried_again(delays: list[float]) -> None:
    """C02: another tokenizer will not become the right one by waiting."""
    worker = FakeWorker()

    async def check(info: Any) -> None:
        raise VocabularyMismatchError("token id 10 differs")

    worker.check = check
    with pytest.raises(StartupError, match="token id 10"):
        await worker.connect(asyncio.get_running_loop().time() + 100)
    assert worker.client.num_tries == 1
    assert not worker.is_connected
    assert delays == []
    await worker.close()


@pytest.mark.parametrize("error", [UnauthenticatedError("wrong token"), PacelineError("a fault")])
async def test_what_time_does_not_cure_is_not_tried_again(
    delays: list[float], error: PacelineError
) -> None:
    worker = FakeWorker("verifier", error)
    with pytest.raises(type(error), match=str(error)):
        await worker.connect(asyncio.get_running_loop().time() + 100)
    assert worker.client.num_tries == 1
    assert delays == []
    await worker.close()


async def test_before_it_was_ever_reached_it_cannot_be_asked() -> None:
    worker = FakeWorker("drafter")
    for question in (worker.describe, worker.vocabulary):
        with pytest.raises(UnavailableError, match="drafter drafter:1 is not connected"):
            await question()
    with pytest.raises(UnavailableError, match="not connected yet"):
        Heard(worker)
    assert worker.send(CloseSession(1)) == 0


# --- sessions -------------------------------------------------------------------------------------


async def test_a_session_hears_its_own_replies_and_their_bytes(worker: FakeWorker) -> None:
    first, second = Heard(worker), Heard(worker)
    assert worker.num_sessions == 2
    reply = Credit(second.session.session_id, 1)  # any value with a session id will do
    worker.link.reply(reply, 42)
    assert second.replies == [(reply, 42)]
    assert first.replies == []
    assert first.session.send(Credit(first.session.session_id, 9)) == 10


async def test_late_replies_of_a_closed_session_reach_nobody(worker: FakeWorker) -> None:
    """E08: the id of a dead session is never used again."""
    old = Heard(worker)
    old.session.close()
    old.session.close()
    assert worker.link.take() == [CloseSession(old.session.session_id)]
    new = Heard(worker)
    assert new.session.session_id != old.session.session_id
    worker.link.reply(Credit(old.session.session_id, 1))
    worker.link.reply(SessionError(old.session.session_id, "INTERNAL", "late"))
    assert old.replies == new.replies == []
    assert worker.num_sessions == 1


async def test_a_session_that_failed_is_over_and_not_closed_again(worker: FakeWorker) -> None:
    heard = Heard(worker)
    error = SessionError(heard.session.session_id, "INTERNAL", "boom")
    worker.link.reply(error)
    worker.link.reply(error)
    assert heard.replies == [(error, 5)]
    assert worker.num_sessions == 0
    heard.session.close()
    assert worker.link.take() == []


async def test_a_reply_that_its_session_cannot_take_ends_that_session_and_no_other(
    worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours in one session is told to it; left alone it would wait for ever."""

    def cannot(reply: Any, num_bytes: int) -> None:
        raise ZeroDivisionError("a bug of ours")

    losses: list[PacelineError] = []
    broken = worker.open_session(cannot, losses.append, num_tokens=8)
    sound = Heard(worker)
    worker.link.reply(Credit(broken.session_id, 1))
    (error,) = losses
    assert type(error) is PacelineError, "no other worker would do better"
    assert "a reply could not be handled: unexpected ZeroDivisionError" in str(error)
    assert "a bug of ours" not in str(error)
    assert "a reply of verifier verifier:1 could not be handled" in caplog.text
    assert worker.link.take() == [CloseSession(broken.session_id)], "the worker frees it"
    worker.link.reply(Credit(broken.session_id, 2))
    worker.link.reply(Credit(sound.session.session_id, 3))
    assert len(losses) == 1
    assert len(sound.replies) == 1
    assert worker.num_sessions == 1


async def test_a_session_that_cannot_take_its_loss_keeps_it_from_no_other(
    worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot(error: PacelineError) -> None:
        raise ZeroDivisionError("a bug of ours")

    losses: list[PacelineError] = []
    changes: list[bool] = []
    worker.open_session(lambda *_: None, cannot, num_tokens=8)
    worker.open_session(lambda *_: None, losses.append, num_tokens=8)
    worker.on_change = lambda: changes.append(worker.is_connected)
    worker.lose(*[UnavailableError("down")] * 9)
    assert [type(error) for error in losses] == [UnavailableError]
    assert changes == [False], "who routes by it hears it too"
    assert "a bug of ours" in caplog.text


async def test_a_worker_is_idle_when_its_last_session_is_gone_however_it_went(
    worker: FakeWorker,
) -> None:
    await asyncio.wait_for(worker.idle(), 10)
    first, second = Heard(worker), Heard(worker)
    idle = asyncio.create_task(worker.idle())
    first.session.close()
    await rest()
    assert not idle.done()
    worker.link.reply(SessionError(second.session.session_id, "INTERNAL", "boom"))
    await asyncio.wait_for(idle, 10)
    Heard(worker)
    idle = asyncio.create_task(worker.idle())
    worker.lose()
    await asyncio.wait_for(idle, 10)


async def test_load_and_room_are_ours_now_and_the_others_as_last_said(worker: FakeWorker) -> None:
    first = worker.open_session(lambda *_: None, lambda _: None, num_tokens=40)
    worker.client.info = replace(
        worker.client.info,
        live_sessions=3,
        kv_page_size=16,
        kv_pages_total=10,
        kv_pages_reserved=5,
    )
    assert (worker.load, worker.room_tokens) == (1, float("inf"))
    await worker.refresh()
    assert (worker.load, worker.room_tokens) == (3, 160 - 40 - 40)
    worker.open_session(lambda *_: None, lambda _: None, num_tokens=30)
    assert (worker.load, worker.room_tokens) == (4, 50)
    first.close()
    assert (worker.load, worker.room_tokens) == (3, 90)
    worker.link.end(None)
    assert worker.load == 2


# --- loss -----------------------------------------------------------------------------------------


async def test_a_lost_link_tells_each_session_once_and_comes_back(delays: list[float]) -> None:
    """H01, H02: nobody waits for a reply that cannot come."""
    worker = await FakeWorker().start()
    changes: list[bool] = []
    worker.on_change = lambda: changes.append(worker.is_connected)
    sessions = [Heard(worker), Heard(worker)]
    closed = Heard(worker)
    closed.session.close()
    worker.lose(DOWN, DOWN)
    for heard in sessions:
        (error,) = heard.losses
        assert isinstance(error, UnavailableError)
        assert "verifier verifier:1 is lost: the process is gone" in str(error)
    assert closed.losses == []
    assert (worker.num_sessions, worker.is_connected) == (0, False)
    with pytest.raises(UnavailableError, match="the process is gone"):
        Heard(worker)
    await worker.is_back()
    assert changes == [False, True]
    assert worker.problem == ""
    assert [len(heard.losses) for heard in sessions] == [1, 1]
    again = Heard(worker)
    assert again.session.session_id > closed.session.session_id, "ids go on over links"
    assert len(worker.client.links) == 2
    await worker.close()


async def test_reconnecting_backs_off(delays: list[float]) -> None:
    worker = await FakeWorker().start()
    worker.lose(*[DOWN] * 6)
    await worker.is_back()
    tries = [delay for delay in delays if delay in (0.2, 0.4, 0.8, 1.6, 2.0)]
    assert tries[:5] == [0.2, 0.4, 0.8, 1.6, 2.0]
    await worker.close()


async def test_a_link_that_breaks_again_and_again_is_not_reopened_without_a_pause(
    delays: list[float],
) -> None:
    worker = await FakeWorker().start()
    await rest()
    for _ in range(6):
        worker.lose()
        await worker.is_back()
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    await worker.close()


async def test_a_worker_that_comes_back_as_another_is_refused_until_it_is_right(
    delays: list[float],
) -> None:
    """H03, C02: what it serves is checked on every connection."""
    worker = await FakeWorker().start()
    refusals = [VocabularyMismatchError("another model")] * 3

    async def check(info: Any) -> None:
        assert not worker.is_connected
        if refusals:
            raise refusals.pop()

    worker.check = check
    worker.lose()
    await worker.is_back()
    assert worker.is_connected
    assert worker.client.num_tries == 1 + 4
    await worker.close()


async def test_an_unexpected_fault_while_reconnecting_does_not_end_reconnecting(
    delays: list[float],
) -> None:
    """H02: nothing has to be restarted by hand."""
    worker = await FakeWorker().start()
    worker.lose(ZeroDivisionError("a bug of ours"))
    await worker.is_back()
    assert worker.is_connected
    await worker.close()


async def test_a_worker_not_reached_at_the_start_is_reached_in_the_background(
    delays: list[float],
) -> None:
    worker = FakeWorker("drafter", DOWN, DOWN)
    worker.keep_connected()
    worker.keep_connected()
    await worker.is_back()
    assert worker.client.num_tries == 3
    assert delays == [0.1, 0.2]
    await worker.close()


async def test_closing_ends_link_and_channel_and_is_final(delays: list[float]) -> None:
    worker = await FakeWorker().start()
    heard = Heard(worker)
    await worker.close()
    assert [type(error) for error in heard.losses] == [UnavailableError]
    assert worker.client.num_closes == 1
    await rest()
    assert not worker.is_connected
    assert worker.client.num_tries == 1
    assert worker.send(CloseSession(1)) == 0
