"""The three services for tests, joined by real gRPC on loopback.

`running` starts them in this process from a configuration, `scripted` with scripted models, and
`ServiceProcess` starts one as a process of its own, to be killed, stopped and signalled.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

import drafter_service.service
import orchestrator.service
import verifier_service.service
from drafter_service.drafter import Drafter
from drafter_service.model import ModelDrafter
from orchestrator.service import OrchestratorService
from paceline.client import Chunk, Client, GenerateResult
from paceline.config import Config, GrpcConfig, SecurityConfig, parse_config
from paceline.rpc.channel import open_channel
from paceline.rpc.credentials import load_credentials
from paceline.rpc.worker import WorkerService
from paceline.runtime.scripted import ScriptedRunner
from paceline.runtime.tokenizer import Tokenizer
from paceline.telemetry.tracing import start_tracing
from paceline.types import WorkerInfo
from verifier_service.verifier import Verifier

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1:0"
PATIENCE_S = 120.0
"""How long anything awaited may take before the test fails."""

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Sections = Mapping[str, Any]


class Addressed(Protocol):
    """A running worker."""

    @property
    def address(self) -> str: ...


# --- configurations -----------------------------------------------------------------------------


def model_section(path: Path, **settings: Any) -> dict[str, Any]:
    """A `model` section: float32 on one CPU thread unless told otherwise."""
    return {"path": str(path), "dtype": "float32", "device": "cpu", "threads": 1, **settings}


def settings(
    target: Path | None = None, draft: Path | str | None = None, **sections: Sections
) -> dict[str, Any]:
    """A configuration document: loopback ports, a small KV pool, and what `sections` add.

    Windows are fixed, so that what is drafted does not depend on how fast the machine is.
    `target` is a model directory; `draft` another, or "ngram". Sections are merged key by key.
    """
    runtime = {"kv_tokens": 8192}
    data: dict[str, Any] = {
        "verifier": {"listen": LOOPBACK, "runtime": runtime},
        "drafter": {"listen": LOOPBACK, "runtime": runtime},
        "orchestrator": {
            "listen": LOOPBACK,
            "connect_timeout_s": 5.0,
            "speculation": {"adaptive": False},
        },
    }
    if target is not None:
        data["verifier"]["model"] = model_section(target)
    if isinstance(draft, Path):
        data["drafter"] |= {"kind": "model", "model": model_section(draft)}
    return _merged(data, sections)


def _merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged


# --- services in this process -------------------------------------------------------------------


@dataclass
class Stack:
    """Running services and a client of them."""

    orchestrator: OrchestratorService
    verifiers: Sequence[Any]
    """What was given: `WorkerService`s in this process or `ServiceProcess`es."""
    drafters: Sequence[Any]
    client: Client
    config: Config

    async def generate(self, **fields: Any) -> GenerateResult:
        """A whole generation."""
        return await collect(self.client, **fields)

    async def info(self, role: str, index: int = 0) -> WorkerInfo:
        """What a worker says of itself now."""
        status = await self.client.status()
        found = [worker for worker in status.workers if worker.role == role]
        info = found[index].info
        assert info is not None
        return info

    async def live_sessions(self) -> int:
        """Generations that the orchestrator runs."""
        return (await self.client.status()).live_sessions

    async def is_idle(self) -> bool:
        """Whether nothing is left anywhere: no session, no page, nobody waiting."""
        status = await self.client.status()
        infos = [worker.info for worker in status.workers if worker.info is not None]
        return status.live_sessions == 0 and all(
            info.live_sessions == info.kv_pages_used == info.waiting_sessions == 0 for info in infos
        )


async def collect(client: Client, **fields: Any) -> GenerateResult:
    """A whole generation."""
    return GenerateResult.of([chunk async for chunk in client.generate(**fields)])


async def take(chunks: AsyncIterator[Chunk], count: int) -> list[Chunk]:
    """The next `count` chunks; the stream stays open."""
    return [await anext(chunks) for _ in range(count)]


async def until(
    condition: Callable[[], Awaitable[bool]], timeout_s: float = PATIENCE_S, *, what: str = ""
) -> None:
    """Ask again and again, each time over the wire, until `condition` holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not await condition():
        assert loop.time() < deadline, f"not within {timeout_s} s: {what or condition}"
        await asyncio.sleep(0)


@asynccontextmanager
async def running(document: Mapping[str, Any], *, drafters: int = 1) -> AsyncIterator[Stack]:
    """All services from a configuration document, as their `__main__`s start them."""
    config = parse_config(document, source="test")
    async with AsyncExitStack() as cleanup:
        verifier = await _started(cleanup, verifier_service.service.start(config))
        started = [
            await _started(cleanup, drafter_service.service.start(config)) for _ in range(drafters)
        ]
        yield await _orchestrated(cleanup, document, [verifier], started)


@asynccontextmanager
async def scripted(
    target: ScriptedRunner | Sequence[ScriptedRunner],
    draft: ScriptedRunner | Drafter | None,
    *,
    tokenizer: Path,
    eos_token_ids: Sequence[int] = (),
    **sections: Sections,
) -> AsyncIterator[Stack]:
    """Real services around scripted models; several targets are several verifiers.

    Ids mean what the tokenizer in that directory says, whatever the width of the scripts.
    """
    document = _merged(settings(), sections)
    document = _merged(document, {"orchestrator": {"tokenizer": str(tokenizer)}})
    config = parse_config(document, source="test")
    names = Tokenizer.load(str(tokenizer))
    targets = [target] if isinstance(target, ScriptedRunner) else target
    async with AsyncExitStack() as cleanup:
        verifiers: list[WorkerService] = []
        for runner in targets:
            info = scripted_info("verifier", runner, names, eos_token_ids)
            tracing = start_tracing(config.telemetry.traces, "verifier")
            engine = Verifier(runner, config.verifier, info, tracing=tracing)
            serving = verifier_service.service.serve(config, engine, names, tracing)
            verifiers.append(await _started(cleanup, serving))
        drafters: list[WorkerService] = []
        if draft is not None:
            if isinstance(draft, ScriptedRunner):
                info = scripted_info("model", draft, names)
                draft = ModelDrafter(draft, config.drafter.runtime, info)
            serving = drafter_service.service.serve(config, draft, names)
            drafters.append(await _started(cleanup, serving))
        yield await _orchestrated(cleanup, document, verifiers, drafters)


@asynccontextmanager
async def worker(starting: Awaitable[WorkerService]) -> AsyncIterator[WorkerService]:
    """One worker of `drafter_service.service.start` or `verifier_service.service.start`."""
    async with AsyncExitStack() as cleanup:
        yield await _started(cleanup, starting)


@asynccontextmanager
async def orchestrated(
    document: Mapping[str, Any], verifiers: Sequence[Addressed], drafters: Sequence[Addressed]
) -> AsyncIterator[Stack]:
    """An orchestrator in this process over workers that run already, wherever they are."""
    async with AsyncExitStack() as cleanup:
        yield await _orchestrated(cleanup, document, verifiers, drafters)


def scripted_info(
    kind: str, runner: ScriptedRunner, tokenizer: Tokenizer, eos_token_ids: Sequence[int] = ()
) -> WorkerInfo:
    """The description of a scripted worker."""
    return WorkerInfo(
        kind=kind,
        model="scripted",
        dtype="float32",
        quantization="none",
        device="cpu",
        vocab_size=runner.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        context_length=runner.context_length,
        eos_token_ids=tuple(eos_token_ids),
    )


async def _orchestrated(
    cleanup: AsyncExitStack,
    document: Mapping[str, Any],
    verifiers: Sequence[Addressed],
    drafters: Sequence[Addressed],
) -> Stack:
    addresses = {
        "verifiers": [worker.address for worker in verifiers],
        "drafters": [worker.address for worker in drafters],
    }
    config = parse_config(_merged(document, {"orchestrator": addresses}), source="test")
    service = await _started(cleanup, orchestrator.service.start(config))
    client = Client(service.address, security=config.security, grpc_config=config.grpc)
    await cleanup.enter_async_context(client)
    return Stack(service, verifiers, drafters, client, config)


async def _started(cleanup: AsyncExitStack, starting: Awaitable[Any]) -> Any:
    service = await starting
    cleanup.push_async_callback(service.stop, 0.0)
    return service


# --- health -------------------------------------------------------------------------------------


async def watch_health(address: str, wanted: int, timeout_s: float = PATIENCE_S) -> None:
    """Return once the server's health, watched over gRPC, is `wanted`."""

    async def watch() -> None:
        channel = open_channel(address, load_credentials(SecurityConfig()), GrpcConfig())
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            async for response in stub.Watch(health_pb2.HealthCheckRequest()):
                if response.status == wanted:
                    return
        finally:
            await channel.close(None)

    await asyncio.wait_for(watch(), timeout_s)


# --- services as processes ----------------------------------------------------------------------


@dataclass
class ServiceProcess:
    """`python -m MODULE -c FILE`. `address` is set once it listens."""

    process: asyncio.subprocess.Process
    address: str = ""
    lines: list[str] = field(default_factory=list)
    """What it has written to stderr."""

    async def wait_listening(self) -> str:
        """Return the address that it prints; fails with its output if it ends instead."""
        while not self.address:
            line = await self._next_line()
            assert line, f"the service ended: {self.lines}"
            if " listening on " in line:
                self.address = line.rpartition(" ")[2].strip()
        return self.address

    async def wait(self) -> int:
        """Its exit code, once all of its output is in `lines`."""
        while await self._next_line():
            pass
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)

    async def _next_line(self) -> str:
        assert self.process.stderr is not None
        line = (await asyncio.wait_for(self.process.stderr.readline(), PATIENCE_S)).decode()
        if line:
            self.lines.append(line.rstrip("\n"))
        return line


@asynccontextmanager
async def service_process(
    module: str, document: Mapping[str, Any], folder: Path, *arguments: str
) -> AsyncIterator[ServiceProcess]:
    """A service process, killed at the end if it still runs."""
    path = folder / f"{module}.yaml"
    path.write_text(yaml.safe_dump(dict(document)))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        "-c",
        str(path),
        *arguments,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    service = ServiceProcess(process)
    try:
        yield service
    finally:
        if process.returncode is None:
            process.kill()
        await service.wait()
