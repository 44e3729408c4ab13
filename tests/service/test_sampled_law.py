"""The law of sampled text, end to end: what clients receive follows the target, draft as may be.

Each token's law given the one before it is known exactly, so that the counts of all transitions
together are tested by chi-square. Seeded requests do not depend on timing: the figures are the
same in every run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chi2
from support.pipeline import cascade_of, worker_info
from support.reduced_models import reduced_drafter, reduced_vocabulary
from support.services import Stack, scripted
from support.transitions import TARGET, VOCAB

from paceline.runtime.scripted import ScriptedRunner, table_script

DRAFT = {
    0: {0: 0.1, 1: 0.2, 2: 0.7},
    1: {1: 1.0},
    2: {0: 0.4, 1: 0.1, 2: 0.2, 3: 0.3},
    3: {0: 0.2, 1: 0.3, 3: 0.5},
}
"""Far from the target, with an id that the target never gives, and one row that is certain."""
GREEDY_DRAFT = {0: {0: 1.0}, 1: {2: 1.0}, 2: {3: 1.0}, 3: {1: 1.0}}
"""Certain everywhere; at 3 of what the target never says."""

NUM_SESSIONS = 320
LENGTH = 64
NUM_CLIENTS = 64


async def sampled(stack: Stack, num_sessions: int = NUM_SESSIONS, **fields: Any) -> list[list[int]]:
    """The ids of so many generations, NUM_CLIENTS at a time."""
    room = asyncio.Semaphore(NUM_CLIENTS)

    async def one(index: int) -> list[int]:
        async with room:
            result = await stack.generate(
                token_ids=[index % VOCAB],
                max_tokens=LENGTH,
                **{
                    name: value(index) if callable(value) else value
                    for name, value in fields.items()
                },
            )
        assert result.stats.judged > LENGTH // 4
        return [index % VOCAB, *result.token_ids]

    return await asyncio.gather(*(one(index) for index in range(num_sessions)))


def p_value(texts: list[list[int]], temperature: float) -> float:
    """Chi-square of all transitions against TARGET at this temperature."""
    counts = Counter((text[i], text[i + 1]) for text in texts for i in range(len(text) - 1))
    statistic, freedom = 0.0, 0
    for last, row in TARGET.items():
        law = tempered(row, temperature)
        observed = {token: counts.pop((last, token), 0) for token in law}
        total = sum(observed.values())
        for token, probability in law.items():
            expected = probability * total
            statistic += (observed[token] - expected) ** 2 / expected
        freedom += len(law) - 1
    assert not counts, f"the target never says {dict(counts)}"
    return float(chi2.sf(statistic, freedom))


def tempered(row: Mapping[int, float], temperature: float) -> dict[int, float]:
    powers = {token: probability ** (1 / temperature) for token, probability in row.items()}
    return {token: power / sum(powers.values()) for token, power in powers.items()}


def runner(rows: Mapping[int, Mapping[int, float]], *, vocab_size: int = VOCAB) -> ScriptedRunner:
    script = table_script(rows, vocab_size)
    logits = [script([last]) for last in range(vocab_size)]
    return ScriptedRunner(
        lambda history: logits[history[-1]], vocab_size=vocab_size, num_pages=NUM_CLIENTS * 20
    )


def window(index: int) -> int:
    return (1, 2, 4, 6)[index % 4]


def block_length(index: int) -> int:
    return 1 + index // 4 % 3


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_seeded_text_follows_the_targets_law(
    temperature: float, byte_tokenizer_dir: Path
) -> None:
    """A09: 20,480 tokens; both rules, windows and blocks of different sizes side by side."""
    rules = ("rejection", "block")
    async with scripted(runner(TARGET), runner(DRAFT), tokenizer=byte_tokenizer_dir) as stack:
        texts = await sampled(
            stack,
            temperature=temperature,
            acceptance=lambda index: rules[index % 2],
            seed=lambda index: 1000 + index,
            window=lambda index: window(index // 2),
            num_speculative_tokens=lambda index: block_length(index // 2),
        )
    assert sum(len(text) - 1 for text in texts) >= 20_000
    assert p_value(texts, temperature) > 1e-4
    for rule in range(2):
        assert p_value(texts[rule::2], temperature) > 1e-4, rules[rule]


async def test_a_drafter_that_is_always_certain_changes_no_law(byte_tokenizer_dir: Path) -> None:
    """A09: q is one-hot, T = 0.5."""
    target, draft = runner(TARGET), runner(GREEDY_DRAFT)
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        texts = await sampled(
            stack,
            temperature=0.5,
            seed=lambda index: index,
            window=window,
            num_speculative_tokens=2,
        )
    assert p_value(texts, 0.5) > 1e-4


@pytest.mark.parametrize("seeded", [True, False])
async def test_text_drafted_by_a_cascade_follows_the_targets_law(
    seeded: bool, byte_tokenizer_dir: Path
) -> None:
    """A09: copied point masses and drawn tokens in one block, chosen by what was accepted."""
    drafter = cascade_of(runner(DRAFT), 1, 2)
    async with scripted(runner(TARGET), drafter, tokenizer=byte_tokenizer_dir) as stack:
        texts = await sampled(
            stack,
            NUM_SESSIONS // 2,
            temperature=1.0,
            acceptance=lambda index: ("rejection", "block")[index % 2],
            draft_probs=lambda index: ("sparse", "dense")[index // 2 % 2],
            window=lambda index: window(index // 4),
            num_speculative_tokens=lambda index: block_length(index // 4),
            **({"seed": lambda index: 5000 + index} if seeded else {}),
        )
        counters = (await stack.info("drafter")).counters
    assert min(counters["copied_tokens"], counters["drawn_tokens"]) > 2_000
    assert p_value(texts, 1.0) > (1e-4 if seeded else 1e-7)


async def test_text_drafted_from_a_reduced_vocabulary_follows_the_targets_law(
    byte_tokenizer_dir: Path,
) -> None:
    """A09: a drafter that knows ids 0, 2 and 3, and reads 1 as 0."""
    known = {0: 0, 2: 1, 3: 2}
    narrow = {known[i]: {known[j]: p for j, p in DRAFT[i].items() if j in known} for i in known}
    drafter = reduced_drafter(
        runner(narrow, vocab_size=3),
        reduced_vocabulary(list(known), VOCAB),
        worker_info("model", VOCAB),
    )
    async with scripted(runner(TARGET), drafter, tokenizer=byte_tokenizer_dir) as stack:
        texts = await sampled(
            stack,
            NUM_SESSIONS // 4,
            temperature=1.0,
            acceptance=lambda index: ("rejection", "block")[index % 2],
            draft_probs=lambda index: ("sparse", "dense")[index // 2 % 2],
            window=lambda index: window(index // 4),
            num_speculative_tokens=lambda index: block_length(index // 4),
            seed=lambda index: 7000 + index,
        )
    assert p_value(texts, 1.0) > 1e-4


async def test_text_without_a_seed_follows_the_targets_law(byte_tokenizer_dir: Path) -> None:
    """Timing decides here which pass judges what, so the bound allows for many runs."""
    async with scripted(runner(TARGET), runner(DRAFT), tokenizer=byte_tokenizer_dir) as stack:
        texts = await sampled(
            stack,
            temperature=1.0,
            acceptance=lambda index: ("rejection", "block")[index % 2],
            draft_probs=lambda index: ("sparse", "dense", "none")[index % 3],
            window=lambda index: window(index // 6),
            num_speculative_tokens=3,
        )
    assert p_value(texts, 1.0) > 1e-7
