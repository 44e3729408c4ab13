"""How the workers of an orchestrator change while it serves: made, checked, added, drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from orchestrator.compatibility import check_drafter, check_verifier
from orchestrator.router import DrafterWorker, Router, VerifierWorker
from orchestrator.worker import Worker
from orchestrator.worker_set import WorkerSet
from paceline.config import Config
from paceline.errors import PacelineError
from paceline.rpc.credentials import load_credentials
from paceline.rpc.worker_client import connect_drafter, connect_verifier
from paceline.runtime.tokenizer import Tokenizer
from paceline.telemetry.orchestrator_metrics import PeerMetrics
from paceline.types import WorkerInfo
from paceline.waiting import within

logger = logging.getLogger(__name__)

REFRESH_TIMEOUT_S = 2.0

W = TypeVar("W", DrafterWorker, VerifierWorker)


class WorkerMaker:
    """An orchestrator's ends of its workers, by address; nothing is sent to them yet."""

    def __init__(self, config: Config, metrics: Mapping[str, PeerMetrics]) -> None:
        self._metrics = metrics
        section = config.orchestrator
        self._wire = (load_credentials(config.security), config.grpc)
        self._timeout_s = section.connect_timeout_s
        self._delays_ms = section.emulated_delay_ms

    def verifier(self, address: str) -> VerifierWorker:
        connect = partial(
            connect_verifier,
            address,
            *self._wire,
            timeout_s=self._timeout_s,
            delay_s=self._delays_ms.verifier / 1e3,
        )
        return Worker("verifier", address, connect, self._metrics["verifier"])

    def drafter(self, address: str) -> DrafterWorker:
        connect = partial(
            connect_drafter,
            address,
            *self._wire,
            timeout_s=self._timeout_s,
            delay_s=self._delays_ms.drafter / 1e3,
        )
        return Worker("drafter", address, connect, self._metrics["drafter"])


class Membership:
    """Follows what the cluster says which workers there are.

    A worker that is named for the first time is reached in the background, and must serve the
    same target and speak the same ids; one that is no longer named is drained. A worker that is
    named still is left alone, whether it is connected or not: it comes back at its address.
    """

    def __init__(
        self, router: Router, maker: WorkerMaker, tokenizer: Tokenizer, target: WorkerInfo
    ) -> None:
        self._router = router
        self._maker = maker
        self._tokenizer = tokenizer
        self._target = target
        self._version = 0

    def have_checked(self, worker: VerifierWorker | DrafterWorker) -> None:
        """From now on the worker is refused on connecting when it is another model."""
        if worker.role == "verifier":
            worker.check = partial(check_verifier, worker, self._tokenizer, self._target)
        else:
            size = self._target.feature_size
            worker.check = partial(check_drafter, worker, self._tokenizer, feature_size=size)

    async def update(self, workers: WorkerSet, grace_s: float) -> None:
        """Use these workers from now on; returns when those that are not named are drained.

        Their sessions get `grace_s` to end, then they are moved. An older set than the last one
        is ignored.
        """
        if workers.version <= self._version:
            return
        self._version = workers.version
        router = self._router
        for address in _missing(workers.verifiers, router.verifiers):
            verifier = self._maker.verifier(address)
            router.add_verifier(verifier)
            self._admit(verifier)
        for address in _missing(workers.drafters, router.drafters):
            drafter = self._maker.drafter(address)
            router.add_drafter(drafter)
            self._admit(drafter)
        leaving: list[VerifierWorker | DrafterWorker] = [
            *_unnamed(workers.verifiers, router.verifiers),
            *_unnamed(workers.drafters, router.drafters),
        ]
        for worker in leaving:
            logger.info("%s %s is drained", worker.role, worker.address)
        await asyncio.gather(*(router.drain(worker, grace_s) for worker in leaving))

    def _admit(self, worker: VerifierWorker | DrafterWorker) -> None:
        self.have_checked(worker)
        worker.keep_connected()


def _missing(addresses: Iterable[str], workers: Sequence[W]) -> list[str]:
    """One that drains at the address does not count: it is another by now."""
    known = {worker.address for worker in workers if not worker.is_draining}
    return [address for address in dict.fromkeys(addresses) if address not in known]


def _unnamed(addresses: Sequence[str], workers: Sequence[W]) -> list[W]:
    return [w for w in workers if w.address not in addresses and not w.is_draining]


class LoadWatch:
    """Asks every connected worker again and again how busy it is, one question at a time each.

    With several orchestrators over the same workers, each sees so what the others do.
    """

    def __init__(self, router: Router, *, every_s: float) -> None:
        self._router = router
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await asyncio.gather(
                *(_quietly(w.refresh) for w in self._router.workers if w.is_connected)
            )  # none of them raises


async def _quietly(refresh: Callable[[], Awaitable[None]]) -> None:
    """One that does not answer keeps what was known of it; its link says whether it is lost."""
    try:
        await within(refresh(), REFRESH_TIMEOUT_S)
    except (PacelineError, asyncio.TimeoutError) as error:
        logger.debug("a worker did not say how busy it is: %s", error)
    except Exception:  # one question gone wrong must not be the last
        logger.exception("a worker could not be asked how busy it is")
