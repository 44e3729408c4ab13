"""Starts the orchestrator: connects the workers, checks that they fit, serves clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from orchestrator.compatibility import check_drafter, check_verifier
from orchestrator.request import draft_top_k
from orchestrator.router import DrafterWorker, Router, VerifierWorker
from orchestrator.servicer import SERVICE_NAME, OrchestratorServicer
from orchestrator.window_controller import MAX_BLOCK
from orchestrator.worker import Worker
from paceline.config import Config
from paceline.errors import (
    ConfigError,
    DeadlineExceededError,
    ModelLoadError,
    PacelineError,
    StartupError,
    UnavailableError,
    VocabularyMismatchError,
)
from paceline.rpc.credentials import load_credentials
from paceline.rpc.limits import check_message_limit
from paceline.rpc.server import ServerShell
from paceline.rpc.worker_client import connect_drafter, connect_verifier
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.telemetry.metrics_export import MetricsExport, start_metrics
from paceline.telemetry.orchestrator_metrics import OrchestratorMetrics
from paceline.telemetry.tracing import Tracing, start_tracing

logger = logging.getLogger(__name__)


class OrchestratorService:
    """A running orchestrator."""

    def __init__(
        self,
        shell: ServerShell,
        router: Router,
        metrics: MetricsExport,
        tracing: Tracing,
        end_traces: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._shell = shell
        self._router = router
        self._tracing = tracing
        self._end_traces = end_traces
        self._health: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, with the real port."""
        return self._shell.address

    @property
    def metrics_address(self) -> str:
        """Where Prometheus may scrape it, with the real port; empty without an endpoint."""
        return self._metrics.address

    async def start(self) -> None:
        """Serve; health follows whether a verifier is connected."""
        await self._shell.start()
        await self._shell.set_serving(serving=self._router.can_serve)
        self._health = asyncio.create_task(self._follow_health())

    async def _follow_health(self) -> None:
        changed = asyncio.Event()
        stop_listening = self._router.listen(changed.set)
        try:
            while True:
                changed.clear()
                await self._shell.set_serving(serving=self._router.can_serve)
                await changed.wait()
        finally:
            stop_listening()

    async def stop(self, grace_s: float) -> None:
        """Let live generations end within `grace_s`, then end all links."""
        if self._health is not None:
            self._health.cancel()
            await asyncio.gather(self._health, return_exceptions=True)
        await self._shell.stop(grace_s)
        await self._router.close()
        self._end_traces()
        await self._tracing.stop()
        await asyncio.to_thread(self._metrics.stop)


async def start(config: Config) -> OrchestratorService:
    """Connect and serve. Raises `StartupError` when the workers do not fit or do not answer."""
    section = config.orchestrator
    metrics = OrchestratorMetrics()
    verifiers, drafters = _workers(config, metrics)
    tracing = start_tracing(config.telemetry.traces, "orchestrator")
    router = Router(verifiers, drafters)
    export = await asyncio.to_thread(start_metrics, config.telemetry, service=metrics.service)
    try:
        tokenizer = await _connect(config, verifiers, drafters)
        grammar = GrammarEngine(tokenizer)
        await asyncio.to_thread(grammar.prepare)
        servicer = OrchestratorServicer(
            router,
            tokenizer,
            grammar,
            section,
            max_message_bytes=config.grpc.max_message_bytes,
            metrics=metrics,
            tracing=tracing,
        )
        metrics.export(export.meter, servicer.state)
        shell = ServerShell(
            section.listen,
            {SERVICE_NAME: servicer.add_to},
            credentials=load_credentials(config.security),
            limits=config.grpc,
        )
        service = OrchestratorService(shell, router, export, tracing, servicer.end_traces)
        await service.start()
    except BaseException:
        await router.close()
        await tracing.stop()
        await asyncio.to_thread(export.stop)
        raise
    return service


def _workers(
    config: Config, metrics: OrchestratorMetrics
) -> tuple[list[VerifierWorker], list[DrafterWorker]]:
    section = config.orchestrator
    wire = (load_credentials(config.security), config.grpc)
    timeout_s = section.connect_timeout_s
    delay_ms = section.emulated_delay_ms
    open_verifier = partial(connect_verifier, timeout_s=timeout_s, delay_s=delay_ms.verifier / 1e3)
    open_drafter = partial(connect_drafter, timeout_s=timeout_s, delay_s=delay_ms.drafter / 1e3)
    verifier_addresses = section.verifiers or (config.verifier.listen,)
    drafter_addresses = (config.drafter.listen,) if section.drafters is None else section.drafters
    verifiers: list[VerifierWorker] = [
        Worker(
            "verifier", address, partial(open_verifier, address, *wire), metrics.peers["verifier"]
        )
        for address in verifier_addresses
    ]
    drafters: list[DrafterWorker] = [
        Worker("drafter", address, partial(open_drafter, address, *wire), metrics.peers["drafter"])
        for address in drafter_addresses
    ]
    return verifiers, drafters


async def _connect(
    config: Config, verifiers: list[VerifierWorker], drafters: list[DrafterWorker]
) -> Tokenizer:
    """Connect every worker and check that all speak the same ids."""
    section = config.orchestrator
    deadline = asyncio.get_running_loop().time() + section.connect_timeout_s
    await asyncio.gather(*(_start_up(worker, deadline) for worker in verifiers))
    target = verifiers[0].info
    assert target is not None, "it is connected"
    tokenizer = await asyncio.to_thread(_load_tokenizer, section.tokenizer or target.model)
    check_message_limit(
        num_speculative_tokens=max(
            section.speculation.num_speculative_tokens,
            MAX_BLOCK if section.speculation.adaptive else 1,
        ),
        draft_top_k=draft_top_k(section.speculation.draft_probs, section),
        vocab_size=target.vocab_size,
        limits=config.grpc,
    )
    for verifier in verifiers:
        assert verifier.info is not None, "it is connected"
        verifier.check = partial(check_verifier, verifier, tokenizer, target)
        await verifier.check(verifier.info)
    for drafter in drafters:
        drafter.check = partial(check_drafter, drafter, tokenizer)
    await asyncio.gather(*(_start_drafter(config, drafter, deadline) for drafter in drafters))
    return tokenizer


async def _start_drafter(config: Config, drafter: DrafterWorker, deadline: float) -> None:
    is_required = config.orchestrator.require_drafter
    now = asyncio.get_running_loop().time()
    try:
        # one that may be missing is tried once: clients need not wait for it
        await _start_up(drafter, deadline if is_required else now)
    except PacelineError as error:
        if is_required or isinstance(error, VocabularyMismatchError):
            raise
        logger.warning("%s; sessions run without drafts until it comes", error)
        drafter.keep_connected()


async def _start_up(worker: VerifierWorker | DrafterWorker, deadline: float) -> None:
    try:
        await worker.connect(deadline)
    except StartupError:
        raise
    except (UnavailableError, DeadlineExceededError) as error:
        raise StartupError(f"{worker.role} {worker.address} does not answer: {error}") from error
    except PacelineError as error:
        raise StartupError(f"{worker.role} {worker.address} cannot be used: {error}") from error


def _load_tokenizer(path: str) -> Tokenizer:
    try:
        return Tokenizer.load(path)
    except ModelLoadError as error:
        raise ConfigError(f"orchestrator.tokenizer: {error}") from error
