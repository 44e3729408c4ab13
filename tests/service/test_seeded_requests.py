"""The same request and seed give the same ids, whatever else runs and however it speculates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.services import Stack, scripted

from paceline.runtime.scripted import ScriptedRunner, hashed_script

VOCAB = 50
LENGTH = 32


def models() -> tuple[ScriptedRunner, ScriptedRunner]:
    """A target and a draft that agree about half of the time."""
    target, noise = hashed_script(VOCAB), hashed_script(VOCAB, seed=1)
    draft = ScriptedRunner(lambda history: target(history) + 0.7 * noise(history), vocab_size=VOCAB)
    return ScriptedRunner(target, vocab_size=VOCAB), draft


async def ids(stack: Stack, **fields: Any) -> list[int]:
    fields = {"token_ids": [1, 2, 3], "max_tokens": LENGTH, "temperature": 1.0} | fields
    result = await stack.generate(**fields)
    assert result.stats.judged > 0
    return result.token_ids


@pytest.mark.parametrize("acceptance", ["rejection", "block", "coupled"])
async def test_a_seed_gives_the_same_ids_again_alone_and_in_company(
    acceptance: str, byte_tokenizer_dir: Path
) -> None:
    """A06."""
    async with scripted(*models(), tokenizer=byte_tokenizer_dir) as stack:
        first = await ids(stack, acceptance=acceptance, seed=7)
        assert await ids(stack, acceptance=acceptance, seed=7) == first
        assert await ids(stack, acceptance=acceptance, seed=8) != first
        for _ in range(3):
            company = [
                ids(stack, acceptance=rule, token_ids=[5 + number], max_tokens=60)
                for number, rule in enumerate(("rejection", "block", "coupled"))
            ]
            together = await asyncio.gather(ids(stack, acceptance=acceptance, seed=7), *company)
            assert together[0] == first
    async with scripted(*models(), tokenizer=byte_tokenizer_dir) as stack:
        assert await ids(stack, acceptance=acceptance, seed=7) == first, "after a restart"


async def test_without_a_seed_each_request_draws_its_own_and_tells_it(
    byte_tokenizer_dir: Path,
) -> None:
    async with scripted(*models(), tokenizer=byte_tokenizer_dir) as stack:
        fields: dict[str, Any] = {
            "token_ids": [1],
            "max_tokens": LENGTH,
            "temperature": 1.0,
            "acceptance": "coupled",
        }
        one, two = await stack.generate(**fields), await stack.generate(**fields)
        assert one.stats.seed != two.stats.seed
        assert one.token_ids != two.token_ids
        again = await stack.generate(**fields, seed=one.stats.seed)
        assert again.token_ids == one.token_ids


async def test_a_greedy_request_takes_no_notice_of_its_seed(byte_tokenizer_dir: Path) -> None:
    """A06, A03."""
    async with scripted(*models(), tokenizer=byte_tokenizer_dir) as stack:
        found = [await ids(stack, temperature=0, seed=seed) for seed in (0, 1, 2**64 - 1)]
        assert found[0] == found[1] == found[2]
