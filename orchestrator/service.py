"""Starts the orchestrator: connects the workers, checks that they fit, serves clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from orchestrator.compatibility import check_verifier
from orchestrator.membership import LoadWatch, Membership, WorkerMaker
from orchestrator.request import draft_top_k
from orchestrator.router import DrafterWorker, Router, VerifierWorker, W
from orchestrator.servicer import SERVICE_NAME, OrchestratorServicer
from orchestrator.window_plan import MAX_BLOCK
from orchestrator.worker_set import WorkerSet
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
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.telemetry.metrics_export import MetricsExport, start_metrics
from paceline.telemetry.orchestrator_metrics import OrchestratorMetrics
from paceline.telemetry.tracing import Tracing, start_tracing

logger = logging.getLogger(__name__)

LATE_S = 1.0
"""How long start-up waits for further workers once it has one of their kind."""


class OrchestratorService:
    """A running orchestrator."""

    def __init__(
        self,
        shell: ServerShell,
        router: Router,
        membership: Membership,
        watch: LoadWatch,
        *,
        metrics: MetricsExport,
        tracing: Tracing,
        end_traces: Callable[[], None],
    ) -> None:
        self._shell = shell
        self._router = router
        self._membership = membership
        self._watch = watch
        self._metrics = metrics
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
        self._watch.start()

    async def update_workers(self, workers: WorkerSet, *, grace_s: float) -> None:
        """Use these workers from now on; returns when the others are drained (`Membership`)."""
        await self._membership.update(workers, grace_s)

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
        await self._watch.stop()
        await self._router.close()
        self._end_traces()
        await self._tracing.stop()
        await asyncio.to_thread(self._metrics.stop)


async def start(config: Config) -> OrchestratorService:
    """Connect and serve. Raises `StartupError` when the workers do not fit or do not answer."""
    section = config.orchestrator
    metrics = OrchestratorMetrics()
    maker = WorkerMaker(config, metrics.peers)
    limit = section.speculation.max_sessions
    router = Router(*_workers(config, maker), max_drafting_sessions=limit)
    tracing = start_tracing(config.telemetry.traces, "orchestrator")
    export = MetricsExport()
    try:
        export = await asyncio.to_thread(start_metrics, config.telemetry, service=metrics.service)
        membership, tokenizer = await _connect(config, router, maker)
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
        service = OrchestratorService(
            shell,
            router,
            membership,
            LoadWatch(router, every_s=section.load_refresh_s),
            metrics=export,
            tracing=tracing,
            end_traces=servicer.end_traces,
        )
        await service.start()
    except BaseException:
        await router.close()
        await tracing.stop()
        await asyncio.to_thread(export.stop)
        raise
    return service


def _workers(
    config: Config, maker: WorkerMaker
) -> tuple[list[VerifierWorker], list[DrafterWorker]]:
    section = config.orchestrator
    verifier_addresses = section.verifiers or (config.verifier.listen,)
    drafter_addresses = (config.drafter.listen,) if section.drafters is None else section.drafters
    return (
        [maker.verifier(address) for address in verifier_addresses],
        [maker.drafter(address) for address in drafter_addresses],
    )


async def _connect(
    config: Config, router: Router, maker: WorkerMaker
) -> tuple[Membership, Tokenizer]:
    """Connect the workers and check that all speak the same ids.

    One verifier is enough to serve, and one drafter where one is required; what is missing then
    joins in the background. A worker that is there and wrong is an error.
    """
    section = config.orchestrator
    deadline = asyncio.get_running_loop().time() + section.connect_timeout_s
    await _start_up_any(router.verifiers, deadline)
    target = next(worker.info for worker in router.verifiers if worker.is_connected)
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
    membership = Membership(router, maker, tokenizer, target)
    for verifier in router.verifiers:
        membership.have_checked(verifier)
        if verifier.is_connected:
            assert verifier.info is not None, "it is connected"
            await check_verifier(verifier, tokenizer, target, verifier.info)
        verifier.keep_connected()
    for drafter in router.drafters:
        membership.have_checked(drafter)
    if section.require_drafter and router.drafters:
        await _start_up_any(router.drafters, deadline)
        for drafter in router.drafters:
            drafter.keep_connected()
    else:
        await asyncio.gather(*(_try_drafter(drafter) for drafter in router.drafters))
    return membership, tokenizer


async def _start_up_any(workers: Sequence[W], deadline: float) -> None:
    """Connect workers at once, until all are there, or some and the others had a moment more.

    Raises the first error of one that is wrong, or if none is there in time.
    """
    tasks = [asyncio.create_task(_start_up(worker, deadline)) for worker in workers]
    try:
        pending = set(tasks)
        while pending:
            patience_s = LATE_S if any(worker.is_connected for worker in workers) else None
            done, pending = await asyncio.wait(
                pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            for error in filter(None, (task.exception() for task in done)):
                if not isinstance(error.__cause__, (UnavailableError, DeadlineExceededError)):
                    raise error
            if not done:
                break
        if not any(worker.is_connected for worker in workers):
            raise next(filter(None, (task.exception() for task in tasks)))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for worker in workers:
        if not worker.is_connected:
            logger.warning(
                "%s %s does not answer yet (%s); it joins when it does",
                worker.role,
                worker.address,
                worker.problem,
            )


async def _try_drafter(drafter: DrafterWorker) -> None:
    """Connect one that may be missing; once, because clients need not wait for it."""
    try:
        await _start_up(drafter, asyncio.get_running_loop().time())
    except PacelineError as error:
        if isinstance(error, VocabularyMismatchError):
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
