"""What the two worker services share: description, vocabulary, links, start and stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import grpc
from opentelemetry.metrics import Meter

from paceline.config import Config
from paceline.errors import StartupError
from paceline.rpc.codec.describe import encode_worker_info
from paceline.rpc.credentials import load_credentials
from paceline.rpc.link import serve_link
from paceline.rpc.server import ServerShell
from paceline.rpc.wire import LinkWire
from paceline.runtime.engine_thread import Engine, EngineThread
from paceline.runtime.memory import peak_memory_bytes
from paceline.runtime.tokenizer import Tokenizer
from paceline.telemetry.metrics import export_worker
from paceline.telemetry.metrics_export import MetricsExport, start_metrics
from paceline.telemetry.tracing import Tracing
from paceline.types import WorkerInfo
from protos import common_pb2

E = TypeVar("E")
R = TypeVar("R")
E_contra = TypeVar("E_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class WorkerMetrics(Protocol):
    """What an engine counts."""

    service: str
    """"drafter" or "verifier"."""

    def export(self, meter: Meter) -> None:
        """Show it through `meter`."""
        ...


class WorkerEngine(Engine[E_contra, R_co], Protocol[E_contra, R_co]):
    """An engine that can say what it is."""

    @property
    def metrics(self) -> WorkerMetrics: ...

    def describe(self) -> WorkerInfo:
        """What this worker is and how full; called from the event loop."""
        ...


class WorkerCore(Generic[E, R]):
    """One worker's engine, the thread that runs it, and what its servicer answers from them.

    `tokenizer` is None for a drafter that takes any ids.
    """

    def __init__(
        self,
        engine: WorkerEngine[E, R],
        tokenizer: Tokenizer | None,
        *,
        wire: LinkWire[E, R],
        max_message_bytes: int,
    ) -> None:
        self.thread: EngineThread[E, R] = EngineThread(
            engine, name=f"{engine.describe().kind}-engine"
        )
        self.draining = asyncio.Event()
        self._engine = engine
        self._tokenizer = tokenizer
        self._wire = wire
        self._max_message_bytes = max_message_bytes
        self._started = time.monotonic()

    @property
    def kind(self) -> str:
        """ "drafter" or "verifier"."""
        return self._engine.metrics.service

    def export(self, meter: Meter) -> None:
        """Show through `meter` what the engine counts and how full it is; before it starts."""
        self._engine.metrics.export(meter)
        export_worker(
            meter, self.kind, describe=self._engine.describe, busy_s=lambda: self.thread.busy_s
        )

    async def serve(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Serve one link until it ends."""
        await serve_link(
            requests,
            context,
            wire=self._wire,
            engine=self.thread,
            max_message_bytes=self._max_message_bytes,
            draining=self.draining,
        )

    def describe(self) -> common_pb2.WorkerDescription:
        info = self._engine.describe()
        clocks = {
            "busy_us": int(self.thread.busy_s * 1e6),
            "uptime_us": int((time.monotonic() - self._started) * 1e6),
        }
        return encode_worker_info(
            replace(
                info,
                peak_memory_bytes=peak_memory_bytes(info.device),
                counters={**info.counters, **clocks},
            )
        )

    def vocabulary(self) -> common_pb2.VocabularyResponse:
        if self._tokenizer is None:
            return common_pb2.VocabularyResponse()
        vocabulary = self._tokenizer.vocabulary()
        return common_pb2.VocabularyResponse(
            tokens=vocabulary.tokens, special_token_ids=vocabulary.special_token_ids
        )


class WorkerService:
    """A running worker."""

    def __init__(
        self,
        shell: ServerShell,
        thread: EngineThread[Any, Any],
        metrics: MetricsExport,
        tracing: Tracing | None = None,
    ) -> None:
        self._shell = shell
        self._thread = thread
        self._metrics = metrics
        self._tracing = tracing

    @property
    def address(self) -> str:
        """Where it listens, with the real port."""
        return self._shell.address

    @property
    def metrics_address(self) -> str:
        """Where Prometheus may scrape it, with the real port; empty without an endpoint."""
        return self._metrics.address

    async def wait(self) -> None:
        """Return when the engine has ended, as a stop has it; raise why if it did so by itself."""
        await asyncio.wrap_future(self._thread.ended)

    async def stop(self, grace_s: float) -> None:
        """Refuse new sessions, let the live ones end within `grace_s`, stop."""
        await self._shell.stop(grace_s)
        await asyncio.to_thread(self._thread.stop)
        if self._tracing is not None:
            await self._tracing.stop()
        await asyncio.to_thread(self._metrics.stop)


async def start_worker(
    config: Config,
    listen: str,
    core: WorkerCore[E, R],
    *,
    service: str,
    add_to_server: Callable[[grpc.aio.Server], object],
    tracing: Tracing | None = None,
    warm_up: Callable[[], None] | None = None,
) -> WorkerService:
    """Serve `core` under the full gRPC name `service`, after `warm_up` on its engine's thread.

    Raises `StartupError`.
    """
    shell = ServerShell(
        listen,
        {service: add_to_server},
        credentials=load_credentials(config.security),
        limits=config.grpc,
        draining=core.draining,
    )
    metrics = MetricsExport()
    try:
        metrics = await asyncio.to_thread(start_metrics, config.telemetry, service=core.kind)
        core.export(metrics.meter)
        core.thread.start()
        if warm_up is not None:
            await _warm_up(core, warm_up)
        await shell.start()
        await shell.set_serving(serving=True)
    except BaseException:
        await shell.stop(grace_s=0.0)
        await asyncio.to_thread(core.thread.stop)
        if tracing is not None:
            await tracing.stop()
        await asyncio.to_thread(metrics.stop)
        raise
    return WorkerService(shell, core.thread, metrics, tracing)


async def _warm_up(core: WorkerCore[E, R], warm_up: Callable[[], None]) -> None:
    try:
        await asyncio.wrap_future(core.thread.call(warm_up))
    except Exception as error:  # of the device or the model: it would fail every session
        raise StartupError(f"the {core.kind}'s model failed in its first pass: {error}") from error
