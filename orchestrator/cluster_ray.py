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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray._private import services
from ray._private import state as ray_state
from ray._private import worker as ray_worker
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)
from ray._private.utils import read_ray_address

from orchestrator.cluster_members import Member, Node, is_actor_name
from paceline.errors import ConfigError, StartupError

CONNECT_TIMEOUT_S = 3.0
HTTP2_SETTINGS = b"\x04"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + HTTP2_SETTINGS + bytes(5)
TLS_ALERT = b"\x15"
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
    return Connection(started=address is None, attached=True)


def join(ray_address: str | None, *, namespace: str) -> Connection:
    """Join a running cluster, by its address or as the only one on this machine.

    Raises `StartupError` when there is none, or several to choose from.
    """
    address = None if ray_address == "local" else _find(ray_address)
    if address is None:
        running = sorted(services.find_gcs_addresses())
        if len(running) != 1:
            found = f"several run here ({', '.join(running)})" if running else "none runs here"
            raise StartupError(f"which Ray cluster? {found}: give its HOST:PORT (--ray-address)")
        (address,) = running
    with _own_signal_handlers():
        _init(address=address, namespace=namespace)
    return Connection(started=False, attached=True)


def address() -> str:
    """HOST:PORT of the cluster that this process is connected to."""
    return str(ray.get_runtime_context().gcs_address)


def _init(**arguments: Any) -> None:
    # Ray's own messages about dead workers and nodes would mix with ours, from the first moment on
    # also those of before: `Cluster` reports them in one line.
    ray_worker._worker_logs_enabled = False
    logging.getLogger("ray").setLevel(logging.ERROR)
    if _asks_for_token(arguments["address"]):
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
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


def _asks_for_token(address: str) -> bool:
    """Whether a Ray of this machine takes this user's token only, as one started by `up` does.

    Ray itself sends the token unasked only to a cluster that it found by itself, and a cluster
    without tokens refuses callers that send one.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if f"--gcs-address={address}" in process.cmdline():
                return process.environ().get("RAY_AUTH_MODE", "").lower() == "token"
    return False


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
            "(from --ray-address, cluster.ray_address or the environment variable RAY_ADDRESS)"
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
            node_id=node["NodeID"],
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def is_alive(node_id: str) -> bool:
    """Whether a node is part of the cluster now, as far as Ray has noticed."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def _countable(resources: Mapping[str, float]) -> dict[str, float]:
    """Without memory, the marks that name nodes, and the shadows of placement groups."""
    return {
        name: amount
        for name, amount in sorted(resources.items())
        if name not in ("memory", "object_store_memory")
        and not name.startswith(("node:", "bundle_group_"))
        and "_group_" not in name
    }


async def clear_leftovers(namespace: str) -> None:
    """Remove actors of our names whose program has ended.

    Raises `StartupError` when a live program owns one: two deployments in one namespace would
    answer to the same names.
    """
    now = asyncio.get_running_loop().time
    believe_after = now() + OWNER_TIMEOUT_S
    deadline = believe_after + LEFTOVER_TIMEOUT_S
    while leftovers := _living_actors(namespace):
        for name, actor in leftovers.items():
            if actor is None:
                continue
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


def _living_actors(namespace: str) -> dict[str, Any]:
    """Handles of the actors of a deployment, however many replicas it had; None for one of whose
    program Ray has begun to clear away what there was.
    """
    living: dict[str, Any] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == namespace and is_actor_name(actor["name"]):
            living[actor["name"]] = None
            try:
                # Ray 2.60 asserts where the actor's class is gone before the actor is.
                with contextlib.suppress(AssertionError):
                    living[actor["name"]] = ray.get_actor(actor["name"], namespace=namespace)
            except ValueError:  # it has ended since it was listed
                del living[actor["name"]]
    return living


def _owner_of(actor: Any) -> Mapping[str, Any] | None:
    """The job whose program made the actor, if that program still runs."""
    job_id = ray_state.actors(actor._actor_id.hex()).get("JobID")
    running = (job for job in ray_state.jobs() if not job["IsDead"])
    return next((job for job in running if job["JobID"] == job_id), None)
