"""Room on the cluster's nodes, one placement group a member: taken all or none, left singly."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from orchestrator.cluster_members import Member, Node, describe_shortage
from orchestrator.cluster_placement import assign
from orchestrator.cluster_ray import live_nodes
from paceline.errors import ConfigError, PlacementError

logger = logging.getLogger(__name__)

# Room that another job is just giving back counts; more patience would hide a real shortage.
RESERVE_TIMEOUT_S = 5.0
# A longer wait for room is worth a line.
QUIET_WAIT_S = 5.0
# Ray grants room that is there in milliseconds; else somebody else was quicker.
GRANT_TIMEOUT_S = 1.5
RETRY_S = (0.1, 0.5)
UNREACHABLE = (
    ". Left out: {} on other machines, since the services listen on loopback here"
    " (verifier.listen, drafter.listen, orchestrator.listen)"
)
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class Room:
    """A place on a node that is kept for one member, through its restarts, until `release`."""

    node: Node
    group: Any
    """None for a member that asks for nothing: it needs no room."""

    @property
    def strategy(self) -> Any:
        """Ray's scheduling strategy for the member's actor."""
        if self.group is None:
            return NodeAffinitySchedulingStrategy(self.node.node_id, soft=False)
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=0)

    def release(self) -> None:
        """Give the room back, and end what runs there."""
        if self.group is not None and ray.is_initialized():
            remove_placement_group(self.group)


async def reserve(
    members: Sequence[Member],
    *,
    beside: Mapping[Member, str],
    is_usable: Callable[[Node], bool],
    patience_s: float = RESERVE_TIMEOUT_S,
    report: Callable[[str], None] = logger.info,
) -> dict[Member, Room]:
    """Room for every member, or for none.

    The nodes are chosen here (`cluster_placement`) and then asked for; where another deployment
    was quicker everything is given back and tried again after a random moment, so that of two
    that start together one gets all. A longer wait is for nodes that join: `report` is told once,
    and Ray's autoscaler, if there is one, what to make room for. Raises `PlacementError` after
    `patience_s` with what is needed and what is available.
    """
    now = asyncio.get_running_loop().time
    started = now()
    deadline = started + patience_s
    asked = False
    try:
        while True:
            rooms, shortage = await _try(members, beside=beside, is_usable=is_usable)
            if rooms is not None:
                return rooms
            if now() >= deadline:
                raise PlacementError(shortage)
            if now() - started >= QUIET_WAIT_S and not asked:
                asked = True
                report(f"waiting for room, up to {patience_s:g} s in all: {shortage}")
                bundles = [dict(member.demand) for member in members if member.demand]
                await asyncio.to_thread(request_resources, bundles=bundles)
            await asyncio.sleep(random.uniform(*RETRY_S))
    finally:
        if asked and ray.is_initialized():
            # what has got its room is kept by it
            request_resources(bundles=[])


async def _try(
    members: Sequence[Member],
    *,
    beside: Mapping[Member, str],
    is_usable: Callable[[Node], bool],
) -> tuple[dict[Member, Room] | None, str]:
    """Room as the nodes are now, or None and what is missing."""
    there = await asyncio.to_thread(live_nodes)
    nodes = [node for node in there if is_usable(node)]
    chosen = assign(members, nodes, beside)
    if chosen is not None:
        rooms = {member: _ask(member, node) for member, node in chosen.items()}
        try:
            if await _granted(rooms.values()):
                return rooms, ""
        except BaseException:
            _release(rooms)
            raise
        _release(rooms)
    hint = UNREACHABLE.format(len(there) - len(nodes)) if len(nodes) < len(there) else ""
    return None, describe_shortage(members, nodes) + hint


def _ask(member: Member, node: Node) -> Room:
    if not member.demand:
        return Room(node, None)
    try:
        group = placement_group([member.demand], bundle_label_selector=[{NODE_LABEL: node.node_id}])
    except ValueError as error:
        raise ConfigError(f"cluster.{member.role.value}: {error}") from error
    return Room(node, group)


async def _granted(rooms: Any) -> bool:
    """Whether Ray grants all of them in time; they were all asked for before."""
    now = asyncio.get_running_loop().time
    deadline = now() + GRANT_TIMEOUT_S
    for room in rooms:
        left_s = max(0.0, deadline - now())
        if room.group is not None and not await asyncio.to_thread(room.group.wait, left_s):
            return False
    return True


def _release(rooms: Mapping[Member, Room]) -> None:
    for room in rooms.values():
        room.release()
