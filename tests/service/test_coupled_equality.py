"""`coupled`: one text for a seed, the target's own, whatever drafts, in whatever company."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.reduced_models import save_reduced_model
from support.services import running, settings
from transformers import AutoModelForCausalLM

from paceline.sampling.randomness import gumbel_noise

MakeDir = Callable[..., Path]

PROMPT = [256, *b"the quick brown fox. the quick"]
NUM_TOKENS = 24
SEEDS = range(50)
TEMPERATURES = (0.4, 1.0, 1.7)
WINDOWS = (1, 4, 12)
IDS = 258
FEWER = ("cascade", "one layer", "reduced vocabulary")


@pytest.fixture(scope="module")
def sampled(tiny_dir: MakeDir) -> dict[tuple[int, float], list[int]]:
    """The target's own seeded sampling: argmax of log probability and noise, step by step."""
    model = AutoModelForCausalLM.from_pretrained(tiny_dir(seed=0), dtype=torch.float32).eval()
    keys = [(seed, temperature) for temperature in TEMPERATURES for seed in SEEDS]
    temperatures = torch.tensor([[temperature] for _, temperature in keys])
    tokens = torch.tensor([PROMPT] * len(keys))
    ids = torch.arange(IDS)
    with torch.inference_mode():
        for position in range(len(PROMPT), len(PROMPT) + NUM_TOKENS):
            logits = model(tokens, use_cache=False).logits[:, -1, :IDS]
            noise = torch.stack([gumbel_noise(seed, position, ids) for seed, _ in keys])
            scores = (logits / temperatures).log_softmax(-1).double() + noise
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], dim=1)
    return {key: row[len(PROMPT) :].tolist() for key, row in zip(keys, tokens, strict=True)}


def request(seed: int, temperature: float) -> dict[str, Any]:
    """One seeded coupled request that runs to its length."""
    return {
        "token_ids": PROMPT,
        "max_tokens": NUM_TOKENS,
        "temperature": temperature,
        "acceptance": "coupled",
        "seed": seed,
        "ignore_eos": True,
        "window": WINDOWS[seed % len(WINDOWS)],
    }


@pytest.mark.parametrize(
    "kind",
    ["none", "random", "ngram", "same weights", "cascade", "one layer", "reduced vocabulary"],
)
async def test_coupled_output_equals_the_targets_own_sampling(
    kind: str, tiny_dir: MakeDir, sampled: dict[tuple[int, float], list[int]], tmp_path: Path
) -> None:
    """A06, L02: 50 seeds at 3 temperatures, windows 1, 4 and 12, eight sessions side by side."""
    drafts: dict[str, Path | str] = {
        "none": "ngram",
        "ngram": "ngram",
        "random": tiny_dir(seed=5),
        "same weights": tiny_dir(seed=0),
        "cascade": tiny_dir(seed=5),
        "one layer": tiny_dir(seed=0),
        "reduced vocabulary": tmp_path,
    }
    if kind == "reduced vocabulary":
        save_reduced_model(tmp_path, tiny_dir(seed=0), range(0, IDS, 2))
    drafter: dict[str, Any] = {"ngram": {"min_match": 1, "max_match": 3}}
    if kind == "cascade":
        drafter["kind"] = "cascade"
    if kind == "one layer":
        drafter["model"] = {"layers": [1]}
    document = settings(tiny_dir(seed=0), drafts[kind], drafter=drafter)
    side_by_side = asyncio.Semaphore(8)
    async with running(document) as stack:

        async def generate(seed: int, temperature: float) -> Any:
            async with side_by_side:
                return await stack.generate(
                    **request(seed, temperature), speculation=kind != "none"
                )

        keys = list(sampled)[:: 4 if kind in FEWER else 1]
        results = await asyncio.gather(*(generate(*key) for key in keys))
        for key, result in zip(keys, results, strict=True):
            assert result.token_ids == sampled[key], key
        alone = await generate(*keys[7])
        assert alone.token_ids == sampled[keys[7]]
    accepted = sum(result.stats.accepted for result in results)
    assert (accepted == 0) == (kind == "none")


async def test_coupled_output_survives_the_loss_of_its_drafter(
    tiny_dir: MakeDir, sampled: dict[tuple[int, float], list[int]]
) -> None:
    """H02: the drafter ends in mid-stream and the text does not change."""
    async with running(settings(tiny_dir(seed=0), tiny_dir(seed=0))) as stack:
        for seed in range(6):
            ids: list[int] = []
            generation = stack.client.generate(**request(seed, 1.0))
            async for chunk in generation:
                if not ids and seed == 3:
                    await stack.drafters[0].stop(0.0)
                ids += [token.id for token in chunk.tokens]
            assert ids == sampled[seed, 1.0]
            assert chunk.stats is not None
            if seed != 3:  # there it depends on how much was drafted before the loss
                assert (chunk.stats.drafted > 0) == (seed < 3)


@pytest.mark.parametrize("acceptance", ["rejection", "block", "coupled"])
async def test_a_seed_gives_the_same_ids_again(tiny_dir: MakeDir, acceptance: str) -> None:
    """A06: twice, and next to three others; another seed differs; greedy heeds no seed."""
    fields = {**request(7, 1.0), "acceptance": acceptance, "window": 8}
    async with running(settings(tiny_dir(seed=0), tiny_dir(seed=5))) as stack:
        first = await stack.generate(**fields)
        beside = await asyncio.gather(
            *(stack.generate(**{**fields, "seed": seed}) for seed in (7, 8, 9, 10))
        )
        greedy = [
            await stack.generate(**{**fields, "seed": seed, "temperature": 0}) for seed in (7, 8)
        ]
    assert first.token_ids == beside[0].token_ids
    assert first.stats.drafted > 0
    assert len({tuple(result.token_ids) for result in beside}) == 4
    assert greedy[0].token_ids == greedy[1].token_ids
