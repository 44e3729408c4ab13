"""A program that runs a deployment on a Ray whose own tracing is on, and prints what came of it.

A process of its own, since Ray's hook holds for all of a process. Its argument is the collector's
endpoint.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import ray
from ray.util.tracing.tracing_helper import _is_tracing_enabled
from support.otlp_receiver import ClientTrace
from support.traced import PROMPT, traced_pair

from orchestrator.cluster import Cluster
from paceline.client import Client, GenerateResult
from paceline.config import parse_config


async def run(endpoint: str) -> dict[str, Any]:
    """One request to a deployment of real services; then a stop, which flushes."""
    document = traced_pair(endpoint)
    document["cluster"] = {"ray_address": "auto", "namespace": "traced", "start_timeout_s": 120}
    config = parse_config(document, source="test")
    async with (
        Cluster(config, report=lambda line: None) as cluster,
        Client(cluster.orchestrator_address) as client,
    ):
        with ClientTrace(11):
            stream = client.generate(
                token_ids=PROMPT,
                max_tokens=16,
                temperature=0,
                window=8,
                num_speculative_tokens=4,
            )
        result = GenerateResult.of([chunk async for chunk in stream])
        pids = [one.pid for one in cluster.placed]
    return {
        "token_ids": result.token_ids,
        "origins": result.origins,
        "num_processes": len(set(pids)),
        "ray_traces": _is_tracing_enabled(),
    }


if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100 * 1024 * 1024,
        _tracing_startup_hook="support.ray_tracing:start",
    )
    try:
        print(json.dumps(asyncio.run(run(sys.argv[1]))))  # noqa: T201
    finally:
        ray.shutdown()
