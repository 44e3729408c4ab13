"""The three services, and other helpers, as processes of their own that never outlive a benchmark.

Each is started as an operator would, told where to listen by its configuration file, awaited, and
stopped by its id on every way out.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml

from paceline.client import Client
from paceline.config import DrafterConfig, parse_config
from paceline.errors import StartupError
from paceline.openmp import of_shared_cpus
from paceline.rpc.health import wait_serving
from paceline.waiting import within

T = TypeVar("T")

LOOPBACK = "127.0.0.1:0"
START_TIMEOUT_S = 600.0
"""A large model takes minutes to load."""
STOP_TIMEOUT_S = 15.0
"""From SIGTERM to SIGKILL; a service gives its running calls 10 s."""
_KEPT_LINES = 20


async def all_or_none(*works: Coroutine[Any, Any, T]) -> list[T]:
    """Their results, at the same time; when one fails the others are cancelled before it is told.

    Otherwise one of them could still start a process when everything is being stopped.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


@dataclass
class Process:
    """A child process. Its standard error is read all the time; the last lines are kept."""

    name: str
    child: asyncio.subprocess.Process
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    address: str = ""
    _listening: asyncio.Event = field(default_factory=asyncio.Event)
    _reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self.child.pid

    async def wait_address(self) -> str:
        """Where the service listens. Raises `StartupError` with its last line if it ends first."""
        await within(self._listening.wait(), START_TIMEOUT_S)
        if not self.address:
            raise StartupError(f"{self.name} did not start: {self.last_line}")
        return self.address

    @property
    def last_line(self) -> str:
        """The last thing that it said; for a service that failed, why."""
        said = self.lines[-1] if self.lines else f"exit code {self.child.returncode}"
        return said.removeprefix("paceline: error: ")

    def start_reading(self) -> None:
        """Read standard error from now on."""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stderr is not None
        while line := await self.child.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            if not self.address and " listening on " in text:
                self.address = text.rpartition(" ")[2]
                self._listening.set()
            elif text:
                self.lines.append(text)
        await self.child.wait()
        self._listening.set()  # it never will

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when it is gone."""
        if self.child.returncode is None:
            self.child.terminate()
            try:
                await within(self.child.wait(), STOP_TIMEOUT_S)
            except asyncio.TimeoutError:
                self.child.kill()
        if self._reader is not None:
            await self._reader


class ProcessGroup:
    """Processes that end together: on leaving the context, and if this process is killed."""

    def __init__(self) -> None:
        self._cleanup = AsyncExitStack()
        self._guardian: asyncio.subprocess.Process | None = None
        self._folder = Path()

    async def __aenter__(self) -> ProcessGroup:
        await self._cleanup.__aenter__()
        self._folder = Path(tempfile.mkdtemp(prefix="paceline-bench-"))
        self._guardian = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "paceline.bench.guardian", str(self._folder)),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._cleanup.push_async_callback(self._dismiss_guardian)
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._cleanup.aclose()  # what a second Ctrl-C cuts short, the guardian does

    async def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        is_spoken_to: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `python ARGUMENTS`; `is_spoken_to` opens pipes to its input and output.

        `environment` is added to that of this process.
        """
        pipe = asyncio.subprocess.PIPE if is_spoken_to else asyncio.subprocess.DEVNULL
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is for the benchmark, which then stops the others
            limit=2**24,
        )
        process = Process(name, child)
        self._tell_guardian(f"+{child.pid}")
        self._cleanup.push_async_callback(self._stop, process)
        process.start_reading()
        return process

    async def start_service(self, module: str, document: Mapping[str, Any], label: str) -> Process:
        """Start `python -m MODULE -c FILE` and wait until its health says that it serves.

        Raises `ConfigError` for a wrong document, `StartupError` if the service does not start.
        """
        document = _with_port_tries(document)
        config = parse_config(dict(document), source=f"{label} of the benchmark")
        path = self._folder / f"{label}.yaml"
        path.write_text(yaml.safe_dump(dict(document)))
        arguments = ("-m", module, "-c", str(path), "--log-level", "warning")
        shares_cpus = "drafter" in document and _drafts_on_cpus(config.drafter)
        environment = of_shared_cpus(os.environ) if shares_cpus else {}
        process = await self.start(label, arguments, environment=environment)
        address = await process.wait_address()
        await wait_serving(address, security=config.security, timeout_s=START_TIMEOUT_S)
        return process

    async def stop(self, process: Process) -> None:
        """End one before the others."""
        await self._stop(process)

    async def _stop(self, process: Process) -> None:
        await process.stop()
        self._tell_guardian(f"-{process.pid}")

    def _tell_guardian(self, line: str) -> None:
        assert self._guardian is not None
        assert self._guardian.stdin is not None
        if not self._guardian.stdin.is_closing():
            self._guardian.stdin.write(f"{line}\n".encode())

    async def _dismiss_guardian(self) -> None:
        assert self._guardian is not None
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        await self._guardian.wait()


def _with_port_tries(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Several services of one file on one machine: each takes a port for its metrics."""
    telemetry = document.get("telemetry") or {}
    metrics = telemetry.get("metrics") or {}
    if not metrics.get("listen"):
        return document
    tries = {"port_tries": max(64, metrics.get("port_tries", 1))}
    return {**document, "telemetry": {**telemetry, "metrics": {**metrics, **tries}}}


@dataclass(frozen=True, slots=True)
class Services:
    """Running services and a client of them; `processes` by the name of their service."""

    client: Client
    address: str
    processes: Mapping[str, Process]

    async def counters(self, role: str) -> Mapping[str, int]:
        """A worker's counters now; empty if there is no such worker."""
        for worker in (await self.client.status()).workers:
            if worker.role == role and worker.info is not None:
                return worker.info.counters
        return {}

    async def peak_memory_bytes(self) -> dict[str, int | None]:
        """Peak memory of each process: on a GPU its allocations there, else resident memory."""
        status = await self.client.status()
        peaks: dict[str, int | None] = {
            worker.role: worker.info.peak_memory_bytes or None
            for worker in status.workers
            if worker.info is not None
        }
        return {
            name: peaks.get(name) or peak_of(process.pid)
            for name, process in self.processes.items()
        }


def _drafts_on_cpus(drafter: DrafterConfig) -> bool:
    return drafter.model is not None and not drafter.model.device.startswith("cuda")


Deploy: TypeAlias = Callable[[Mapping[str, Any]], AbstractAsyncContextManager[Services]]
"""Runs the services of a configuration document for as long as its context lasts."""


@asynccontextmanager
async def serving(document: Mapping[str, Any]) -> AsyncIterator[Services]:
    """A verifier, a drafter if the document has one, and an orchestrator, on free ports."""
    async with ProcessGroup() as group:
        services = await start_services(group, document)
        async with services.client:
            yield services


async def start_services(group: ProcessGroup, document: Mapping[str, Any]) -> Services:
    """Start all services of a document; the client is not open yet."""
    listening = {
        name: {**document.get(name, {}), "listen": LOOPBACK}
        for name in ("verifier", "drafter", "orchestrator")
    }
    base: dict[str, Any] = {**document, **listening}
    workers = ["verifier", *(["drafter"] if "drafter" in document else [])]
    started = await all_or_none(
        *(group.start_service(f"{name}_service", base, name) for name in workers)
    )
    processes = dict(zip(workers, started, strict=True))
    drafters = [processes["drafter"].address] if "drafter" in processes else []
    front = await start_orchestrator(
        group, base, verifiers=[processes["verifier"].address], drafters=drafters
    )
    processes["orchestrator"] = front
    security = parse_config(base, source="benchmark").security
    return Services(Client(front.address, security=security), front.address, processes)


async def start_orchestrator(
    group: ProcessGroup,
    document: Mapping[str, Any],
    *,
    verifiers: Sequence[str],
    drafters: Sequence[str],
    label: str = "orchestrator",
) -> Process:
    """Start an orchestrator over workers that run."""
    section = {
        **document.get("orchestrator", {}),
        "listen": LOOPBACK,
        "verifiers": list(verifiers),
        "drafters": list(drafters),
    }
    return await group.start_service("orchestrator", {**document, "orchestrator": section}, label)


def peak_of(pid: int) -> int | None:
    """Peak resident memory of any process, in bytes, where the system tells (Linux)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None
