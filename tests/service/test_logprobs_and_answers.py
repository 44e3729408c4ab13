"""Log-probabilities are the target's own, several answers are several requests, and what travels
of the draft distributions is the client's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.services import Stack, running, settings
from transformers import AutoModelForCausalLM

from paceline.client import GenerateResult
from paceline.errors import InvalidArgumentError

MakeDir = Callable[..., Path]

PROMPT = [256, *b"once upon a time there was a fox"]
IDS = 258


def raw_logprobs(path: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """Row i: log softmax of the target's raw logits after the first i + 1 ids."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([list(token_ids)])).logits[0, :, :IDS]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 5])
async def test_logprobs_are_the_targets_own_for_every_origin(
    tiny_dir: MakeDir, temperature: float, seed: int
) -> None:
    """Before sampling parameters apply; drafts accepted, recovered and bonus tokens alike."""
    async with running(settings(tiny_dir(seed=0), tiny_dir(seed=seed))) as stack:
        result = await stack.generate(
            token_ids=PROMPT,
            max_tokens=30,
            temperature=temperature,
            top_k=20,
            frequency_penalty=0.5,
            ignore_eos=True,
            logprobs=3,
        )
    rows = raw_logprobs(tiny_dir(seed=0), PROMPT + result.token_ids)[len(PROMPT) - 1 :]
    assert len(set(result.origins)) > 1
    for token, row in zip(result.tokens, rows, strict=False):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-4)
        values, ids = row.topk(3)
        assert [top.id for top in token.top_logprobs] == ids.tolist()
        assert [top.logprob for top in token.top_logprobs] == pytest.approx(
            values.tolist(), abs=1e-4
        )


async def test_prompt_logprobs_cover_the_prompt_from_its_second_id(tiny_dir: MakeDir) -> None:
    """Also when the prompt is read in chunks of a few tokens, beside another session."""
    runtime = {"kv_tokens": 4096, "max_batch_tokens": 5}
    document = settings(tiny_dir(seed=0), tiny_dir(seed=0), verifier={"runtime": runtime})
    async with running(document) as stack:
        results = [
            await stack.generate(token_ids=prompt, max_tokens=4, temperature=0, prompt_logprobs=2)
            for prompt in (PROMPT, PROMPT[:1])
        ]
        without = await stack.generate(token_ids=PROMPT, max_tokens=4, temperature=0)
    rows = raw_logprobs(tiny_dir(seed=0), PROMPT)
    tokens = results[0].prompt_tokens
    assert [token.id for token in tokens] == PROMPT[1:]
    for token, row in zip(tokens, rows, strict=False):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-4)
        assert [top.id for top in token.top_logprobs] == row.topk(2).indices.tolist()
    assert results[1].prompt_tokens == ()
    assert without.prompt_tokens == ()
    assert without.token_ids == results[0].token_ids


async def answers(stack: Stack, **fields: Any) -> list[GenerateResult]:
    """All answers of a request."""
    return GenerateResult.all_of([chunk async for chunk in stack.client.generate(**fields)])


async def test_n_answers_are_n_requests_with_the_seeds_that_follow(tiny_dir: MakeDir) -> None:
    """Each answer is whole, has its own outcome, and equals the request it stands for."""
    fields = {"token_ids": PROMPT, "max_tokens": 20, "temperature": 1.0, "ignore_eos": True}
    async with running(settings(tiny_dir(seed=0), tiny_dir(seed=0))) as stack:
        together = await answers(stack, **fields, seed=2**64 - 2, n=3)
        single = [await stack.generate(**fields, seed=seed) for seed in (2**64 - 2, 2**64 - 1, 0)]
        for wrong in (0, -1, 17):
            with pytest.raises(InvalidArgumentError, match=r"^n: "):
                await answers(stack, **fields, n=wrong)
        assert await stack.live_sessions() == 0
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in single]
    assert [answer.stats.seed for answer in together] == [2**64 - 2, 2**64 - 1, 0]
    assert all(answer.usage.completion_tokens == 20 for answer in together)


async def test_the_formats_of_draft_probs_differ_in_bytes(tiny_dir: MakeDir) -> None:
    """Dense sends the vocabulary, sparse some ids of it, none the drafts alone."""
    fields = {"token_ids": PROMPT, "max_tokens": 40, "temperature": 1.0, "ignore_eos": True}
    async with running(settings(tiny_dir(seed=0), tiny_dir(seed=0))) as stack:
        used = {
            name: (await stack.generate(**fields, seed=3, draft_probs=name)).stats
            for name in ("dense", "sparse", "none")
        }
        coupled = (await stack.generate(**fields, acceptance="coupled")).stats
    per_draft = {name: stats.bytes_drafter / stats.drafted for name, stats in used.items()}
    assert per_draft["dense"] > 4 * IDS > per_draft["sparse"] > 4 * 64
    assert per_draft["sparse"] < 600
    assert per_draft["none"] < 40
    assert coupled.bytes_drafter / coupled.drafted < 40
    assert used["dense"].accepted == used["dense"].judged  # the drafter has the target's weights
    assert used["none"].accepted < used["none"].judged
