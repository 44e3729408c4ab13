"""Members of one machine share a setting and no port; each logs as configured."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from support.fake_observed import OBSERVED
from support.fake_services import ask
from support.metrics import scrape

from orchestrator.cluster import Cluster
from paceline.config import Config, TelemetryConfig

Deployment = Callable[..., Config]


async def test_every_member_serves_its_metrics_at_a_port_of_its_own(
    deployment: Deployment,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        first = probe.getsockname()[1]
    telemetry = TelemetryConfig.model_validate(
        {"metrics": {"listen": f"127.0.0.1:{first}"}, "logs": {"level": "debug"}}
    )
    config = deployment(drafter={"replicas": 2}).model_copy(update={"telemetry": telemetry})
    async with Cluster(config, entry_points=OBSERVED) as cluster:
        answers = [await ask(one.address) for one in cluster.placed]
        addresses = {answer["metrics"] for answer in answers}
        assert len(addresses) == 4
        ports = sorted(int(address.rpartition(":")[2]) for address in addresses)
        assert first <= ports[0] < ports[-1] < first + 64
        await asyncio.gather(*(scrape(address) for address in addresses))
    assert {answer["level"] for answer in answers} == {logging.DEBUG}
