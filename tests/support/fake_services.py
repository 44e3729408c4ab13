"""Services that listen and do nothing else: what the cluster needs to place, kill and restart.

Entry points for `orchestrator.cluster`. Each service answers every connection with one JSON line
that says what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

from orchestrator.cluster_members import Role
from orchestrator.worker_set import WorkerSet
from paceline.config import Config
from paceline.errors import InvalidArgumentError

FAKES = {role: f"support.fake_services:start_{role.value}" for role in Role}


class FakeService:
    """A TCP server with the shape of a running service."""

    def __init__(self, server: asyncio.Server, answer: dict[str, Any]) -> None:
        self._server = server
        self._answer = answer
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    async def update_workers(self, workers: WorkerSet, *, grace_s: float) -> None:
        self._answer |= {
            "verifiers": workers.verifiers,
            "drafters": workers.drafters,
        }

    async def stop(self, grace_s: float) -> None:
        self._server.close()


async def _serve(listen: str, answer: dict[str, Any]) -> FakeService:
    async def tell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"pid": os.getpid(), **answer}).encode() + b"\n")
        writer.close()

    host, _, port = listen.rpartition(":")
    return FakeService(await asyncio.start_server(tell, host, int(port)), answer)


async def start_verifier(config: Config) -> FakeService:
    return await _serve(config.verifier.listen, {"role": "verifier"})


async def start_drafter(config: Config) -> FakeService:
    return await _serve(config.drafter.listen, {"role": "drafter"})


async def start_orchestrator(config: Config) -> FakeService:
    section = config.orchestrator
    answer = {
        "role": "orchestrator",
        "verifiers": section.verifiers,
        "drafters": section.drafters,
        "require_drafter": section.require_drafter,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    return await _serve(section.listen, answer)


async def refuse(config: Config) -> FakeService:
    """An error with a constructor of its own, which plain pickling would lose."""
    raise InvalidArgumentError("model", "has 7 legs")


async def crash(config: Config) -> FakeService:
    raise ZeroDivisionError("a fault of ours")


async def die(config: Config) -> FakeService:
    os._exit(3)


async def never(config: Config) -> FakeService:
    await asyncio.Event().wait()
    raise AssertionError


async def told(address: str, **wanted: Any) -> dict[str, Any]:
    """What a service says of itself once it says all that is `wanted`; asks until then."""
    while True:
        answer = await ask(address)
        if wanted.items() <= answer.items():
            return answer
        await asyncio.sleep(0.02)


async def ask(address: str) -> dict[str, Any]:
    """What the service at `address` says of itself. Raises `OSError` when there is none."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.closing(writer):
        answer: dict[str, Any] = json.loads(await reader.readline())
    return answer
