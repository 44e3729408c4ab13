"""The whole system, on Ray and over gRPC, with a real model: greedy output is the target's own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.prompts import NUM_TOKENS, PROMPTS

from orchestrator.cluster import Cluster
from paceline.client import Client
from paceline.config import Config, parse_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WINDOWS = (1, 4, 12)


def configuration(target: Path, drafter: dict[str, Any]) -> Config:
    """fp32 target, the given drafter, free ports."""
    return parse_config(
        {
            "verifier": {
                "listen": "127.0.0.1:0",
                "model": {"path": str(target), "dtype": "float32"},
                "draft_patience_ms": 30_000,  # a drafter on the same cores is slow
            },
            "drafter": {"listen": "127.0.0.1:0", **drafter},
            "orchestrator": {"listen": "127.0.0.1:0"},
            "cluster": {"ray_address": "local", "namespace": f"e2e-{os.getpid()}"},
        },
        source="test",
    )


async def generate(client: Client, prompt: str, **settings: Any) -> tuple[list[int], Any]:
    """The ids of one greedy generation, and its statistics."""
    ids: list[int] = []
    stats = None
    async for chunk in client.generate(
        prompt=prompt, max_tokens=NUM_TOKENS, temperature=0, **settings
    ):
        ids += [token.id for token in chunk.tokens]
        stats = chunk.stats or stats
    return ids, stats


@pytest.mark.parametrize("kind", ["ngram", "same weights in nf4", "random tiny model"])
async def test_greedy_output_over_ray_equals_generate_of_transformers(
    kind: str, smollm2: Path, tiny_drafter: Path, greedy_ids: list[list[int]]
) -> None:
    """A01, A11: token by token, whatever drafts and however far ahead, five sessions at once."""
    drafters: dict[str, dict[str, Any]] = {
        "ngram": {"kind": "ngram"},
        "same weights in nf4": {
            "kind": "model",
            "model": {"path": str(smollm2), "quantization": "nf4"},
        },
        "random tiny model": {
            "kind": "model",
            "model": {"path": str(tiny_drafter), "dtype": "float32"},
        },
    }
    async with (
        Cluster(configuration(smollm2, drafters[kind])) as cluster,
        Client(cluster.orchestrator_address) as client,
    ):
        for window in WINDOWS[-1:] if kind == "random tiny model" else WINDOWS:
            answers = await asyncio.gather(
                *(generate(client, prompt, window=window) for prompt in PROMPTS)
            )
            assert [ids for ids, _ in answers] == greedy_ids
            if kind == "same weights in nf4":
                assert all(stats.accepted > 10 for _, stats in answers)
