"""Services that do nothing and have metrics: what a cluster gives each of its members."""

from __future__ import annotations

import asyncio
import functools
import logging

from support.fake_services import FakeService, _serve

from orchestrator.cluster_members import Role
from paceline.config import Config
from paceline.telemetry.metrics_export import MetricsExport, start_metrics

OBSERVED = {role: f"support.fake_observed:start_{role.value}" for role in Role}


class ObservedService:
    """A fake service beside its metrics; it answers where those are."""

    def __init__(self, service: FakeService, metrics: MetricsExport) -> None:
        self._service = service
        self._metrics = metrics
        self.address = service.address

    async def stop(self, grace_s: float) -> None:
        await self._service.stop(grace_s)
        await asyncio.to_thread(self._metrics.stop)


async def _start(role: str, config: Config) -> ObservedService:
    metrics = await asyncio.to_thread(start_metrics, config.telemetry, service=role)
    answer = {"metrics": metrics.address, "level": logging.getLogger().level}
    return ObservedService(await _serve(getattr(config, role).listen, answer), metrics)


start_verifier = functools.partial(_start, "verifier")
start_drafter = functools.partial(_start, "drafter")
start_orchestrator = functools.partial(_start, "orchestrator")
