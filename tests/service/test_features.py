"""Drafters of features get the target's own hidden states, and others not a byte of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.feature_witness import FeatureWitness, joined
from support.services import Stack, orchestrated, settings, until, worker
from torch import Tensor
from transformers import AutoModelForCausalLM

import drafter_service.service
import verifier_service.service
from paceline.config import parse_config
from paceline.errors import StartupError
from paceline.rpc.wire import Direction

MakeDir = Callable[..., Path]
Greedy = Callable[..., list[int]]

SIZE = 32
NUM_TOKENS = 40
PROMPT = [*range(40, 63)]
"""Read in three passes of at most eight tokens."""


@asynccontextmanager
async def witnessed(
    target: Path, witness: FeatureWitness, *, verifiers: int = 1
) -> AsyncIterator[Stack]:
    """Services of a real target and the scripted drafter, over gRPC."""
    runtime = {"max_batch_tokens": 8}
    document = settings(target, verifier={"runtime": runtime})
    config = parse_config(document, source="test")
    async with (
        worker(verifier_service.service.start(config)) as first,
        worker(verifier_service.service.start(config)) as second,
        worker(drafter_service.service.serve(config, witness, None)) as drafter,
        orchestrated(document, [first, second][:verifiers], [drafter]) as stack,
    ):
        yield stack


def half_right(target: Path, greedy: Greedy, prompts: Sequence[Sequence[int]]) -> Any:
    """Guesses the target's own greedy text, and every third position wrong: half the passes end in
    a rejection."""
    texts = {tuple(prompt): [*prompt, *greedy(target, prompt, NUM_TOKENS)] for prompt in prompts}

    def guess(tokens: Sequence[int]) -> int:
        text = next(t for p, t in texts.items() if tuple(tokens[: len(p)]) == p)
        right = text[len(tokens)] if len(tokens) < len(text) else 0
        return right if len(tokens) % 3 else (right + 1) % 258

    return guess


def plain_hidden(target: Path, token_ids: Sequence[int]) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    with torch.inference_mode():
        output = model(torch.tensor([list(token_ids)]), output_hidden_states=True)
    hidden: Tensor = output.hidden_states[-1][0]
    return hidden


def check(target: Path, text: Sequence[int], told: Tensor) -> None:
    """`told` are the hidden states of the text's first positions, within bfloat16's rounding."""
    expected = plain_hidden(target, text)[: len(told)]
    assert torch.allclose(told.float(), expected, rtol=2**-8, atol=1e-4)


async def test_a_drafter_is_told_the_targets_hidden_states_of_all_committed_positions(
    tiny_dir: MakeDir, greedy: Greedy
) -> None:
    """From the prompt's first on, after rollbacks, for sessions side by side; bytes are counted."""
    target = tiny_dir()
    prompts = [PROMPT, [*range(100, 105)], [7]]
    witness = FeatureWitness(half_right(target, greedy, prompts), feature_size=SIZE)
    async with witnessed(target, witness) as stack:
        results = await asyncio.gather(
            *(
                stack.generate(token_ids=p, max_tokens=NUM_TOKENS, temperature=0, window=5)
                for p in prompts
            )
        )
        again = await stack.generate(token_ids=PROMPT, max_tokens=NUM_TOKENS, temperature=0)
        await until(stack.is_idle)
    check(target, [*PROMPT, *again.token_ids], joined(witness.told.popitem()[1]))
    assert again.usage.cached_prompt_tokens == 0, "a page found in the cache has no features"
    del witness.openings[-1]
    assert all(opening.features for opening in witness.openings)
    by_prompt = {
        opening.token_ids: told
        for opening, told in zip(witness.openings, witness.told.values(), strict=True)
    }
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == greedy(target, prompt, NUM_TOKENS)
        assert 0 < result.stats.accepted < result.stats.judged, "rollbacks too"
        told = joined(by_prompt[tuple(prompt)])
        # all but what the last verdict committed, and the token before it, which was fed with it
        assert len(prompt) + NUM_TOKENS - 8 <= len(told) < len(prompt) + NUM_TOKENS
        check(target, [*prompt, *result.token_ids], told)
        num_bytes = told.numel() * 2
        assert num_bytes < result.stats.bytes_verifier < num_bytes + 6000
        assert num_bytes < result.stats.bytes_drafter < num_bytes + 6000
    assert len(by_prompt[tuple(PROMPT)]) > 3, "the prompt's in chunks, as it is read"


async def test_a_session_whose_drafter_does_not_ask_carries_no_byte_of_it(
    tiny_dir: MakeDir, greedy: Greedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No field of any message; and the prompt's pages are found again, as ever."""
    target = tiny_dir()
    witness = FeatureWitness(half_right(target, greedy, [PROMPT]), feature_size=0)
    encoded: list[Any] = []
    entry = Direction.entry

    def spied(self: Any, item: Any, *, max_bytes: int) -> Any:
        made = entry(self, item, max_bytes=max_bytes)
        encoded.append(made.message)
        return made

    monkeypatch.setattr(Direction, "entry", spied)
    async with witnessed(target, witness) as stack:
        for _ in range(2):
            result = await stack.generate(
                token_ids=PROMPT, max_tokens=NUM_TOKENS, temperature=0, window=5
            )
            assert result.stats.drafted > 0
        assert result.usage.cached_prompt_tokens > 0
    assert len(encoded) > 40
    assert not [message for message in encoded if "features" in str(message)]
    assert not any(witness.told.values())


async def test_another_verifier_takes_over_and_no_position_is_told_twice(
    tiny_dir: MakeDir, greedy: Greedy
) -> None:
    """H01: it reads the text again, of which the drafter has the features already."""
    target = tiny_dir()
    witness = FeatureWitness(half_right(target, greedy, [PROMPT]), feature_size=SIZE)
    async with witnessed(target, witness, verifiers=2) as stack:
        ids: list[int] = []
        async for chunk in stack.client.generate(
            token_ids=PROMPT, max_tokens=NUM_TOKENS, temperature=0, window=3
        ):
            if not ids:
                serving = [v for v in stack.verifiers if v._thread._engine.describe().live_sessions]
                await serving[0].stop(0.0)
            ids += [token.id for token in chunk.tokens]
        assert ids == greedy(target, PROMPT, NUM_TOKENS)
        assert chunk.stats is not None
        assert chunk.stats.accepted > 0
    (told,) = witness.told.values()
    check(target, [*PROMPT, *ids], joined(told))


async def test_a_drafter_of_other_features_is_refused_at_start(tiny_dir: MakeDir) -> None:
    """Both widths are named."""
    witness = FeatureWitness(lambda tokens: 0, feature_size=SIZE + 1)
    with pytest.raises(StartupError, match=r"features of 33 values, the target's have 32"):
        async with witnessed(tiny_dir(), witness):
            pass
