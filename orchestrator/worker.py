"""One drafter or verifier as the orchestrator sees it: its description, and a link that is
reopened whenever it breaks."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from orchestrator.load import Report, room_tokens
from paceline.errors import (
    DeadlineExceededError,
    PacelineError,
    UnavailableError,
    describe_error,
)
from paceline.rpc.client_link import ClientLink
from paceline.rpc.worker_client import VocabularyTable, WorkerClient
from paceline.telemetry.orchestrator_metrics import PeerMetrics
from paceline.types import CloseSession, SessionError, SessionId, SessionSpans, WorkerInfo

logger = logging.getLogger(__name__)

E = TypeVar("E")
R = TypeVar("R")

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class _Handlers(Generic[R]):
    on_reply: Callable[[R, int], None]
    on_lost: Callable[[PacelineError], None]
    num_tokens: int


class WorkerSession(Generic[E, R]):
    """A session on a worker. Its id is fresh, so late replies to an earlier one reach nobody."""

    def __init__(self, worker: Worker[E, R], session_id: SessionId) -> None:
        self.worker = worker
        self.session_id = session_id

    def send(self, event: E) -> int:
        """Send an event of this session; returns its payload bytes. Never blocks."""
        return self.worker.send(event)

    def expect_spans(self, on_spans: Callable[[SessionSpans], None]) -> Callable[[], None]:
        """Have `on_spans` hear the session's spans, also after it was closed; returns how to stop.

        The last reply says so, and comes as well when the session fails or the link breaks.
        """
        return self.worker.expect_spans(self.session_id, on_spans)

    def close(self) -> None:
        """Free the session on the worker. Idempotent."""
        self.worker.close_session(self.session_id)


class Worker(Generic[E, R]):
    """A channel to one worker, kept connected in the background until `close`.

    `check` sees the description on every connection, so that a worker that comes back as another
    model is refused. `on_change` hears when the worker connects or is lost.
    """

    def __init__(
        self,
        role: str,
        address: str,
        connect: Callable[[], WorkerClient[E, R]],
        metrics: PeerMetrics | None = None,
    ) -> None:
        self.role = role
        self._metrics = metrics or PeerMetrics()
        self.address = address
        self.info: WorkerInfo | None = None
        self.problem = "not connected yet"
        """Why it is not connected; empty while it is."""
        self.is_draining = False
        """Whether it is on its way out: no new sessions, and those it has are to end or move."""
        self.check: Callable[[WorkerInfo], Awaitable[None]] | None = None
        self.on_change: Callable[[], None] = lambda: None
        self._make_client = connect
        self._client: WorkerClient[E, R] | None = None
        self._link: ClientLink[E, R] | None = None
        self._ids = itertools.count(1)
        self._handlers: dict[SessionId, _Handlers[R]] = {}
        self._span_listeners: dict[SessionId, Callable[[SessionSpans], None]] = {}
        self._num_tokens = 0
        self._report = Report()
        self._lost = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    @property
    def num_sessions(self) -> int:
        return len(self._handlers)

    @property
    def load(self) -> int:
        """Sessions, ours now and those of other orchestrators as it last said."""
        return self.num_sessions + self._report.other_sessions

    @property
    def room_tokens(self) -> float:
        """Tokens for which its KV pool has room, as far as is known."""
        return room_tokens(self._report, self._num_tokens)

    # --- connecting -------------------------------------------------------------------------

    async def connect(self, deadline: float) -> None:
        """Connect, trying again until the loop's time `deadline`, and stay connected afterwards.

        Raises the last error. What time does not cure (a worker of the wrong kind, a wrong token)
        is not tried again.
        """
        loop = asyncio.get_running_loop()
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._connect()
                break
            except (UnavailableError, DeadlineExceededError) as error:
                self.problem = str(error)
                if loop.time() + retry_s >= deadline:
                    raise
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)
        self.keep_connected()

    def keep_connected(self) -> None:
        """Reconnect in the background whenever the link is lost."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected())

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        retry_s = FIRST_RETRY_S
        while True:
            if self.is_connected:
                connected_at = loop.time()
                await self._lost.wait()
                if loop.time() - connected_at > LAST_RETRY_S:
                    retry_s = FIRST_RETRY_S
                else:  # it may break again and again
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, LAST_RETRY_S)
            try:
                await self._connect()
                logger.info("%s %s is connected", self.role, self.address)
            except Exception as error:  # whatever it was: nobody else would try again
                unexpected = not isinstance(error, PacelineError)
                if unexpected or str(error) != self.problem:
                    logger.warning("%s %s: %s", self.role, self.address, error, exc_info=unexpected)
                self.problem = str(error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _connect(self) -> None:
        if self._client is None:
            self._client = self._make_client()
        info = await self._client.describe()
        if self.check is not None:
            await self.check(info)
        self._lost.clear()
        self._link = await self._client.open_link(self._on_reply, self._on_closed)
        self.info, self.problem = info, ""
        self._metrics.opened()
        self._take_report(info)
        self.on_change()

    async def describe(self) -> WorkerInfo:
        """Ask the worker what it is and how full. Raises `PacelineError`."""
        return await self._connected_client().describe()

    async def refresh(self) -> None:
        """Learn how busy it is. Raises `PacelineError`; what was known is then kept."""
        self._take_report(await self.describe())

    def _take_report(self, info: WorkerInfo) -> None:
        self._report = Report.of(info, own_sessions=self.num_sessions, own_tokens=self._num_tokens)

    async def vocabulary(self) -> VocabularyTable:
        """The worker's id -> string table. Raises `PacelineError`."""
        return await self._connected_client().vocabulary()

    def _connected_client(self) -> WorkerClient[E, R]:
        if self._client is None:
            raise UnavailableError(f"{self.role} {self.address} is not connected")
        return self._client

    async def close(self) -> None:
        """End link and channel."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        if self._client is not None:
            await self._client.close()

    # --- sessions ---------------------------------------------------------------------------

    def open_session(
        self,
        on_reply: Callable[[R, int], None],
        on_lost: Callable[[PacelineError], None],
        *,
        num_tokens: int = 0,
    ) -> WorkerSession[E, R]:
        """A fresh session id; `on_reply` hears its replies and their payload bytes.

        `num_tokens` is what the session may come to, prompt included.
        `on_lost` hears once if the link breaks first. Neither is called after `close_session`.
        Raises `UnavailableError` while the worker is not connected.
        """
        if not self.is_connected:
            raise UnavailableError(f"{self.role} {self.address}: {self.problem}")
        session_id = next(self._ids)
        self._handlers[session_id] = _Handlers(on_reply, on_lost, num_tokens)
        self._num_tokens += num_tokens
        self._idle.clear()
        return WorkerSession(self, session_id)

    def send(self, event: E | CloseSession) -> int:
        num_bytes = 0 if self._link is None else self._link.send(event)
        self._metrics.sent(num_bytes)
        return num_bytes

    def close_session(self, session_id: SessionId) -> None:
        if self._forget(session_id):
            self.send(CloseSession(session_id))

    def _forget(self, session_id: SessionId) -> bool:
        handlers = self._handlers.pop(session_id, None)
        if handlers is None:
            return False
        self._num_tokens -= handlers.num_tokens
        if not self._handlers:
            self._idle.set()
        return True

    async def idle(self) -> None:
        """Until no session is left on it."""
        await self._idle.wait()

    def expect_spans(
        self, session_id: SessionId, on_spans: Callable[[SessionSpans], None]
    ) -> Callable[[], None]:
        """See `WorkerSession.expect_spans`."""
        self._span_listeners[session_id] = on_spans

        def stop() -> None:
            self._span_listeners.pop(session_id, None)

        return stop

    def _on_spans(self, reply: SessionSpans) -> None:
        listeners = self._span_listeners
        take = listeners.pop if reply.is_last else listeners.get
        listener = take(reply.session_id, None)
        if listener is not None:
            listener(reply)

    def _on_reply(self, reply: Any, num_bytes: int) -> None:
        self._metrics.received(num_bytes)
        if isinstance(reply, SessionSpans):
            self._on_spans(reply)
            return
        handlers = self._handlers.get(reply.session_id)
        if isinstance(reply, SessionError):
            self._forget(reply.session_id)
            self._on_spans(SessionSpans(reply.session_id, (), is_last=True))
        if handlers is None:
            return
        try:
            handlers.on_reply(reply, num_bytes)
        except Exception as error:
            # Left alone, the session would wait for ever for what it could not take.
            logger.exception("a reply of %s %s could not be handled", self.role, self.address)
            self.close_session(reply.session_id)
            _, message = describe_error(error)
            handlers.on_lost(PacelineError(f"a reply could not be handled: {message}"))

    def _on_closed(self, error: PacelineError | None) -> None:
        self._link = None
        self._lost.set()
        reason = error or UnavailableError(f"{self.role} {self.address} was closed")
        self.problem = str(reason)
        if error is not None:
            self._metrics.lost()
            logger.warning("%s %s is lost: %s", self.role, self.address, error)
        lost, self._handlers, self._num_tokens = self._handlers, {}, 0
        self._idle.set()
        for session_id in list(self._span_listeners):
            self._on_spans(SessionSpans(session_id, (), is_last=True))
        for handlers in lost.values():
            try:
                handlers.on_lost(UnavailableError(f"{self.role} {self.address} is lost: {reason}"))
            except Exception:  # the others must hear it too
                logger.exception("a session did not take the loss of %s", self.address)
        self.on_change()
