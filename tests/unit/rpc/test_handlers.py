"""What a servicer raises becomes a status, in every kind of method."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from rpc_fakes import LIMITS, eventually

from paceline.errors import InvalidArgumentError, ResourceExhaustedError
from paceline.rpc.channel import open_channel
from paceline.rpc.credentials import NO_CREDENTIALS
from paceline.rpc.server import ServerShell

Behavior = Callable[[Any], Any]
KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]


@asynccontextmanager
async def serving(kind: str, handler: Any) -> AsyncIterator[Any]:
    """A method of this kind, without messages' types, and the call that reaches it."""
    factory = getattr(grpc, f"{kind}_rpc_method_handler")
    generic = grpc.method_handlers_generic_handler("test.Test", {"Do": factory(handler)})
    shell = ServerShell(
        "127.0.0.1:0",
        {"test.Test": lambda server: server.add_generic_rpc_handlers((generic,))},
        credentials=NO_CREDENTIALS,
        limits=LIMITS,
    )
    await shell.start()
    channel = open_channel(shell.address, NO_CREDENTIALS, LIMITS)
    try:
        yield getattr(channel, kind)("/test.Test/Do")
    finally:
        await channel.close(None)
        await shell.stop(0.0)


async def outcome(kind: str, method: Any) -> Any:
    """The response or the responses; raises the call's error."""
    request = b"x" if kind.startswith("unary") else iter([b"x"])
    call = method(request, timeout=10)
    if kind.endswith("stream"):
        return [response async for response in call]
    return await call


def raising(kind: str, error: BaseException) -> Any:
    if kind.endswith("stream"):

        async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
            yield b"first"
            raise error

        return stream

    async def answer(request: Any, context: Any) -> bytes:
        raise error

    return answer


@pytest.mark.parametrize("kind", KINDS)
async def test_our_own_errors_keep_code_and_message(kind: str) -> None:
    error = InvalidArgumentError("top_p", "must be at most 1")
    async with serving(kind, raising(kind, error)) as method:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await outcome(kind, method)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "top_p: must be at most 1"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unexpected_exception_is_internal_and_logged_with_its_traceback(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(kind, raising(kind, KeyError("secret"))) as method:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await outcome(kind, method)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (caught.value.details() or "")
    assert "Traceback" in caplog.text
    assert "KeyError: 'secret'" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancellation_that_is_not_the_clients_gives_a_status_at_once(kind: str) -> None:
    """G02: grpc itself would send no status at all."""
    async with serving(kind, raising(kind, asyncio.CancelledError())) as method:
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await outcome(kind, method)
        assert time.monotonic() - began < 1
    assert caught.value.code() is grpc.StatusCode.ABORTED


@pytest.mark.parametrize("kind", KINDS)
async def test_an_abort_of_the_servicers_own_is_left_alone(kind: str) -> None:
    async def answer(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    async with serving(kind, answer) as method:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await outcome(kind, method)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "no such thing"


@pytest.mark.parametrize("kind", KINDS)
async def test_good_answers_pass(kind: str) -> None:
    if kind.endswith("stream"):

        async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"

        async with serving(kind, stream) as method:
            assert await outcome(kind, method) == [b"a", b"b"]
    else:

        async def answer(request: Any, context: Any) -> bytes:
            return b"a"

        async with serving(kind, answer) as method:
            assert await outcome(kind, method) == b"a"


@pytest.mark.parametrize("wait_in", ["the generator", "a write"])
async def test_a_client_that_cancels_ends_the_generator_at_once(
    wait_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    """G01: its `finally` runs now, not when the garbage collector comes by."""
    ended = asyncio.Event()

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            while wait_in == "a write":
                yield b"x" * 1_000_000
            await asyncio.Event().wait()
        finally:
            ended.set()

    # Someone holds on to the generator, so that no garbage collector ends it for us.
    hooks = sys.get_asyncgen_hooks()
    held: list[Any] = []

    def hold(generator: Any) -> None:
        held.append(generator)
        hooks.firstiter(generator)

    sys.set_asyncgen_hooks(firstiter=hold)
    async with serving("unary_stream", stream) as method:
        call = method(b"x")
        assert await call.read() == b"first"
        assert not ended.is_set()
        call.cancel()
        await asyncio.wait_for(ended.wait(), 1)
    assert caplog.text == ""


async def test_a_deadline_ends_the_handler() -> None:
    ended = asyncio.Event()

    async def answer(request: Any, context: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async with serving("unary_unary", answer) as method:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"x", timeout=0.1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(ended.wait(), 1)


async def test_a_failed_call_does_not_disturb_the_next_one() -> None:
    failures = [ResourceExhaustedError("no room"), ValueError("bug"), asyncio.CancelledError()]

    async def answer(request: Any, context: Any) -> bytes:
        if failures:
            raise failures.pop()
        return b"fine"

    async with serving("unary_unary", answer) as method:
        codes = []
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"x")
            codes.append(caught.value.code().name)
        assert codes == ["ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED"]
        assert await method(b"x") == b"fine"


async def test_two_hundred_cancelled_streams_leave_no_task_behind() -> None:
    """G01."""
    running = 0

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        nonlocal running
        running += 1
        try:
            for _ in range(500):
                yield b"chunk"
                await asyncio.sleep(0.001)
        finally:
            running -= 1

    async with serving("unary_stream", stream) as method:
        before = len(asyncio.all_tasks())
        for _ in range(200):
            call = method(b"x")
            for _ in range(3):
                await call.read()
            call.cancel()
        await eventually(lambda: running == 0, 1)
        await eventually(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_stop_lets_the_last_answer_out() -> None:
    """The handler has returned, its answer of 30 MB is still on its way."""
    large = b"x" * 30_000_000
    returning = asyncio.Event()

    async def answer(request: Any, context: Any) -> bytes:
        returning.set()
        return large

    factory = grpc.unary_unary_rpc_method_handler(answer)
    generic = grpc.method_handlers_generic_handler("test.Test", {"Do": factory})
    shell = ServerShell(
        "127.0.0.1:0",
        {"test.Test": lambda server: server.add_generic_rpc_handlers((generic,))},
        credentials=NO_CREDENTIALS,
        limits=LIMITS,
    )
    await shell.start()
    async with open_channel(shell.address, NO_CREDENTIALS, LIMITS) as channel:
        call = asyncio.ensure_future(_call(channel))
        await returning.wait()
        await shell.stop(grace_s=30)
        assert len(await call) == len(large)


async def _call(channel: grpc.aio.Channel) -> bytes:
    method: Any = channel.unary_unary("/test.Test/Do")
    response: bytes = await method(b"x")
    return response
