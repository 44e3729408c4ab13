"""A drafter without a model: its engine answers each event on a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from paceline.config import GrpcConfig
from paceline.errors import PacelineError
from paceline.rpc.channel import open_channel
from paceline.rpc.client_link import ClientLink
from paceline.rpc.codec.describe import encode_worker_info
from paceline.rpc.codec.drafter import DRAFTER_LINK
from paceline.rpc.credentials import NO_CREDENTIALS, Credentials
from paceline.rpc.link import serve_link
from paceline.rpc.server import ServerShell
from paceline.sampling.params import SamplingParams
from paceline.types import (
    Advance,
    CloseSession,
    DraftBlock,
    DrafterEvent,
    DrafterReply,
    DrafterState,
    OpenSession,
    WorkerInfo,
)
from protos import drafter_pb2_grpc

LIMITS = GrpcConfig(keepalive_s=1.0, keepalive_timeout_s=1.0)
SERVICE = "paceline.v1.Drafter"
INFO = WorkerInfo("fake", "", "", "", "cpu", 10, "", 0)


def open_session(session_id: int) -> OpenSession:
    return OpenSession(
        session_id=session_id,
        token_ids=(1, 2, 3),
        prompt_length=3,
        sampling=SamplingParams(),
        window=4,
        num_speculative_tokens=4,
        draft_top_k=0,
        committed_limit=100,
        speculation=True,
        epoch=0,
        eos_token_ids=(0,),
        vocab_size=10,
    )


def advance(session_id: int, *token_ids: int) -> Advance:
    return Advance(session_id, epoch=0, base=3, token_ids=token_ids)


def block(session_id: int, token_ids: Sequence[int] = (), draft_probs: Any = None) -> DraftBlock:
    return DraftBlock(
        session_id, 0, 3, tuple(token_ids), draft_probs, 3, DrafterState.RUNNING, 3, 1
    )


class FakeHandle:
    """A link of the fake engine."""

    def __init__(
        self, engine: FakeEngine, deliver: Callable[[Sequence[DrafterReply]], None]
    ) -> None:
        self.deliver = deliver
        self.events: list[DrafterEvent] = []
        self.live: set[int] = set()
        self.num_closes = 0
        self._engine = engine

    def post(self, events: Sequence[DrafterEvent]) -> None:
        assert self.num_closes == 0, "events after the end of the link"
        self.events.extend(events)
        self._engine.inbox.put((self, list(events)))

    def close(self) -> None:
        self.num_closes += 1
        self.live.clear()


class FakeEngine:
    """Answers an open and an advance with a block of the advance's ids."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.handles: list[FakeHandle] = []
        self.reply: Callable[[DrafterEvent], DrafterReply] = _echo
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.inbox.put(None)
        self._thread.join()

    def attach(self, deliver: Callable[[Sequence[DrafterReply]], None]) -> FakeHandle:
        handle = FakeHandle(self, deliver)
        self.handles.append(handle)
        return handle

    def _run(self) -> None:
        while (work := self.inbox.get()) is not None:
            handle, events = work
            for event in events:
                if isinstance(event, CloseSession):
                    handle.live.discard(event.session_id)
                    continue
                if isinstance(event, OpenSession):
                    handle.live.add(event.session_id)
                handle.deliver([self.reply(event)])


def _echo(event: DrafterEvent) -> DrafterReply:
    return block(event.session_id, event.token_ids if isinstance(event, Advance) else ())


class FakeDrafter(drafter_pb2_grpc.DrafterServicer):  # type: ignore[misc]
    """`fail` runs first in each call, with its context."""

    def __init__(self, engine: FakeEngine, draining: asyncio.Event, limits: GrpcConfig) -> None:
        self.engine = engine
        self.draining = draining
        self.limits = limits
        self.fail: Callable[[Any], Any] | None = None
        self.tasks: list[asyncio.Task[Any]] = []

    async def Draft(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        if self.fail is not None:
            await self.fail(context)
        await serve_link(
            request_iterator,
            context,
            wire=DRAFTER_LINK,
            engine=self.engine,
            max_message_bytes=self.limits.max_message_bytes,
            draining=self.draining,
        )

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.fail is not None:
            await self.fail(context)
        return encode_worker_info(INFO)


class Running:
    """A fake drafter being served, and what its test wants to look at."""

    def __init__(self, shell: ServerShell, servicer: FakeDrafter) -> None:
        self.shell = shell
        self.servicer = servicer
        self.engine = servicer.engine


@asynccontextmanager
async def running_drafter(
    *,
    credentials: Credentials = NO_CREDENTIALS,
    limits: GrpcConfig = LIMITS,
    listen: str = "127.0.0.1:0",
) -> AsyncIterator[Running]:
    engine = FakeEngine()
    draining = asyncio.Event()
    servicer = FakeDrafter(engine, draining, limits)
    shell = ServerShell(
        listen,
        {SERVICE: partial(drafter_pb2_grpc.add_DrafterServicer_to_server, servicer)},
        credentials=credentials,
        limits=limits,
        draining=draining,
    )
    engine.start()
    try:
        await shell.start()
        await shell.set_serving(serving=True)
        yield Running(shell, servicer)
    finally:
        await shell.stop(0.0)
        await asyncio.to_thread(engine.stop)


@asynccontextmanager
async def connected(
    address: str, *, credentials: Credentials = NO_CREDENTIALS, limits: GrpcConfig = LIMITS
) -> AsyncIterator[drafter_pb2_grpc.DrafterStub]:
    channel = open_channel(address, credentials, limits)
    try:
        yield drafter_pb2_grpc.DrafterStub(channel)
    finally:
        await channel.close(None)


class Peer:
    """A `ClientLink` that keeps what it hears."""

    def __init__(self, stub: Any, limits: GrpcConfig = LIMITS) -> None:
        self.replies: list[Any] = []
        self.num_bytes: list[int] = []
        self.reasons: list[PacelineError | None] = []
        self.closed = asyncio.Event()
        self._changed = asyncio.Event()
        self.link: ClientLink[DrafterEvent, DrafterReply] = ClientLink(
            stub.Draft,
            wire=DRAFTER_LINK,
            on_reply=self._on_reply,
            on_closed=self._on_closed,
            max_message_bytes=limits.max_message_bytes,
        )

    def _on_reply(self, reply: Any, num_bytes: int) -> None:
        self.replies.append(reply)
        self.num_bytes.append(num_bytes)
        self._changed.set()

    def _on_closed(self, reason: PacelineError | None) -> None:
        self.reasons.append(reason)
        self.closed.set()

    async def heard(self, count: int) -> list[Any]:
        """The replies so far, once there are at least `count`."""
        while len(self.replies) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)
        return self.replies

    async def ended(self) -> PacelineError | None:
        """Why the link ended, once it has."""
        await asyncio.wait_for(self.closed.wait(), 10)
        return self.reasons[0]


async def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for what another thread or peer does without telling."""

    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)
