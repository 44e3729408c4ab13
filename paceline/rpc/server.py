"""The shell around a service's servicers: binding, health, reflection, TLS, tokens, draining."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.config import GrpcConfig, split_address
from paceline.errors import ConfigError
from paceline.rpc.auth import TokenInterceptor
from paceline.rpc.credentials import Credentials
from paceline.rpc.handlers import InFlightInterceptor, StatusInterceptor
from paceline.rpc.health_service import HealthServicer
from paceline.rpc.limits import server_options
from paceline.waiting import within

_LOGGER = logging.getLogger(__name__)

_FAREWELL_S = 0.5
"""In which clients acknowledge that the connection ends, and have read what was on its way: who is
cut off loses it. Health watchers take all of it."""
OVERALL = ""
"""The health service's name for the server as a whole."""


class ServerShell:
    """One gRPC server of one process.

    `services` maps each service's full proto name to what adds its servicer, e.g.
    `{"paceline.v1.Drafter": partial(add_DrafterServicer_to_server, servicer)}`. `draining` is set
    when `stop` begins: servicers that share it end their links by themselves.
    """

    def __init__(
        self,
        listen: str,
        services: Mapping[str, Callable[[grpc.aio.Server], object]],
        *,
        credentials: Credentials,
        limits: GrpcConfig,
        draining: asyncio.Event | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
    ) -> None:
        self.draining = asyncio.Event() if draining is None else draining
        self._listen = listen
        self._services = dict(services)
        self._credentials = credentials
        self._limits = limits
        self._interceptors = tuple(interceptors)
        self._in_flight = InFlightInterceptor()
        self._health = HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._stop_lock = asyncio.Lock()
        self._address = ""

    @property
    def address(self) -> str:
        """`HOST:PORT` with the real port; empty before `start`."""
        return self._address

    async def start(self) -> None:
        """Bind and serve. Health says NOT_SERVING until `set_serving`.

        Raises `ConfigError` when the address cannot be bound or the credentials are of no use.
        """
        host, port = _split(self._listen)
        await asyncio.to_thread(_check_bindable, self._listen, host, port)
        server_credentials = self._credentials.server_credentials()
        auth = (
            () if self._credentials.token is None else (TokenInterceptor(self._credentials.token),)
        )
        server = grpc.aio.server(
            # The first is the outermost: it also turns what the others raise into statuses.
            interceptors=(StatusInterceptor(), *auth, self._in_flight, *self._interceptors),
            options=server_options(self._limits),
        )
        for add_servicer in self._services.values():
            add_servicer(server)
        await self.set_serving(serving=False)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            bound = (
                server.add_insecure_port(self._listen)
                if server_credentials is None
                else server.add_secure_port(self._listen, server_credentials)
            )
        except RuntimeError as error:
            raise ConfigError(f"listen: cannot bind {self._listen}: {error}") from error
        await server.start()
        self._server = server
        self._address = f"{_bracketed(host)}:{bound}"
        self._warn_if_open(host, encrypted=server_credentials is not None)

    async def set_serving(self, *, serving: bool) -> None:
        """Tell health checks, of the server and of each service."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in (OVERALL, *self._services):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Say NOT_SERVING, refuse new calls, let running ones end within `grace_s`, cancel the
        rest. Idempotent; of two calls the shorter grace holds. Health watchers hear of the stop and
        hold it up no longer than that takes.
        """
        await self._health.enter_graceful_shutdown()
        self.draining.set()
        self._in_flight.refuse_new()
        farewell_s = None
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._wait_quiet(), grace_s)
            farewell_s = _FAREWELL_S
        # Two stops of one grpc server at a time end in a segmentation fault.
        async with self._stop_lock:
            server, self._server = self._server, None
            if server is not None:
                await server.stop(farewell_s)

    async def _wait_quiet(self) -> None:
        """Until no call is in flight and every health watcher has heard of the stop."""
        await self._in_flight.wait_idle()
        await self._health.wait_told()

    def _warn_if_open(self, host: str, *, encrypted: bool) -> None:
        if _is_loopback(host) or (encrypted and self._credentials.token is not None):
            return
        missing = [
            name
            for name, given in (("TLS", encrypted), ("a token", bool(self._credentials.token)))
            if not given
        ]
        _LOGGER.warning(
            "listening on %s, beyond this machine, without %s", self._address, " and ".join(missing)
        )


def _split(listen: str) -> tuple[str, int]:
    try:
        return split_address(listen)
    except ValueError as error:
        raise ConfigError(f"listen: {error}") from error


def _check_bindable(listen: str, host: str, port: int) -> None:
    """Raise `ConfigError` saying why an address cannot be bound; grpc itself does not tell.

    It would also be content with one free address of a name that has several.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"listen: unknown host in {listen}: {error.strerror}") from error
    if port == 0:
        return
    for family, kind, protocol, _, address in infos:
        with socket.socket(family, kind, protocol) as probe:
            # As grpc does: a port in TIME_WAIT is free, one that another server listens on is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen()
            except OSError as error:
                reason = _bind_problem(error)
                raise ConfigError(f"listen: {listen} {reason}") from error


def _bind_problem(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "is already in use"
        case errno.EACCES:
            return "needs a privilege that this process lacks"
        case errno.EADDRNOTAVAIL:
            return "is not an address of this machine"
        case _:
            return f"cannot be bound: {os.strerror(error.errno or 0)}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
