"""Keeps one member of a deployment running: where it was, or elsewhere when its node is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orchestrator.cluster_actors import HostedService
from orchestrator.cluster_launch import Launch, Placed
from orchestrator.cluster_members import Member
from orchestrator.cluster_ray import is_alive
from orchestrator.cluster_reservation import Room
from paceline.errors import PacelineError, PlacementError, StartupError

logger = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S = 0.5
MAX_RESTART_DELAY_S = 30.0
# An actor that lived this long is no part of a crash loop.
STEADY_S = 60.0
# How often room is looked for after a node was lost, and whether a node is there while one starts.
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a keeper needs of the deployment that its member belongs to."""

    namespace: str
    start_timeout_s: float
    launch_of: Callable[[Keeper], Launch]
    """How the member is to be started, as things are now."""
    find_room: Callable[[Member], Awaitable[Room]]
    """Room on the nodes that there are now. Raises `PlacementError`."""
    on_change: Callable[[], Awaitable[None]]
    """The member runs, runs elsewhere, or is not to be waited for at its address."""
    report: Callable[[str], None]


class Keeper:
    """One member, from the room it is given until `stop`.

    An actor that dies is made anew in the same room (its resources stay reserved) and at the same
    port, after 0.5 s, doubling to 30 s while it keeps dying, without end. If its node is gone, its
    room is too: another is looked for every second until there is one.
    """

    def __init__(self, member: Member, room: Room, surroundings: Surroundings) -> None:
        self.member = member
        self.placed: Placed | None = None
        """Where it runs, or will be back; None while it has no node or has never run."""
        self.is_leaving = False
        self._room: Room | None = room
        self._surroundings = surroundings
        self._service = self._host(room)
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def room(self) -> Room | None:
        """None while it waits for room."""
        return self._room

    @property
    def service(self) -> HostedService:
        """The driver's end of its actor."""
        return self._service

    def _host(self, room: Room) -> HostedService:
        return HostedService(
            self.member, namespace=self._surroundings.namespace, strategy=room.strategy
        )

    async def start(self) -> None:
        """Start it for the first time. Raises the service's own error."""
        await self._launch()

    def supervise(self) -> None:
        """Start it again, from now on, whenever it ends."""
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise())

    async def stop_supervising(self) -> None:
        """Whatever it does from now on is left alone. Idempotent."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)

    async def stop(self, grace_s: float) -> None:
        """End it for good within `grace_s` and a small margin, and give its room back."""
        await self.stop_supervising()
        await self._service.stop(grace_s)
        self._release()

    def _release(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.release()

    async def _launch(self) -> None:
        """Start the actor, unless its node goes meanwhile, which Ray would wait out."""
        launching = asyncio.create_task(
            self._service.launch(
                self._surroundings.launch_of(self), timeout_s=self._surroundings.start_timeout_s
            )
        )
        losing = asyncio.create_task(self._node_gone())
        try:
            await asyncio.wait({launching, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not launching.done():
                raise StartupError(f"{self.member.label}: its node is gone")
            self.placed = launching.result()
        finally:
            launching.cancel()
            losing.cancel()
            await asyncio.gather(launching, losing, return_exceptions=True)

    async def _node_gone(self) -> None:
        while await self._has_node():  # noqa: ASYNC110  (Ray has no event for it)
            await asyncio.sleep(LOOK_S)

    async def _has_node(self) -> bool:
        return self._room is not None and await asyncio.to_thread(is_alive, self._room.node.node_id)

    async def _supervise(self) -> None:
        clock = asyncio.get_running_loop().time
        delay_s = FIRST_RESTART_DELAY_S
        while True:
            started = clock()
            reason = await self._reason()
            if clock() - started > STEADY_S:
                delay_s = FIRST_RESTART_DELAY_S
            self._surroundings.report(f"{self.member.label} is gone: {reason}")
            delay_s = await self._restart(delay_s)

    async def _reason(self) -> str:
        """Why it has ended, once it has."""
        try:
            return await self._service.ended()
        except Exception as error:
            logger.exception("%s cannot be followed", self.member.label)
            return f"{type(error).__name__}: {error}"

    async def _restart(self, delay_s: float) -> float:
        """Try until it runs; returns the delay before the next try should it die again."""
        report, label = self._surroundings.report, self.member.label
        while True:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_RESTART_DELAY_S)
            try:
                await self._service.kill()
                if not await self._has_node():
                    await self._move()
                await self._launch()
                assert self.placed is not None, "it has just been launched"
                report(f"{label} is back at {self.placed.address}")
                await self._surroundings.on_change()
            except Exception as error:  # Ray itself may be away for a while
                if not isinstance(error, PacelineError):
                    logger.exception("%s could not be started again", label)
                report(f"{label} did not come back, next try in {delay_s:g} s: {error}")
            else:
                return delay_s

    async def _move(self) -> None:
        """Leave the node that is gone, and wait for room on another."""
        report, label = self._surroundings.report, self.member.label
        report(f"{label} has lost its node, looking for room on another")
        self._release()
        self.placed = None
        await self._surroundings.on_change()
        told = ""
        while True:
            try:
                self._room = await self._surroundings.find_room(self.member)
                break
            except PlacementError as error:
                if str(error) != told:
                    told = str(error)
                    report(f"{label} waits for room: {told}")
            await asyncio.sleep(LOOK_S)
        self._service = self._host(self._room)
