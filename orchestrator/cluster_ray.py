"""The connection to Ray: join a running cluster or start a local one, reserve room for the actors,
and undo exactly that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state as ray_state
from ray._private import worker as ray_worker
from ray._private.utils import read_ray_address
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.cluster_members import Member, Node, describe_shortage
from paceline.errors import ConfigError, PlacementError, StartupError

CONNECT_TIMEOUT_S = 3.0
HTTP2_SETTINGS = b"\x04"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + HTTP2_SETTINGS + bytes(5)
TLS_ALERT = b"\x15"
# Ray counts in whole seconds, and a thread that waits cannot be cancelled.
RESERVE_SLICE_S = 1.0
# A longer wait for room is worth a line: this long is what another job takes to give it back.
QUIET_WAIT_S = 5.0
LEFTOVER_TIMEOUT_S = 10.0
# Ray takes a moment to notice that a program was killed.
OWNER_TIMEOUT_S = 3.0
# Actors exchange addresses alone; without a limit Ray takes a third of the memory.
OBJECT_STORE_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Connection:
    """How this process is connected to Ray."""

    started: bool
    """Ray runs because of us, and ends with us."""
    attached: bool
    """We called `ray.init`; otherwise the program was connected already and stays so."""

    def close(self) -> None:
        """Leave a cluster that was joined; stop one that was started, and wait for its end."""
        if self.attached:
            ray.shutdown(wait_for_processes=self.started)
            ray_worker._worker_logs_enabled = True


def connect(ray_address: str | None, *, namespace: str, members: Sequence[Member]) -> Connection:
    """Join the cluster at `ray_address`, or one that `ray start` left here, or start a local one.

    "local" always starts one, "auto" never does. A running cluster is joined without resource
    arguments, which Ray would refuse; a local one gets at least the CPUs that `members` ask for,
    because a share of a CPU is bookkeeping and not a core.

    Raises `StartupError` within seconds when nothing answers at the address.
    """
    if ray.is_initialized():
        return Connection(started=False, attached=False)
    address = _find(ray_address)
    with _own_signal_handlers():
        if address is None:
            _init(
                address="local",
                namespace=namespace,
                include_dashboard=False,
                num_cpus=max(os.cpu_count() or 1, math.ceil(sum(m.num_cpus for m in members))),
                object_store_memory=OBJECT_STORE_BYTES,
            )
        else:
            _init(address=address, namespace=namespace)
    # Ray's own messages about dead workers would mix with ours: `Cluster` reports them in one line.
    ray_worker._worker_logs_enabled = False
    return Connection(started=address is None, attached=True)


def _init(**arguments: Any) -> None:
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **arguments)
    except (ConnectionError, RuntimeError, ValueError) as error:
        # Some of Ray's failures come after half a connection.
        ray.shutdown()
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StartupError(f"Ray at {arguments['address']}: {reason}") from error
    except SystemExit as error:
        # What Ray makes of a SIGTERM in the meantime.
        ray.shutdown()
        raise StartupError("interrupted while connecting to Ray") from error


def _find(ray_address: str | None) -> str | None:
    """The running cluster to join; None to start one."""
    if ray_address == "local":
        return None
    if ray_address in (None, "auto"):
        found = read_ray_address()
        if found and _answers(found):
            return str(found)
        if ray_address == "auto":
            raise StartupError("Ray address auto: no cluster runs here (start one: ray start)")
        return None
    if "://" in ray_address:
        raise ConfigError(
            f"cluster.ray_address: {ray_address}: Ray's client protocol cannot supervise actors; "
            "run on a node of the cluster and give HOST:PORT"
        )
    if not _answers(ray_address):
        raise StartupError(
            f"no Ray cluster answers at {ray_address} "
            "(from cluster.ray_address or the environment variable RAY_ADDRESS)"
        )
    return ray_address


def _answers(address: str) -> bool:
    """Whether a gRPC server answers, as Ray's does: it greets a new HTTP/2 connection with its
    settings. Anything else that listens would keep `ray.init` waiting for minutes. (A server that
    wants TLS answers with an alert; whether it is Ray then shows in `ray.init`.)
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S) as peer:
            peer.sendall(HTTP2_GREETING)
            reply = peer.recv(9)
    except (OSError, ValueError, OverflowError):
        return False
    return reply[3:4] == HTTP2_SETTINGS or reply[:1] == TLS_ALERT


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep the program's SIGTERM handler: `ray.init` puts one that exits without our clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def live_nodes() -> tuple[Node, ...]:
    """The cluster's live nodes."""
    available = ray_state.available_resources_per_node()
    return tuple(
        Node(
            address=node["NodeManagerAddress"],
            total=_countable(node["Resources"]),
            available=_countable(available.get(node["NodeID"], {})),
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def _countable(resources: Mapping[str, float]) -> dict[str, float]:
    """Without memory, the marks that name nodes, and the shadows of placement groups."""
    return {
        name: amount
        for name, amount in sorted(resources.items())
        if name not in ("memory", "object_store_memory")
        and not name.startswith(("node:", "bundle_group_"))
        and "_group_" not in name
    }


class Reservation:
    """Room for every member, taken all at once or not at all; a restarted actor finds it again."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        # Ray refuses empty bundles; a member that asks for nothing needs no room.
        self._bundled = [member for member in members if member.demand]
        self._group: Any = None

    async def take(self, timeout_s: float, *, report: Callable[[str], None]) -> None:
        """Wait for room for at most `timeout_s`: another job may be giving it back, nodes may be
        joining. `report` is told once what is missing.

        Raises `PlacementError`, listing what is needed and what is available.
        """
        if not self._bundled:
            return
        try:
            self._group = placement_group([m.demand for m in self._bundled], strategy="PACK")
        except ValueError as error:
            raise ConfigError(f"cluster: {error}") from error
        clock = asyncio.get_running_loop().time
        started = clock()
        told = False
        while not await asyncio.to_thread(self._group.wait, RESERVE_SLICE_S):
            waited_s = clock() - started
            if waited_s >= timeout_s:
                self.release()
                raise PlacementError(describe_shortage(self._members, live_nodes()))
            if waited_s >= QUIET_WAIT_S and not told:
                told = True
                shortage = describe_shortage(self._members, live_nodes())
                report(f"waiting for room, up to {timeout_s:g} s in all: {shortage}")

    def strategy(self, member: Member) -> Any:
        """Ray's scheduling strategy for the member."""
        if member not in self._bundled:
            return "DEFAULT"
        return PlacementGroupSchedulingStrategy(
            placement_group=self._group,
            placement_group_bundle_index=self._bundled.index(member),
        )

    def release(self) -> None:
        """Give the room back. Idempotent."""
        if self._group is not None and ray.is_initialized():
            remove_placement_group(self._group)
        self._group = None


async def clear_leftovers(members: Sequence[Member], *, namespace: str) -> None:
    """Remove actors of our names whose program has ended.

    Raises `StartupError` when a live program owns one: two deployments in one namespace would
    answer to the same names.
    """
    names = {member.actor_name for member in members}
    now = asyncio.get_running_loop().time
    believe_after = now() + OWNER_TIMEOUT_S
    deadline = believe_after + LEFTOVER_TIMEOUT_S
    while leftovers := _living_actors(names, namespace):
        for name, actor in leftovers.items():
            owner = _owner_of(actor)
            if owner is not None and now() < believe_after:
                continue
            if owner is not None:
                raise StartupError(
                    f"actor {name} of namespace {namespace!r} belongs to a program that is running "
                    f"(pid {owner['DriverPid']} on {owner['DriverIPAddress']}): stop that one, or "
                    "set another cluster.namespace"
                )
            ray.kill(actor)
        if now() > deadline:
            raise StartupError(f"leftover actors do not end: {', '.join(sorted(leftovers))}")
        await asyncio.sleep(0.1)


def _living_actors(names: Set[str], namespace: str) -> dict[str, Any]:
    """Handles of the actors that have these names."""
    living = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == namespace and actor["name"] in names:
            # It may end between being listed and being looked up.
            with contextlib.suppress(ValueError):
                living[actor["name"]] = ray.get_actor(actor["name"], namespace=namespace)
    return living


def _owner_of(actor: Any) -> Mapping[str, Any] | None:
    """The job whose program made the actor, if that program still runs."""
    job_id = ray_state.actors(actor._actor_id.hex()).get("JobID")
    running = (job for job in ray_state.jobs() if not job["IsDead"])
    return next((job for job in running if job["JobID"] == job_id), None)
