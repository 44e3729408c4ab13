"""Links over real gRPC: coalescing, isolation of sessions, and every way in which they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from rpc_fakes import (
    LIMITS,
    Peer,
    Running,
    advance,
    block,
    connected,
    eventually,
    open_session,
    running_drafter,
)

from paceline.config import GrpcConfig
from paceline.errors import (
    PacelineError,
    ResourceExhaustedError,
    SessionLostError,
    UnavailableError,
)
from paceline.rpc.link import ACCEPTED_METADATA
from paceline.sampling.draft_probs import DraftProbs
from paceline.types import CloseSession, OpenSession, SessionError
from protos import drafter_pb2, drafter_pb2_grpc

HERE = Path(__file__).parent


@pytest.fixture
async def drafter() -> AsyncIterator[Running]:
    async with running_drafter() as running:
        yield running


@pytest.fixture
async def stub(drafter: Running) -> AsyncIterator[drafter_pb2_grpc.DrafterStub]:
    async with connected(drafter.shell.address) as connected_stub:
        yield connected_stub


async def test_events_reach_the_engine_in_order_and_replies_come_back(
    drafter: Running, stub: Any
) -> None:
    peer = Peer(stub)
    await peer.link.start(5)
    sent = [open_session(1), advance(1, 5), advance(1, 6, 7)]
    sizes = [peer.link.send(event) for event in sent]
    replies = await peer.heard(3)
    assert replies == [block(1), block(1, (5,)), block(1, (6, 7))]
    assert drafter.engine.handles[0].events == sent
    assert all(size > 0 for size in [*sizes, *peer.num_bytes])
    await peer.link.close()
    assert peer.reasons == [None]


async def test_what_accumulates_during_a_write_travels_as_one_message(
    drafter: Running, stub: Any
) -> None:
    """64 sessions whose engine answers at once need few messages in either direction."""
    batches: list[int] = []
    call = stub.Draft()

    class Counting:
        """The call, with its writes counted."""

        def __getattr__(self, name: str) -> Any:
            return getattr(call, name)

        def __aiter__(self) -> Any:
            return call.__aiter__()

        async def write(self, message: drafter_pb2.DraftRequest) -> None:
            batches.append(len(message.events))
            await call.write(message)

    class CountingStub:
        def Draft(self) -> Any:  # noqa: N802
            return Counting()

    peer = Peer(CountingStub())
    await peer.link.start(5)
    for session_id in range(64):
        peer.link.send(open_session(session_id))
    await peer.heard(64)
    for round_number in range(10):
        for session_id in range(64):
            peer.link.send(advance(session_id, round_number))
    replies = await peer.heard(11 * 64)
    assert len(replies) == 11 * 64
    assert sum(batches) == 11 * 64
    assert len(batches) <= 4
    await peer.link.close()


async def test_a_malformed_event_fails_its_session_and_no_other(
    drafter: Running, stub: Any
) -> None:
    call = stub.Draft()
    good = drafter_pb2.DrafterEvent(session_id=1)
    good.advance.token_ids.append(4)
    await call.write(
        drafter_pb2.DraftRequest(events=[drafter_pb2.DrafterEvent(session_id=2), good])
    )
    received: dict[int, Any] = {}
    while len(received) < 2:
        for reply in (await call.read()).replies:
            received[reply.session_id] = reply
    assert received[1].block.token_ids == [4]
    assert received[2].error.code == "INVALID_ARGUMENT"
    assert received[2].error.message.startswith("event: ")
    # The engine frees whatever it may hold of that session.
    assert drafter.engine.handles[0].events[0] == CloseSession(2)
    call.cancel()


async def test_a_reply_that_cannot_be_encoded_fails_its_session_and_no_other(
    drafter: Running, stub: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: Any = block(1)
    object.__setattr__(wrong, "state", None)
    drafter.engine.reply = lambda event: wrong if event.session_id == 1 else block(2)
    peer = Peer(stub)
    await peer.link.start(5)
    peer.link.send(open_session(1))
    peer.link.send(open_session(2))
    error, other = sorted(await peer.heard(2), key=lambda reply: reply.session_id)
    assert (error.session_id, error.code) == (1, "INTERNAL")
    assert other == block(2)
    assert "cannot encode a DraftBlock" in caplog.text
    handle = drafter.engine.handles[0]
    await eventually(lambda: CloseSession(1) in handle.events)
    await peer.link.close()


async def test_a_malformed_reply_fails_its_session_and_frees_it_on_the_worker(
    drafter: Running, stub: Any
) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def answer_nonsense(context: Any) -> None:
        await context.send_initial_metadata(ACCEPTED_METADATA)
        reply = drafter_pb2.DrafterReply(session_id=1)
        await context.write(drafter_pb2.DraftResponse(replies=[reply]))
        heard.put_nowait(await context.read())
        await context.abort(grpc.StatusCode.UNAVAILABLE, "done")

    drafter.servicer.fail = answer_nonsense
    peer = Peer(stub)
    await peer.link.start(5)
    (error,) = await peer.heard(1)
    assert (error.session_id, error.code) == (1, "INTERNAL")
    (event,) = (await heard.get()).events
    assert (event.session_id, event.WhichOneof("event")) == (1, "close")
    await peer.ended()


async def test_a_failing_listener_does_not_end_the_link(
    drafter: Running, stub: Any, caplog: pytest.LogCaptureFixture
) -> None:
    peer = Peer(stub)
    heard = peer.link._on_reply

    def listen(reply: Any, num_bytes: int) -> None:
        heard(reply, num_bytes)
        if reply.session_id == 1:
            raise KeyError("one session's trouble")

    peer.link._on_reply = listen
    await peer.link.start(5)
    peer.link.send(advance(1))
    peer.link.send(advance(2))
    assert len(await peer.heard(2)) == 2
    assert "a reply could not be handled" in caplog.text
    await peer.link.close()


async def test_a_dense_block_of_a_large_vocabulary_travels(drafter: Running, stub: Any) -> None:
    """G05: 151,936 ids, float32, k = 6 (3.6 MB) and k = 7 (4.25 MB), towards the orchestrator;
    a batch of all of them, larger than a message, is split.
    """
    blocks = {
        1: block(1, range(6), DraftProbs(None, torch.rand(6, 151_936))),
        2: block(2, range(7), DraftProbs(None, torch.rand(7, 151_936))),
    }
    drafter.engine.reply = lambda event: blocks[1 if event.session_id % 2 else 2]
    peer = Peer(stub)
    await peer.link.start(5)
    for session_id in range(20):
        peer.link.send(advance(session_id))
    received = await peer.heard(20)
    for reply in received:
        assert torch.equal(reply.draft_probs.probs, blocks[reply.session_id].draft_probs.probs)
    assert max(peer.num_bytes) > 4_250_000
    await peer.link.close()


async def test_a_block_too_large_for_a_message_fails_its_session_and_the_stream_survives() -> None:
    """G05: k too big for the limit gives a clear error, in either direction."""
    limits = GrpcConfig(max_message_bytes=4 * 1024 * 1024)
    large = block(1, range(7), DraftProbs(None, torch.rand(7, 151_936)))
    async with (
        running_drafter(limits=limits) as drafter,
        connected(drafter.shell.address, limits=limits) as stub,
    ):
        drafter.engine.reply = lambda event: large if event.session_id == 1 else block(2)
        peer = Peer(stub, limits)
        await peer.link.start(5)
        peer.link.send(open_session(1))
        (error,) = await peer.heard(1)
        assert (error.session_id, error.code) == (1, "RESOURCE_EXHAUSTED")
        assert "grpc.max_message_bytes" in error.message
        assert CloseSession(1) in drafter.engine.handles[0].events
        with pytest.raises(ResourceExhaustedError, match="max_message_bytes"):
            peer.link.send(advance(1, *[2**31 - 1] * 1_000_000))
        peer.link.send(open_session(2))
        assert (await peer.heard(2))[1] == block(2)
        await peer.link.close()


async def test_a_client_that_closes_frees_its_sessions_at_once(drafter: Running, stub: Any) -> None:
    """G01: the handler ends, the engine's handle is closed once."""
    peer = Peer(stub)
    await peer.link.start(5)
    peer.link.send(open_session(1))
    await peer.heard(1)
    await peer.link.close()
    await peer.link.close()
    assert peer.reasons == [None]
    assert peer.link.send(open_session(2)) == 0
    handle = drafter.engine.handles[0]
    await eventually(lambda: handle.num_closes == 1)
    await eventually(lambda: all(task.done() for task in drafter.servicer.tasks))
    assert handle.num_closes == 1


async def test_a_half_close_ends_the_link(drafter: Running, stub: Any) -> None:
    call = stub.Draft()
    await call.done_writing()
    assert [message async for message in call] == []
    assert drafter.engine.handles[0].num_closes == 1


async def test_two_hundred_links_leave_no_task_behind(drafter: Running, stub: Any) -> None:
    """G01: opened, used, and ended by turns through close, cancel and half-close."""
    await (warm := Peer(stub)).link.start(5)
    await warm.link.close()
    await eventually(lambda: drafter.engine.handles[0].num_closes == 1)
    before = len(asyncio.all_tasks())
    for number in range(200):
        if number % 3 == 0:
            call = stub.Draft()
            await call.done_writing()
            assert [message async for message in call] == []
            continue
        peer = Peer(stub)
        await peer.link.start(5)
        peer.link.send(open_session(number))
        if number % 3 == 1:
            await peer.heard(1)
        await peer.link.close()
        assert peer.reasons == [None]
    handles = drafter.engine.handles
    await eventually(lambda: all(handle.num_closes == 1 for handle in handles))
    assert len(handles) == 201
    assert not any(handle.live for handle in handles)
    gc.collect()
    await eventually(lambda: len(asyncio.all_tasks()) <= before)


@pytest.mark.parametrize("where", ["the call's task", "a task inside of it"])
async def test_a_cancellation_on_the_server_gives_the_client_a_status_at_once(
    drafter: Running, stub: Any, where: str
) -> None:
    """G02: grpc would swallow it and leave the client waiting for ever."""
    peer = Peer(stub)
    await peer.link.start(5)
    peer.link.send(open_session(1))
    await peer.heard(1)
    if where == "the call's task":
        drafter.servicer.tasks[0].cancel()
    else:
        names = ("_ServedLink._read", "_ServedLink._write")
        inner = [t for t in asyncio.all_tasks() if t.get_coro().__qualname__ in names]
        assert len(inner) == 2
        inner[0].cancel()
    began = time.monotonic()
    assert isinstance(await peer.ended(), SessionLostError)
    assert time.monotonic() - began < 1
    assert drafter.engine.handles[0].num_closes == 1


async def test_an_engine_that_takes_no_links_says_why(drafter: Running, stub: Any) -> None:
    def refuse(deliver: Any) -> Any:
        raise UnavailableError("the engine has failed")

    drafter.engine.attach = refuse  # type: ignore[method-assign]
    peer = Peer(stub)
    with pytest.raises(UnavailableError, match="the engine has failed"):
        await peer.link.start(5)
    assert peer.reasons == []


async def test_a_link_that_fails_on_the_worker_closes_with_the_reason(
    drafter: Running, stub: Any, caplog: pytest.LogCaptureFixture
) -> None:
    peer = Peer(stub)
    await peer.link.start(5)

    def explode(events: Any) -> None:
        raise ZeroDivisionError("secret")

    drafter.engine.handles[0].post = explode  # type: ignore[method-assign]
    peer.link.send(open_session(1))
    reason = await peer.ended()
    assert type(reason) is PacelineError
    assert "secret" not in str(reason)
    assert "ZeroDivisionError: secret" in caplog.text
    assert drafter.engine.handles[0].num_closes == 1


async def test_replies_of_an_ended_link_are_dropped(drafter: Running, stub: Any) -> None:
    peer = Peer(stub)
    await peer.link.start(5)
    await peer.link.close()
    handle = drafter.engine.handles[0]
    await eventually(lambda: handle.num_closes == 1)
    handle.deliver([block(1)])
    await asyncio.sleep(0)
    assert peer.replies == []


async def test_a_closed_port_is_unavailable() -> None:
    async with connected("127.0.0.1:1") as stub:
        peer = Peer(stub)
        with pytest.raises(UnavailableError):
            await peer.link.start(5)
        assert peer.reasons == []
        assert peer.link.send(open_session(1)) == 0
        await peer.link.close()
        assert peer.reasons == []


async def test_a_worker_that_never_answers_is_given_up_after_the_timeout() -> None:
    # The kernel takes the connection; no one ever reads from it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with connected(f"127.0.0.1:{silent.getsockname()[1]}") as stub:
            with pytest.raises(UnavailableError, match=r"within 0\.3 s"):
                await Peer(stub).link.start(0.3)


async def start_killable_server() -> tuple[asyncio.subprocess.Process, str]:
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[2]}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "killable_server.py"),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    assert address
    return process, address


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_dies_or_hangs_is_unavailable_within_seconds(
    number: signal.Signals,
) -> None:
    """H01, H02: killed, its connection is reset; stopped, it fails to answer keepalive pings."""
    process, address = await start_killable_server()
    try:
        async with connected(address) as stub:
            peer = Peer(stub)
            await peer.link.start(10)
            peer.link.send(open_session(1))
            await peer.heard(1)
            began = time.monotonic()
            process.send_signal(number)
            assert isinstance(await peer.ended(), UnavailableError)
            bound = LIMITS.keepalive_s + LIMITS.keepalive_timeout_s + 2
            assert time.monotonic() - began < (2 if number is signal.SIGKILL else bound)
            assert peer.reasons[1:] == []
            await peer.link.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


async def test_draining_refuses_new_sessions_and_ends_the_link_with_the_last_one(
    drafter: Running, stub: Any
) -> None:
    peer = Peer(stub)
    await peer.link.start(5)
    peer.link.send(open_session(1))
    await peer.heard(1)
    stopping = asyncio.create_task(drafter.shell.stop(grace_s=30))
    await drafter.shell.draining.wait()
    peer.link.send(open_session(2))
    refusal = (await peer.heard(2))[1]
    assert (refusal.session_id, refusal.code) == (2, "UNAVAILABLE")
    peer.link.send(advance(1, 9))
    assert (await peer.heard(3))[2] == block(1, (9,))
    assert not stopping.done()
    peer.link.send(CloseSession(1))
    assert isinstance(await peer.ended(), UnavailableError)
    await asyncio.wait_for(stopping, 2)
    events = drafter.engine.handles[0].events
    assert [e.session_id for e in events if isinstance(e, OpenSession)] == [1]


async def test_draining_an_idle_link_takes_no_time(drafter: Running, stub: Any) -> None:
    peer = Peer(stub)
    await peer.link.start(5)
    peer.link.send(open_session(1))
    await peer.heard(1)
    drafter.engine.reply = lambda event: SessionError(event.session_id, "INTERNAL", "failed")
    peer.link.send(advance(1))
    await peer.heard(2)
    await asyncio.wait_for(drafter.shell.stop(grace_s=30), 2)
    assert isinstance(await peer.ended(), UnavailableError)


async def test_a_stop_without_grace_ends_live_links(drafter: Running, stub: Any) -> None:
    peer = Peer(stub)
    await peer.link.start(5)
    peer.link.send(open_session(1))
    await peer.heard(1)
    await asyncio.wait_for(drafter.shell.stop(grace_s=0.1), 3)
    assert await peer.ended() is not None
    await eventually(lambda: drafter.engine.handles[0].num_closes == 1)
