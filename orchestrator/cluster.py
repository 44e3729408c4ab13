"""A whole deployment on Ray: places the three services' actors, starts them in order, keeps them
running, changes how many there are, and takes everything down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType

from orchestrator.cluster_control import Control
from orchestrator.cluster_directory import Directory
from orchestrator.cluster_keeper import Keeper, Surroundings
from orchestrator.cluster_launch import LOOPBACK_HOSTS, Launch, Placed
from orchestrator.cluster_members import Member, Node, Role, members_of, unused_gpus
from orchestrator.cluster_ray import Connection, address, clear_leftovers, connect, live_nodes
from orchestrator.cluster_reservation import Room, reserve
from orchestrator.cluster_scaling import (
    changes,
    check_replicas,
    other_differences,
    replicas_of,
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


class Cluster:
    """`async with Cluster(config) as cluster:` runs a deployment.

    Every member has a keeper, which restarts it (`cluster_keeper.py`). The orchestrators are told
    which workers there are whenever that changes, and follow without a restart. Sessions on a
    dead worker or orchestrator are theirs to rebuild or to fail: nothing of a session is kept
    here.

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
        self._hosts: frozenset[str] = frozenset()
        self._expose = False
        self._keepers: list[Keeper] = []
        self._directory = Directory(config, lambda: self._keepers)
        self._scaling = asyncio.Lock()
        self._control = Control(config.cluster.namespace, lambda: self.replicas, self.scale)
        self._surroundings = Surroundings(
            namespace=config.cluster.namespace,
            start_timeout_s=config.cluster.start_timeout_s,
            launch_of=self._launch_of,
            find_room=self._find_room,
            on_change=self._directory.announce,
            report=report,
        )

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
        return tuple(keeper.placed for keeper in self._keepers if keeper.placed is not None)

    @property
    def replicas(self) -> dict[Role, int]:
        """How many members of each role there are to be, running or about to be again."""
        return {role: sum(k.member.role is role for k in self._keepers) for role in Role}

    @property
    def orchestrator_address(self) -> str:
        """HOST:PORT of the first orchestrator."""
        return self._directory.addresses(Role.ORCHESTRATOR)[0]

    # --- starting ---------------------------------------------------------------------------

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
        self._hosts = frozenset(node.address for node in nodes)
        self._expose = len(self._hosts) > 1 or self._listens_beyond_loopback()
        self._report(
            f"{'started a local' if self._connection.started else 'joined a running'} Ray: "
            f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} at {address()}"
        )
        if (advice := unused_gpus(self._config, nodes)) is not None:
            self._report(advice)
        await clear_leftovers(cluster.namespace)
        await self._add(members, is_first_time=True)
        for keeper in self._keepers:
            keeper.supervise()
        self._control.start()

    def _listens_beyond_loopback(self) -> bool:
        listens = (getattr(self._config, role.value).listen for role in Role)
        return all(listen.rpartition(":")[0] not in LOOPBACK_HOSTS for listen in listens)

    def _is_usable(self, node: Node) -> bool:
        """Services that listen on loopback cannot be reached from a machine that came later."""
        return self._expose or node.address in self._hosts

    def _where(self) -> dict[Member, str]:
        return {k.member: k.room.node.node_id for k in self._keepers if k.room is not None}

    async def _reserve(self, members: Sequence[Member], patience_s: float) -> dict[Member, Room]:
        return await reserve(
            members,
            beside=self._where(),
            is_usable=self._is_usable,
            patience_s=patience_s,
            report=self._report,
        )

    async def _find_room(self, member: Member) -> Room:
        return (await self._reserve([member], 0.0))[member]

    async def _add(self, members: Sequence[Member], *, is_first_time: bool = False) -> None:
        """Reserve room for members and start them, workers first; all, or none is left."""
        rooms = await self._reserve(members, self._config.cluster.place_timeout_s)
        keepers = [Keeper(member, rooms[member], self._surroundings) for member in members]
        self._keepers = sorted(self._keepers + keepers, key=_order)
        try:
            workers = [k for k in keepers if k.member.role is not Role.ORCHESTRATOR]
            await self._launch_all(workers, may_fail=is_first_time)
            await self._launch_all([k for k in keepers if k.member.role is Role.ORCHESTRATOR])
        except BaseException:
            await self._take_out(keepers, grace_s=0.0)
            raise

    async def _launch_all(self, keepers: Sequence[Keeper], *, may_fail: bool = False) -> None:
        """Start members at once; the first that fails ends the attempt."""
        if keepers:
            self._report(f"starting {', '.join(keeper.member.label for keeper in keepers)}")
        tasks = [asyncio.create_task(self._launch(keeper, may_fail=may_fail)) for keeper in keepers]
        try:
            for finished in asyncio.as_completed(tasks):
                await finished
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _launch(self, keeper: Keeper, *, may_fail: bool) -> None:
        member = keeper.member
        try:
            await keeper.start()
        except PacelineError as error:
            is_required = self._config.orchestrator.require_drafter
            if not may_fail or member.role is not Role.DRAFTER or is_required:
                raise
            self._report(f"{member.label} is left out, sessions run without its drafts: {error}")
            await self._take_out([keeper], grace_s=0.0)
        else:
            assert keeper.placed is not None, "it has just been started"
            self._report(f"{member.label} is up at {keeper.placed.address}")

    def _launch_of(self, keeper: Keeper) -> Launch:
        member, room, before = keeper.member, keeper.room, keeper.placed
        assert room is not None, "it has a place"
        others = [
            other
            for other in self._keepers
            if other is not keeper
            and other.member.role is member.role
            and other.room is not None
            and other.room.node.address == room.node.address
        ]
        return Launch(
            config=self._directory.config_for(member),
            entry_point=self._entry_points[member.role],
            member=member,
            expose=self._expose,
            previous_port=None if before is None else int(before.address.rpartition(":")[2]),
            is_first=not any(k.placed or k.member.index < member.index for k in others),
        )

    # --- scaling ----------------------------------------------------------------------------

    async def scale(self, desired: Mapping[Role, int]) -> str:
        """Bring the roles that are named to so many members while serving; says what was done.

        New members come first, all or none; then those that are too many are withdrawn from
        routing, their sessions get `cluster.drain_grace_s` to end and are moved, and they are
        stopped and their room given back. One call at a time, the others wait.

        Raises `InvalidArgumentError` naming the limit, `PlacementError` with the numbers when the
        cluster lacks room, and a service's own error; the deployment is then as it was before.
        """
        check_replicas(self._config, desired)
        async with self._scaling:
            todo = changes(self._config, desired, (k.member for k in self._keepers))
            if todo.add:
                await self._add(todo.add)
                await self._directory.announce()
                for keeper in self._keepers:
                    keeper.supervise()
            leaving = [k for k in self._keepers if k.member in todo.remove]
            if leaving:
                self._report(f"draining {_labels(k.member for k in leaving)}")
                await self._take_out(leaving, grace_s=self._config.cluster.drain_grace_s)
                self._report(f"stopped {_labels(k.member for k in leaving)}")
            done = [
                f"{verb} {_labels(members)}"
                for verb, members in (("started", todo.add), ("stopped", todo.remove))
                if members
            ]
            return "; ".join(done) or "nothing to do"

    async def _take_out(self, keepers: Sequence[Keeper], *, grace_s: float) -> None:
        """Withdraw members from routing, drain them, stop them, and give their room back."""
        for keeper in keepers:
            keeper.is_leaving = True
            await keeper.stop_supervising()
        await self._directory.announce(grace_s)
        await asyncio.gather(*(keeper.stop(grace_s) for keeper in keepers))
        self._keepers = [keeper for keeper in self._keepers if keeper not in keepers]

    async def reload(self, wanted: Config) -> str:
        """Bring the numbers of replicas to those of another configuration; see `scale`.

        Whatever else differs needs a restart, which the answer says.
        """
        done = await self.scale(replicas_of(wanted))
        others = other_differences(self._config, wanted)
        return f"{done}; not applied until a restart: {', '.join(others)}" if others else done

    # --- stopping ---------------------------------------------------------------------------

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Take everything down: the orchestrators first, so that running answers may end for
        `grace_s`, then the workers, their room, and the Ray that was started here. Idempotent;
        bounded by twice `grace_s` and a few seconds.
        """
        await self._control.stop()
        keepers, self._keepers = self._keepers, []
        await asyncio.gather(*(keeper.stop_supervising() for keeper in keepers))
        for last in (False, True):
            await asyncio.gather(
                *(
                    keeper.stop(grace_s)
                    for keeper in keepers
                    if (keeper.member.role is not Role.ORCHESTRATOR) is last
                )
            )
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(ConnectionError):
                connection.close()


def _order(keeper: Keeper) -> tuple[int, int]:
    return list(Role).index(keeper.member.role), keeper.member.index


def _labels(members: Iterable[Member]) -> str:
    return ", ".join(member.label for member in members)
