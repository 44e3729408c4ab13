"""How one member is started, and where it comes to listen."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from orchestrator.cluster_members import Member, Role
from paceline.config import Config

METRICS_PORTS = 64
"""Ports that a member may try for its metrics: more members than that share no machine."""
LOOPBACK = "127.0.0.1"
LOOPBACK_HOSTS = (LOOPBACK, "localhost", "[::1]")
WILDCARD_HOSTS = ("", "0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a member runs."""

    member: Member
    address: str
    """HOST:PORT that others dial."""
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class Launch:
    """What an actor needs to know to start its service."""

    config: Config
    entry_point: str
    """`module:function`, an async function from `Config` to a running service."""
    member: Member
    expose: bool
    """The cluster has several machines: listen where the others can reach it."""
    previous_port: int | None = None
    """Where the member listened before it was restarted."""
    is_first: bool = True
    """No other replica of the role is on this machine, so that the configured port is its own."""

    @property
    def shares_cpus(self) -> bool:
        """Whether drafter and verifier compute on the CPUs of one machine, as far as is known."""
        roles = (self.config.cluster.drafter, self.config.cluster.verifier)
        has_gpus = any(role.num_gpus for role in roles)
        return self.config.drafter.has_model and not self.expose and not has_gpus


def with_listen(launch: Launch, node: str) -> Config:
    """The configuration with the address that this member listens on.

    The first replica on a machine takes the configured port, a restarted one the port it had, any
    other a free one. A worker whose port is taken takes a free one too, since the orchestrators
    are told; an orchestrator's port is what clients know, and it being taken is an error.
    A loopback address becomes the node's when the cluster has several machines.
    """
    role = launch.member.role
    section = getattr(launch.config, role.value)
    host, _, port_text = section.listen.rpartition(":")
    if launch.expose and host in LOOPBACK_HOSTS:
        host = node
    if launch.previous_port is not None:
        port = launch.previous_port
    elif launch.is_first:
        port = int(port_text)
    else:
        port = 0
    if role is not Role.ORCHESTRATOR and not _is_free(host, port):
        port = 0
    section = section.model_copy(update={"listen": f"{host}:{port}"})
    return launch.config.model_copy(update={role.value: section})


def with_metrics_listen(config: Config, node: str, *, expose: bool) -> Config:
    """The configuration with the address of the member's metrics.

    Members that share a machine take the first free ports from the configured one on.
    """
    metrics = config.telemetry.metrics
    if metrics.listen is None:
        return config
    host, _, port = metrics.listen.rpartition(":")
    if expose and host in LOOPBACK_HOSTS:
        host = node
    changes = {"listen": f"{host}:{port}", "port_tries": max(metrics.port_tries, METRICS_PORTS)}
    metrics = metrics.model_copy(update=changes)
    telemetry = config.telemetry.model_copy(update={"metrics": metrics})
    return config.model_copy(update={"telemetry": telemetry})


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
        return True
