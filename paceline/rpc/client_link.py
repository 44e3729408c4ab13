"""The orchestrator's end of a link: sends events of many sessions, hears replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from paceline.errors import CancelledError, PacelineError, UnavailableError
from paceline.rpc.delay import DelayLine
from paceline.rpc.link import ACCEPTED_METADATA
from paceline.rpc.outbox import Outbox
from paceline.rpc.status import error_from_code, error_from_rpc
from paceline.rpc.wire import Entry, LinkWire
from paceline.types import CloseSession, SessionError
from paceline.waiting import within

_LOGGER = logging.getLogger(__name__)

EventT = TypeVar("EventT")
ReplyT = TypeVar("ReplyT")


class ClientLink(Generic[EventT, ReplyT]):
    """One stream to one worker; used on one event loop.

    `method` is the stub's, e.g. `stub.Draft`. `on_reply` hears each reply and its payload bytes;
    a malformed one arrives as a `SessionError`. `on_closed` hears exactly once, after a
    successful `start`, why the link ended: None when `close` was called. Neither may block.
    `delay_s` emulates a slower network: everything takes so much longer, each way.
    """

    def __init__(
        self,
        method: Callable[[], Any],
        *,
        wire: LinkWire[EventT, ReplyT],
        on_reply: Callable[[ReplyT | SessionError, int], None],
        on_closed: Callable[[PacelineError | None], None],
        max_message_bytes: int,
        delay_s: float = 0.0,
    ) -> None:
        self._method = method
        self._wire = wire
        self._on_reply = on_reply
        self._on_closed = on_closed
        self._max_bytes = max_message_bytes
        self._outbox: Outbox[Entry] = Outbox()
        self._put: Callable[[list[Entry]], None] = self._outbox.put
        self._arrive: Callable[[list[tuple[ReplyT | SessionError, int]]], None] = self._deliver
        self._delays: list[DelayLine[Any]] = []
        if delay_s:
            sending, receiving = DelayLine(delay_s, self._put), DelayLine(delay_s, self._arrive)
            self._delays = [sending, receiving]
            self._put, self._arrive = sending.put, receiving.put
        self._call: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._open = False
        self._closing = False
        self._failure: PacelineError | None = None

    async def start(self, timeout_s: float) -> None:
        """Open the stream and wait until the worker took it.

        Raises `UnavailableError`, `UnauthenticatedError` or another `PacelineError` when it did
        not; `on_closed` is then never called.
        """
        call = self._method()
        try:
            await within(_wait_accepted(call), timeout_s)
        except asyncio.TimeoutError as error:
            call.cancel()
            raise UnavailableError(f"the worker did not answer within {timeout_s:g} s") from error
        except BaseException:
            call.cancel()
            raise
        self._call = call
        self._open = True
        for line in self._delays:
            line.start()
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def send(self, event: EventT | CloseSession) -> int:
        """Queue an event and return its payload bytes; what queues up travels as one message.

        Once the link has ended the event is dropped and 0 returned: `on_closed` told the owner.
        Raises `ResourceExhaustedError` when the event alone is larger than a message may be.
        """
        if not self._open:
            return 0
        events: Any = self._wire.events
        entry: Entry = events.entry(event, max_bytes=self._max_bytes)
        self._put([entry])
        return entry.size

    async def close(self) -> None:
        """End the link, which frees all of its sessions on the worker. Idempotent."""
        self._closing = True
        if self._call is not None:
            self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while entries := await self._outbox.take():
                for batch in self._wire.events.pack(entries, max_bytes=self._max_bytes):
                    await self._call.write(batch)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended; the reader learns why
        except asyncio.CancelledError:
            self._call.cancel()  # a link on which nobody writes would look alive
            raise
        except Exception as error:
            _LOGGER.exception("cannot write to a link")
            self._failure = PacelineError(f"writing to the link failed: {error}")
            self._call.cancel()

    async def _read(self) -> None:
        reason: PacelineError | None = CancelledError("the link was cancelled")
        try:
            async for batch in self._call:
                self._arrive(self._wire.replies.unpack(batch))
            reason = UnavailableError("the worker ended the link")
        except grpc.aio.AioRpcError as error:
            reason = error_from_rpc(error)
        except asyncio.CancelledError:
            # Either the call was cancelled by us, or this task at the end of the process.
            reason = self._failure or reason
        except Exception as error:
            _LOGGER.exception("cannot read from a link")
            reason = PacelineError(f"reading from the link failed: {error}")
        finally:
            self._open = False
            for line in self._delays:
                line.close()
            self._outbox.close()
            self._call.cancel()
            self._on_closed(None if self._closing else reason)

    def _deliver(self, replies: list[tuple[ReplyT | SessionError, int]]) -> None:
        for reply, num_bytes in replies:
            self._deliver_one(reply, num_bytes)

    def _deliver_one(self, reply: ReplyT | SessionError, num_bytes: int) -> None:
        if self._closing:
            return
        if isinstance(reply, SessionError) and reply.code == self._wire.replies.malformed_code:
            # The worker may still hold a session whose reply could not be understood.
            self.send(CloseSession(reply.session_id))
        try:
            self._on_reply(reply, num_bytes)
        except Exception:
            # One session's trouble must not end the link of all the others.
            _LOGGER.exception("a reply could not be handled")


async def _wait_accepted(call: Any) -> None:
    """Return once the worker took the link; raise why not."""
    metadata = await call.initial_metadata()
    if any(key == ACCEPTED_METADATA[0][0] for key, _ in metadata):
        return
    code = await call.code()
    if code is grpc.StatusCode.OK:
        raise UnavailableError("the worker ended the link at once")
    raise error_from_code(code.name, await call.details() or "no details given")
