"""Chooses which workers serve a session: connected, and with the fewest sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from orchestrator.estimates import Experience, PassCost
from orchestrator.worker import Worker
from paceline.errors import UnavailableError
from paceline.types import DrafterEvent, DrafterReply, VerifierEvent, VerifierReply

DrafterWorker: TypeAlias = Worker[DrafterEvent, DrafterReply]
VerifierWorker: TypeAlias = Worker[VerifierEvent, VerifierReply]

W = TypeVar("W", DrafterWorker, VerifierWorker)


class Router:
    """The workers of one orchestrator."""

    def __init__(
        self, verifiers: Sequence[VerifierWorker], drafters: Sequence[DrafterWorker]
    ) -> None:
        self.verifiers = verifiers
        self.drafters = drafters
        self._pass_costs = {id(worker): PassCost() for worker in verifiers}
        self._experiences: dict[tuple[int, int], Experience] = {}
        self._serving = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        for worker in self.workers:
            worker.on_change = self._on_change

    @property
    def workers(self) -> list[DrafterWorker | VerifierWorker]:
        return [*self.verifiers, *self.drafters]

    @property
    def can_serve(self) -> bool:
        """Whether any verifier is connected."""
        return any(worker.is_connected for worker in self.verifiers)

    def verifier(self, avoid: VerifierWorker | None = None) -> VerifierWorker:
        """The verifier for a session: any other than `avoid`, if there is another.

        Raises `UnavailableError` if none is connected.
        """
        others = [worker for worker in self.verifiers if worker is not avoid]
        worker = _least_loaded(others) or _least_loaded(self.verifiers)
        if worker is None:
            problems = "; ".join(f"{worker.address}: {worker.problem}" for worker in self.verifiers)
            raise UnavailableError(f"no verifier is connected ({problems})")
        return worker

    def experience(self, verifier: VerifierWorker, drafter: DrafterWorker) -> Experience:
        """What is known of this pair; its sessions learn together."""
        pair = (id(verifier), id(drafter))
        if pair not in self._experiences:
            self._experiences[pair] = Experience(self._pass_costs[id(verifier)])
        return self._experiences[pair]

    def drafter(self) -> DrafterWorker | None:
        """The drafter for a new session, if any is connected."""
        return _least_loaded(self.drafters)

    async def wait_for_verifier(
        self, timeout_s: float, avoid: VerifierWorker | None = None
    ) -> VerifierWorker:
        """The verifier for a session that lost its own, `avoid`, which may refuse it again.

        Raises `UnavailableError` in time.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._serving.wait(), timeout_s)
        return self.verifier(avoid)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when a worker connects or is lost; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _on_change(self) -> None:
        if self.can_serve:
            self._serving.set()
        else:
            self._serving.clear()
        for listener in list(self._listeners):
            listener()

    async def close(self) -> None:
        """End all links."""
        await asyncio.gather(*(worker.close() for worker in self.workers))


def _least_loaded(workers: Sequence[W]) -> W | None:
    connected = [worker for worker in workers if worker.is_connected]
    return min(connected, key=lambda worker: worker.num_sessions, default=None)
