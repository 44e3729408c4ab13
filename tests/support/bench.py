"""Deployments for tests of benchmarks: services in this process instead of others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from support.services import LOOPBACK, running

from paceline.bench.machine import Machine
from paceline.bench.processes import Services

MACHINE = Machine("a CPU", 2, 2**33, (), "Linux", "3.11", {}, None)


@asynccontextmanager
async def deploy_here(document: Mapping[str, Any]) -> AsyncIterator[Services]:
    """All services of a document in this process."""
    local = {
        name: {**document.get(name, {}), "listen": LOOPBACK}
        for name in ("verifier", "drafter", "orchestrator")
    }
    async with running({**document, **local}) as stack:
        yield Services(stack.client, stack.orchestrator.address, {})
