"""The worker's end of a link: many sessions of one orchestrator on one bidirectional stream.

The engine lives on its own thread; this file hops between it and the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from paceline.errors import ResourceExhaustedError, UnavailableError
from paceline.rpc.outbox import Outbox
from paceline.rpc.status import session_error
from paceline.rpc.wire import Entry, LinkWire
from paceline.types import CloseSession, OpenSession, SessionError, SessionId, Verdict

_LOGGER = logging.getLogger(__name__)

EventT = TypeVar("EventT")
ReplyT = TypeVar("ReplyT")
EventT_contra = TypeVar("EventT_contra", contravariant=True)
ReplyT_co = TypeVar("ReplyT_co", covariant=True)

ACCEPTED_METADATA = (("paceline-link", "accepted"),)
"""Sent at once when a worker takes a link, so that the caller need not wait for a first reply."""


class LinkHandle(Protocol[EventT_contra]):
    """An engine's side of one link."""

    def post(self, events: Sequence[EventT_contra]) -> None:
        """Hand over events in order; any thread, never blocks."""

    def close(self) -> None:
        """End the link: all of its sessions are freed. Idempotent."""


class Engine(Protocol[EventT_contra, ReplyT_co]):
    """What a worker computes with."""

    def attach(self, deliver: Callable[[Sequence[ReplyT_co]], None]) -> LinkHandle[EventT_contra]:
        """Begin a link. `deliver` may be called on any thread, also after the handle is closed,
        when it does nothing. Raises a `PacelineError` when the engine takes no more links.
        """
        ...


async def serve_link(
    requests: AsyncIterator[Any],
    context: Any,
    *,
    wire: LinkWire[EventT, ReplyT],
    engine: Engine[EventT, ReplyT],
    max_message_bytes: int,
    draining: asyncio.Event | None = None,
) -> None:
    """Serve one link until it ends: half-closed or cancelled by the caller, or drained.

    However it ends, the engine's handle is closed exactly once and no task remains. A malformed
    event fails its session only, and so does a reply that no message can carry. While
    `draining` is set new sessions are refused, and the link ends once none is live.
    """
    loop = asyncio.get_running_loop()
    outbox: Outbox[ReplyT | SessionError] = Outbox()

    def deliver(replies: Sequence[ReplyT]) -> None:
        try:
            loop.call_soon_threadsafe(outbox.put, replies)
        except RuntimeError:
            # The loop is closed: the process is ending, and no one is left to hear the reply.
            _LOGGER.debug("dropped %d replies of an ended link", len(replies))

    handle = engine.attach(deliver)
    try:
        link = _ServedLink(wire, handle, outbox, max_message_bytes, draining)
        await link.run(requests, context)
    finally:
        handle.close()


class _ServedLink(Generic[EventT, ReplyT]):
    """One link being served."""

    def __init__(
        self,
        wire: LinkWire[EventT, ReplyT],
        handle: LinkHandle[EventT],
        outbox: Outbox[ReplyT | SessionError],
        max_message_bytes: int,
        draining: asyncio.Event | None,
    ) -> None:
        self._wire = wire
        self._handle = handle
        self._outbox = outbox
        self._max_bytes = max_message_bytes
        self._draining = asyncio.Event() if draining is None else draining
        self._live: set[SessionId] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, requests: AsyncIterator[Any], context: Any) -> None:
        await context.send_initial_metadata(ACCEPTED_METADATA)
        parts: list[Coroutine[Any, Any, None]] = [
            self._read(requests),
            self._write(context),
            self._drained(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for batch in requests:
            accepted: list[Any] = []
            for item, _ in self._wire.events.unpack(batch):
                if isinstance(item, SessionError):
                    # The error ends the session, whatever the engine knows of it.
                    self._outbox.put([item])
                    accepted.append(CloseSession(item.session_id))
                elif isinstance(item, OpenSession) and self._draining.is_set():
                    error = UnavailableError("this worker is shutting down")
                    self._outbox.put([session_error(item.session_id, error)])
                else:
                    self._note_event(item)
                    accepted.append(item)
            if accepted:
                self._handle.post(accepted)

    async def _write(self, context: Any) -> None:
        while replies := await self._outbox.take():
            entries = [self._entry(reply) for reply in replies]
            for batch in self._wire.replies.pack(entries, max_bytes=self._max_bytes):
                await context.write(batch)
            for reply in replies:
                if _ends_session(reply):
                    self._forget(reply.session_id)  # type: ignore[union-attr]

    async def _drained(self) -> None:
        await self._draining.wait()
        await self._idle.wait()

    def _entry(self, reply: ReplyT | SessionError) -> Entry:
        """The wire form of a reply, or of the error that takes its place."""
        replies: Any = self._wire.replies
        try:
            entry: Entry = replies.entry(reply, max_bytes=self._max_bytes)
        except Exception as error:
            if not isinstance(error, ResourceExhaustedError):
                _LOGGER.exception("cannot encode a %s", type(reply).__name__)
            session_id: SessionId = reply.session_id  # type: ignore[union-attr]
            closing: Any = CloseSession(session_id)
            self._handle.post([closing])
            self._forget(session_id)
            entry = replies.entry(session_error(session_id, error), max_bytes=self._max_bytes)
        return entry

    def _note_event(self, event: EventT) -> None:
        if isinstance(event, OpenSession):
            self._live.add(event.session_id)
            self._idle.clear()
        elif isinstance(event, CloseSession):
            self._forget(event.session_id)

    def _forget(self, session_id: SessionId) -> None:
        self._live.discard(session_id)
        if not self._live:
            self._idle.set()


def _ends_session(reply: object) -> bool:
    if isinstance(reply, Verdict):
        return reply.finish_reason is not None
    return isinstance(reply, SessionError)
