"""A service inside a Ray actor: `ServiceHost` runs in the actor's process and starts the service's
gRPC server there; `HostedService` is the driver's end of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from orchestrator.cluster_launch import (
    LOOPBACK,
    WILDCARD_HOSTS,
    Launch,
    Placed,
    with_listen,
    with_metrics_listen,
)
from orchestrator.cluster_members import Member
from orchestrator.worker_set import WorkerSet
from paceline import errors
from paceline.errors import PacelineError, StartupError
from paceline.logs import setup_logging
from paceline.openmp import of_shared_cpus
from paceline.waiting import within

STOP_MARGIN_S = 2.0
# Closing links to workers that have died takes a moment.
DRAIN_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way out of an actor.

    Ray would wrap a raised one, and an error whose constructor does not take its own `args` does
    not survive pickling; so it travels as its parts.
    """

    class_name: str
    message: str
    state: Mapping[str, Any]
    trace: str
    """Empty for errors that Paceline raises on purpose."""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The parts of an error that is being handled."""
        if isinstance(error, PacelineError):
            return cls(type(error).__name__, str(error), dict(vars(error)), trace="")
        return cls(
            StartupError.__name__,
            f"{type(error).__name__}: {error}",
            {},
            trace="".join(traceback.format_exception(error)),
        )

    def error(self) -> PacelineError:
        """The error itself: same class, message and attributes."""
        found = getattr(errors, self.class_name, PacelineError)
        error: PacelineError = found.__new__(found, self.message)
        vars(error).update(self.state)
        if self.trace:
            error.__cause__ = RuntimeError(self.trace)
        return error


class ServiceHost:
    """The actor. All methods are async, so that one that waits holds up no other."""

    def __init__(self) -> None:
        self._service: Any = None
        self._ended = asyncio.Event()

    async def start(self, launch: Launch) -> Placed | Failure:
        """Start the service; its server and engine live in this process from here on."""
        _own_devices(launch.member)
        if launch.shares_cpus:
            os.environ.update(of_shared_cpus(os.environ))
        node = ray.util.get_node_ip_address()
        try:
            config = with_metrics_listen(with_listen(launch, node), node, expose=launch.expose)
            setup_logging(config.telemetry.logs.level, config.telemetry.logs.format)
            module_name, _, function = launch.entry_point.partition(":")
            start = getattr(importlib.import_module(module_name), function)
            self._service = await start(config)
        except Exception as error:
            return Failure.of(error)
        host, _, port = self._service.address.rpartition(":")
        if host in WILDCARD_HOSTS:
            host = node if launch.expose else LOOPBACK
        return Placed(launch.member, f"{host}:{port}", node, os.getpid())

    async def update_workers(self, workers: WorkerSet, grace_s: float) -> None:
        """Tell an orchestrator which workers there are; returns when the others are drained."""
        if self._service is not None:
            await self._service.update_workers(workers, grace_s=grace_s)

    async def stop(self, grace_s: float) -> None:
        """Let running work end for at most `grace_s`, then end the service."""
        service, self._service = self._service, None
        if service is not None:
            await service.stop(grace_s)
        self._ended.set()

    async def wait(self) -> str:
        """Until the service has ended, and why. An actor's death raises in the caller."""
        ended = asyncio.ensure_future(self._ended.wait())
        own_end = getattr(self._service, "wait", None)
        if own_end is None:
            await ended
            return "stopped"
        by_itself = asyncio.ensure_future(own_end())
        await asyncio.wait({ended, by_itself}, return_when=asyncio.FIRST_COMPLETED)
        if self._ended.is_set():
            by_itself.cancel()
            return "stopped"
        ended.cancel()
        error = by_itself.exception()
        return (
            "its service ended by itself" if error is None else f"{type(error).__name__}: {error}"
        )


def _own_devices(member: Member) -> None:
    """Make the process see what its member reserved, before a library looks.

    Ray sets one thread for an actor of less than one CPU, but such a share says where the actor may
    be placed; `model.threads` says how many threads it uses. Whole CPUs stay the limit they are.
    Ray shows every GPU to an actor that reserved none; it must not take what Ray believes free.
    """
    if member.num_cpus < 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        del os.environ["OMP_NUM_THREADS"]
    if member.num_gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


class HostedService:
    """The driver's end of one member's actor."""

    def __init__(self, member: Member, *, namespace: str, strategy: Any) -> None:
        self.member = member
        self._namespace = namespace
        self._strategy = strategy
        self._actor: Any = None

    async def launch(self, launch: Launch, *, timeout_s: float) -> Placed:
        """Create the actor and start its service.

        Raises the service's own error, or `StartupError` when the process dies or takes too long;
        then no actor is left.
        """
        try:
            return await self._launch(launch, timeout_s=timeout_s)
        except BaseException:
            await self.kill()
            raise

    async def _launch(self, launch: Launch, *, timeout_s: float) -> Placed:
        member = self.member
        try:
            self._actor = (
                ray.remote(ServiceHost)
                .options(
                    name=member.actor_name,
                    namespace=self._namespace,
                    num_cpus=member.num_cpus,
                    num_gpus=member.num_gpus,
                    resources=dict(member.resources),
                    accelerator_type=member.accelerator_type,
                    scheduling_strategy=self._strategy,
                    # A restarted actor would have no service: the supervisor restarts it.
                    max_restarts=0,
                )
                .remote()
            )
            outcome = await within(_result(self._actor.start.remote(launch)), timeout_s)
        except asyncio.TimeoutError as error:
            raise StartupError(
                f"{member.label} did not start within {timeout_s:g} s (cluster.start_timeout_s)"
            ) from error
        except RayError as error:
            raise StartupError(f"{member.label} died while starting: {reason_of(error)}") from error
        except ValueError as error:
            raise StartupError(f"{member.label}: {_first_line(error)}") from error
        if isinstance(outcome, Failure):
            raise outcome.error()
        placed: Placed = outcome
        return placed

    async def ended(self) -> str:
        """Until the service has ended or its process is gone, and why."""
        if self._actor is None:
            return "stopped"
        try:
            reason: str = await _result(self._actor.wait.remote())
        except RayError as error:
            return reason_of(error)
        return reason

    async def update_workers(self, workers: WorkerSet, *, grace_s: float) -> None:
        """Tell the orchestrator which workers there are; returns when the others are drained.

        One that does not answer in time, or dies, learns it when its supervisor starts it again.
        """
        if self._actor is None:
            return
        with contextlib.suppress(RayError, asyncio.TimeoutError):
            told = _result(self._actor.update_workers.remote(workers, grace_s))
            await within(told, grace_s + DRAIN_MARGIN_S)

    async def stop(self, grace_s: float) -> None:
        """End the service, then its process. Takes at most `grace_s` and a small margin."""
        if self._actor is None:
            return
        with contextlib.suppress(RayError, asyncio.TimeoutError):
            stopped = _result(self._actor.stop.remote(grace_s))
            await within(stopped, grace_s + STOP_MARGIN_S)
        await self.kill()

    async def kill(self) -> None:
        """End the process and wait until Ray has noticed, so that the name is free again."""
        actor, self._actor = self._actor, None
        if actor is None:
            return
        gone = _result(actor.wait.remote())
        ray.kill(actor)
        with contextlib.suppress(RayError, asyncio.TimeoutError):
            await within(gone, STOP_MARGIN_S)


async def _result(reference: Any) -> Any:
    """A coroutine of an object reference, which is awaitable but is no coroutine."""
    return await reference


def reason_of(error: RayError) -> str:
    """What Ray knows about an actor's end, without its advice, in one line."""
    text = " ".join(str(error).split())
    for start, end in (("Worker exit detail: ", " Some common causes"), ("because it ", ". ")):
        _, found, rest = text.partition(start)
        if found:
            return rest.partition(end)[0].rstrip(".")
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
