"""A whole deployment on Ray: places the three services' actors, starts them in order, restarts
those that die, and takes everything down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType

from orchestrator.cluster_actors import HostedService, Launch, Placed
from orchestrator.cluster_members import Member, Role, members_of, unused_gpus
from orchestrator.cluster_ray import (
    Connection,
    Reservation,
    clear_leftovers,
    connect,
    live_nodes,
)
from paceline.config import Config
from paceline.errors import PacelineError

logger = logging.getLogger(__name__)

ENTRY_POINTS: Mapping[Role, str] = MappingProxyType(
    {
        Role.VERIFIER: "verifier_service.service:start",
        Role.DRAFTER: "drafter_service.service:start",
        Role.ORCHESTRATOR: "orchestrator.service:start",
    }
)
STOP_GRACE_S = 5.0
FIRST_RESTART_DELAY_S = 0.5
MAX_RESTART_DELAY_S = 30.0
# An actor that lived this long is no part of a crash loop.
STEADY_S = 60.0


class Cluster:
    """`async with Cluster(config) as cluster:` runs a deployment.

    Restarts: an actor that dies is made anew in the same place (its resources stay reserved) and
    at the same port, after 0.5 s, doubling to 30 s while it keeps dying, without end. The
    orchestrator reconnects to a worker that comes back at its old address; should the address
    change, the orchestrators are restarted to learn the new one. Sessions on a dead worker or
    orchestrator are theirs to rebuild or to fail: nothing of a session is kept here.

    `report` gets one line a happening; by default they go to the log.
    """

    def __init__(
        self,
        config: Config,
        *,
        entry_points: Mapping[Role, str] = ENTRY_POINTS,
        report: Callable[[str], None] = logger.info,
    ) -> None:
        self._config = config
        self._entry_points = entry_points
        self._report = report
        self._connection: Connection | None = None
        self._reservation: Reservation | None = None
        self._expose = False
        self._services: dict[Member, HostedService] = {}
        self._placed: dict[Member, Placed] = {}
        self._supervisors: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Cluster:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def placed(self) -> tuple[Placed, ...]:
        """The running members and where they are, verifiers first."""
        return tuple(self._placed[member] for member in self._services if member in self._placed)

    @property
    def orchestrator_address(self) -> str:
        """HOST:PORT of the first orchestrator."""
        return self._addresses(Role.ORCHESTRATOR)[0]

    async def start(self) -> None:
        """Connect, reserve, place, start.

        Raises `ConfigError` for settings that cannot work, `PlacementError` when the cluster lacks
        room, and a service's own error when it does not start; nothing is left running then.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        cluster = self._config.cluster
        members = members_of(self._config)
        self._connection = connect(
            cluster.ray_address, namespace=cluster.namespace, members=members
        )
        nodes = live_nodes()
        self._report(
            f"{'started a local' if self._connection.started else 'joined a running'} Ray: "
            f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        )
        if (advice := unused_gpus(self._config, nodes)) is not None:
            self._report(advice)
        await clear_leftovers(members, namespace=cluster.namespace)
        self._reservation = Reservation(members)
        await self._reservation.take(cluster.place_timeout_s, report=self._report)
        # Nodes may have joined meanwhile.
        self._expose = len({node.address for node in live_nodes()}) > 1
        self._services = {
            member: HostedService(
                member,
                namespace=cluster.namespace,
                strategy=self._reservation.strategy(member),
            )
            for member in members
        }
        await self._launch_all([m for m in members if m.role is not Role.ORCHESTRATOR])
        await self._launch_all([m for m in members if m.role is Role.ORCHESTRATOR])
        self._supervisors = [
            asyncio.create_task(self._supervise(member)) for member in self._placed
        ]

    async def _launch_all(self, members: list[Member]) -> None:
        """Start members at once; the first that fails ends the attempt."""
        if members:
            self._report(f"starting {', '.join(member.label for member in members)}")
        tasks = [asyncio.create_task(self._launch(member)) for member in members]
        try:
            for finished in asyncio.as_completed(tasks):
                await finished
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _launch(self, member: Member) -> None:
        previous = self._placed.get(member)
        launch = Launch(
            config=self._config_for(member),
            entry_point=self._entry_points[member.role],
            member=member,
            expose=self._expose,
            previous_port=int(previous.address.rpartition(":")[2]) if previous else None,
        )
        timeout_s = self._config.cluster.start_timeout_s
        try:
            self._placed[member] = await self._services[member].launch(launch, timeout_s=timeout_s)
        except PacelineError as error:
            if previous is not None or not self._dispensable(member):
                raise
            self._report(f"{member.label} is left out, sessions run without its drafts: {error}")
        else:
            placed = self._placed[member]
            self._report(f"{member.label} is {'back' if previous else 'up'} at {placed.address}")

    def _dispensable(self, member: Member) -> bool:
        return member.role is Role.DRAFTER and not self._config.orchestrator.require_drafter

    def _config_for(self, member: Member) -> Config:
        """The orchestrator's configuration names the workers, those of the file first."""
        if member.role is not Role.ORCHESTRATOR:
            return self._config
        section = self._config.orchestrator
        drafters = (section.drafters or ()) + self._addresses(Role.DRAFTER)
        section = section.model_copy(
            update={
                "drafters": drafters,
                "verifiers": section.verifiers + self._addresses(Role.VERIFIER),
                "require_drafter": section.require_drafter and bool(drafters),
            }
        )
        return self._config.model_copy(update={"orchestrator": section})

    def _addresses(self, role: Role) -> tuple[str, ...]:
        return tuple(one.address for one in self.placed if one.member.role is role)

    async def _supervise(self, member: Member) -> None:
        clock = asyncio.get_running_loop().time
        delay_s = FIRST_RESTART_DELAY_S
        while True:
            started = clock()
            reason = await self._services[member].ended()
            if clock() - started > STEADY_S:
                delay_s = FIRST_RESTART_DELAY_S
            self._report(f"{member.label} is gone: {reason}")
            address = self._placed[member].address
            delay_s = await self._relaunch(member, delay_s=delay_s)
            moved = self._placed[member].address != address
            if moved and member.role is not Role.ORCHESTRATOR:
                await self._end_orchestrators()

    async def _relaunch(self, member: Member, *, delay_s: float) -> float:
        """Try until it runs; returns the delay before the next try should it die again."""
        while True:
            await self._services[member].kill()
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_RESTART_DELAY_S)
            try:
                await self._launch(member)
            except PacelineError as error:
                self._report(
                    f"{member.label} did not come back, next try in {delay_s:g} s: {error}"
                )
            else:
                return delay_s

    async def _end_orchestrators(self) -> None:
        """Their supervisors start them again, with the addresses as they are now."""
        for member in self._placed:
            if member.role is Role.ORCHESTRATOR:
                await self._services[member].kill()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Take everything down: the orchestrators first, so that running answers may end for
        `grace_s`, then the workers, the reservation, and the Ray that was started here. Idempotent;
        bounded by twice `grace_s` and a few seconds.
        """
        supervisors, self._supervisors = self._supervisors, []
        for supervisor in supervisors:
            supervisor.cancel()
        await asyncio.gather(*supervisors, return_exceptions=True)
        services, self._services = self._services, {}
        for last in (False, True):
            await asyncio.gather(
                *(
                    service.stop(grace_s)
                    for member, service in services.items()
                    if (member.role is not Role.ORCHESTRATOR) is last
                )
            )
        self._placed = {}
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(ConnectionError):
                connection.close()
