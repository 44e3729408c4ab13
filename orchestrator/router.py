"""Chooses which workers serve a session, and lets workers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from orchestrator.affinity import AffinityMap, Demand
from orchestrator.estimates import Experience, PassCost
from orchestrator.load import choose
from orchestrator.worker import Worker
from paceline.errors import UnavailableError
from paceline.types import DrafterEvent, DrafterReply, VerifierEvent, VerifierReply
from paceline.waiting import within

logger = logging.getLogger(__name__)

DrafterWorker: TypeAlias = Worker[DrafterEvent, DrafterReply]
VerifierWorker: TypeAlias = Worker[VerifierEvent, VerifierReply]

W = TypeVar("W", DrafterWorker, VerifierWorker)

ANYTHING = Demand()


class Router:
    """The workers of one orchestrator, and which of them serves a session.

    The rule is `load.choose`'s: KV room, then load, then the worker where the session's prefix
    lies (`affinity.py`) while it is not much busier. Load and room are what this orchestrator's
    own sessions take now and what the others' took when the worker last said so. A worker that
    drains gets a session only if no other is connected.
    """

    def __init__(
        self,
        verifiers: Sequence[VerifierWorker],
        drafters: Sequence[DrafterWorker],
        *,
        max_drafting_sessions: int | None = None,
    ) -> None:
        self._num_sessions = 0
        self._allows_drafts = True
        self._max_drafting_sessions = max_drafting_sessions
        self.verifiers = list(verifiers)
        self.drafters = list(drafters)
        self._verifier_affinity: AffinityMap[VerifierWorker] = AffinityMap()
        self._drafter_affinity: AffinityMap[DrafterWorker] = AffinityMap()
        self._pass_costs = {id(worker): PassCost() for worker in verifiers}
        self._experiences: dict[tuple[int, int, str], Experience] = {}
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

    def verifier(
        self, demand: Demand = ANYTHING, avoid: VerifierWorker | None = None
    ) -> VerifierWorker:
        """The verifier for a session: any other than `avoid`, if there is another.

        Raises `UnavailableError` if none is connected.
        """
        others = [worker for worker in self.verifiers if worker is not avoid]
        worker = _choose(others, demand, self._verifier_affinity) or _choose(
            self.verifiers, demand, self._verifier_affinity
        )
        if worker is None:
            problems = "; ".join(f"{worker.address}: {worker.problem}" for worker in self.verifiers)
            raise UnavailableError(f"no verifier is connected ({problems})")
        return worker

    def experience(self, verifier: VerifierWorker, drafter: DrafterWorker) -> Experience:
        """What is known of this pair; its sessions learn together."""
        kind = "" if drafter.info is None else drafter.info.kind
        pair = (id(verifier), id(drafter), kind)
        if pair not in self._experiences:
            self._experiences[pair] = Experience(self._pass_costs[id(verifier)])
        return self._experiences[pair]

    @property
    def allows_drafts(self) -> bool:
        """Whether so few sessions are live that they may draft.

        After there were too many, not before an eighth of the limit is free: a change costs every
        live session an opening and a prefill on a drafter.
        """
        return self._allows_drafts

    def count_session(self, change: int) -> None:
        """One session more (1) or less (-1); listeners hear when that decides about drafts."""
        self._num_sessions += change
        limit = self._max_drafting_sessions
        if limit is None:
            return
        allowed = self._allows_drafts
        enough = limit - (0 if allowed else max(1, limit // 8))
        self._allows_drafts = self._num_sessions <= enough
        if self._allows_drafts != allowed:
            self._notify()

    def drafter(
        self, demand: Demand = ANYTHING, *, at_any_load: bool = False
    ) -> DrafterWorker | None:
        """The drafter for a session, if any is connected and the load allows drafts."""
        if not (self.allows_drafts or at_any_load):
            return None
        return _choose(self.drafters, demand, self._drafter_affinity)

    def served_by(self, worker: DrafterWorker | VerifierWorker, demand: Demand) -> None:
        """Remember that the KV of a session lies, or is about to lie, on `worker`."""
        affinity: AffinityMap[Any] = (
            self._verifier_affinity if worker.role == "verifier" else self._drafter_affinity
        )
        affinity.remember(demand, worker)

    async def wait_for_verifier(
        self,
        timeout_s: float,
        demand: Demand = ANYTHING,
        avoid: VerifierWorker | None = None,
    ) -> VerifierWorker:
        """The verifier for a session that lost its own, `avoid`, which may refuse it again.

        Raises `UnavailableError` in time.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._serving.wait(), timeout_s)
        return self.verifier(demand, avoid)

    # --- workers come and go ----------------------------------------------------------------

    def add_verifier(self, worker: VerifierWorker) -> None:
        """Route to it as soon as it is connected."""
        self.verifiers.append(worker)
        self._pass_costs[id(worker)] = PassCost()
        worker.on_change = self._on_change

    def add_drafter(self, worker: DrafterWorker) -> None:
        """The same for a drafter, which sessions without one take up at once."""
        self.drafters.append(worker)
        worker.on_change = self._on_change

    async def drain(self, worker: DrafterWorker | VerifierWorker, grace_s: float) -> None:
        """Route no more to it, and take it out: after `grace_s` its sessions are moved elsewhere.

        Moved means: a verifier's are opened on another from their committed tokens, a drafter's
        on another drafter, or go on without.
        """
        worker.is_draining = True
        with contextlib.suppress(asyncio.TimeoutError):
            await within(worker.idle(), grace_s)
        await worker.close()
        self.verifiers = [other for other in self.verifiers if other is not worker]
        self.drafters = [other for other in self.drafters if other is not worker]
        self._pass_costs.pop(id(worker), None)
        self._experiences = {
            pair: known for pair, known in self._experiences.items() if id(worker) not in pair
        }
        self._on_change()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when a worker connects or is lost, or when the load begins or ceases to
        allow drafts; returns how to stop that.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _on_change(self) -> None:
        if self.can_serve:
            self._serving.set()
        else:
            self._serving.clear()
        # what a lost worker had in its KV is gone, whatever comes back at its address
        self._verifier_affinity.forget(lambda worker: not worker.is_connected)
        self._drafter_affinity.forget(lambda worker: not worker.is_connected)
        self._notify()

    def _notify(self) -> None:
        for listener in list(self._listeners):
            try:
                listener()
            except Exception:  # the others must hear it too
                logger.exception("a listener failed")

    async def close(self) -> None:
        """End all links."""
        await asyncio.gather(*(worker.close() for worker in self.workers))


def _choose(workers: Sequence[W], demand: Demand, affinity: AffinityMap[W]) -> W | None:
    connected = [worker for worker in workers if worker.is_connected]
    usable = [worker for worker in connected if not worker.is_draining] or connected
    favourite = affinity.find(demand, lambda worker: any(worker is other for other in usable))
    return choose(usable, demand.num_tokens, favourite)
