"""Spans that a worker sends for sessions that are closed already."""

from __future__ import annotations

from worker_fakes import FakeWorker

from paceline.types import SessionError, SessionSpans

IGNORED = (lambda reply, num_bytes: None, lambda error: None)


async def test_spans_reach_their_listener_after_the_session_was_closed() -> None:
    worker = await FakeWorker().start()
    heard: list[SessionSpans] = []
    session = worker.open_session(*IGNORED)
    session.expect_spans(heard.append)
    session.close()
    worker.link.reply(SessionSpans(session.session_id, (), is_last=False))
    worker.link.reply(SessionSpans(session.session_id, (), is_last=True))
    worker.link.reply(SessionSpans(session.session_id, (), is_last=True))
    assert [spans.is_last for spans in heard] == [False, True]
    await worker.close()


async def test_an_error_and_a_lost_link_are_the_last_that_is_heard() -> None:
    worker = await FakeWorker().start()
    for end in ("error", "link"):
        heard: list[SessionSpans] = []
        session = worker.open_session(*IGNORED)
        session.expect_spans(heard.append)
        if end == "error":
            worker.link.reply(SessionError(session.session_id, "UNAVAILABLE", "refused"))
        else:
            worker.lose()
        assert [spans.is_last for spans in heard] == [True], end
    await worker.is_back()
    await worker.close()


async def test_who_stops_listening_hears_nothing_and_nothing_is_kept() -> None:
    worker = await FakeWorker().start()
    heard: list[SessionSpans] = []
    session = worker.open_session(*IGNORED)
    stop = session.expect_spans(heard.append)
    stop()
    stop()
    worker.link.reply(SessionSpans(session.session_id, (), is_last=True))
    assert heard == []
    assert worker._span_listeners == {}
    await worker.close()
