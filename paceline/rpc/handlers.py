"""What surrounds every servicer method: errors become statuses, and calls in flight are counted.

Servicer methods raise `PacelineError`s and know nothing of this.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from paceline.errors import PacelineError, UnavailableError, describe_error

_LOGGER = logging.getLogger(__name__)

HEALTH_PREFIX = "/grpc.health.v1.Health/"

Around = Callable[[Any], AbstractAsyncContextManager[None, Any]]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


def wrap_handler(handler: Any, around: Around) -> Any:
    """The same handler, each call of it run inside `around(context)`.

    Async generators are driven here rather than by grpc, which forgets them when a call ends
    early: their `finally` would run whenever the garbage collector came by.
    """
    if handler.response_streaming:
        streaming = handler.stream_stream or handler.unary_stream

        async def stream(request: Any, context: Any) -> None:
            async with around(context):
                if inspect.isasyncgenfunction(streaming):
                    async with aclosing(streaming(request, context)) as responses:
                        async for response in responses:
                            await context.write(response)
                else:
                    await streaming(request, context)

        factory = (
            grpc.stream_stream_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        return factory(stream, handler.request_deserializer, handler.response_serializer)

    answering = handler.stream_unary or handler.unary_unary

    async def answer(request: Any, context: Any) -> Any:
        async with around(context):
            return await answering(request, context)

    factory = (
        grpc.stream_unary_rpc_method_handler
        if handler.request_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    return factory(answer, handler.request_deserializer, handler.response_serializer)


class StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns what a handler raises into a status.

    A `PacelineError` gives its own code and message, any other exception INTERNAL and a logged
    traceback. A cancellation gives ABORTED: grpc itself would swallow one that did not come from
    the client and leave the client waiting; one that did come from the client hears nothing.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        return None if handler is None else wrap_handler(handler, _translated)


@asynccontextmanager
async def _translated(context: Any) -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except asyncio.CancelledError:
        await context.abort(grpc.StatusCode.ABORTED, "the server cancelled this call")
    except grpc.aio.InternalError as error:
        # A write failed: the client left, and grpc's own cancellation of this call is on its way.
        # Left alone, grpc would log the traceback of each such write as an error.
        _LOGGER.debug("the client left during a write: %s", error)
        raise asyncio.CancelledError from error
    except Exception as error:
        if isinstance(error, grpc.aio.BaseError) and not isinstance(error, grpc.aio.UsageError):
            raise  # the server has stopped: no one is left to tell
        if not isinstance(error, PacelineError):
            _LOGGER.exception("unexpected %s in a servicer", type(error).__name__)
        code, message = describe_error(error)
        await context.abort(grpc.StatusCode[code], message)


class InFlightInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Counts the calls in flight, and refuses new ones once a stop has begun.

    Health checks are exempt: they say NOT_SERVING until the end.
    """

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusing = False

    def refuse_new(self) -> None:
        """Answer UNAVAILABLE to every call from now on."""
        self._refusing = True

    async def wait_idle(self) -> None:
        """Return once no call is in flight and each has been sent its status."""
        await self._idle.wait()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or str(handler_call_details.method).startswith(HEALTH_PREFIX):
            return handler
        return wrap_handler(handler, self._counted)

    @asynccontextmanager
    async def _counted(self, context: Any) -> AsyncIterator[None]:
        if self._refusing:
            raise UnavailableError("this server is shutting down")
        self._count += 1
        self._idle.clear()
        # A handler that returns has not yet been sent its status; grpc calls back when it has.
        context.add_done_callback(self._uncount)
        yield

    def _uncount(self, _context: Any) -> None:
        self._count -= 1
        if self._count == 0:
            self._idle.set()
