"""Many clients at once: each gets what it would get alone, and none holds up the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.byte_tokenizer import EOS_ID
from support.services import SERVING, running, scripted, settings, take
from torch import Tensor

from paceline.client import Client
from paceline.config import GrpcConfig
from paceline.rpc.channel import open_channel
from paceline.rpc.credentials import NO_CREDENTIALS
from paceline.runtime.runner import Chunk
from paceline.runtime.scripted import ScriptedRunner, hashed_script

NUM_CLIENTS = 8


@pytest.mark.parametrize("draft", ["ngram", "other", "same"])
@pytest.mark.parametrize("adaptive", [False, True])
async def test_eight_clients_each_get_exactly_their_solo_output(
    draft: str,
    adaptive: bool,
    tiny_dir: Callable[..., Path],
    greedy: Callable[..., list[int]],
) -> None:
    """E01, E02: prompts of different lengths, windows of different sizes, one without drafts."""
    target = tiny_dir()
    drafts: dict[str, Path | str] = {"ngram": "ngram", "other": tiny_dir(1), "same": target}
    prompts = [[*range(3 * n + 1), *range(2 * n + 1)] for n in range(1, NUM_CLIENTS + 1)]
    lengths = [20 + 3 * n for n in range(NUM_CLIENTS)]
    speculation = {"speculation": {"adaptive": adaptive}}
    async with running(settings(target, drafts[draft], orchestrator=speculation)) as stack:

        async def one(index: int) -> list[int]:
            async with Client(stack.orchestrator.address) as client:
                chunks = client.generate(
                    token_ids=prompts[index],
                    max_tokens=lengths[index],
                    temperature=0,
                    window=None if adaptive else 1 + 2 * index,
                    speculation=index != 3,
                )
                return [token.id async for chunk in chunks for token in chunk.tokens]

        together = await asyncio.gather(*(one(index) for index in range(NUM_CLIENTS)))
        for index, found in enumerate(together):
            assert found == greedy(target, prompts[index], lengths[index]), index
        passes = (await stack.info("verifier")).counters["passes"]
        assert passes < sum(lengths), "the sessions shared passes"
        assert await stack.is_idle()


class EmulatedRunner(ScriptedRunner):
    """A scripted model on an emulated device: a pass takes `cost_s` and no CPU."""

    def __init__(
        self, script: Callable[[Sequence[int]], Tensor], *, cost_s: float, **settings: Any
    ) -> None:
        super().__init__(script, **settings)
        self._cost_s = cost_s

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        time.sleep(self._cost_s)
        return super().forward(chunks)


async def test_a_long_prompt_stops_neither_a_short_stream_nor_health_checks(
    byte_tokenizer_dir: Path,
) -> None:
    """E06: a prompt of 2,000 tokens in chunks; health answers in under 200 ms meanwhile."""
    target = EmulatedRunner(
        hashed_script(258), cost_s=0.01, vocab_size=258, num_pages=2048, context_length=4096
    )
    long_prompt = [index % 250 for index in range(2000)]
    runtime = {"runtime": {"max_batch_tokens": 128}}
    async with scripted(
        target, None, tokenizer=byte_tokenizer_dir, eos_token_ids=(EOS_ID,), verifier=runtime
    ) as stack:
        shorts = [
            stack.client.generate(
                token_ids=[number], max_tokens=800, temperature=0, ignore_eos=True
            )
            for number in range(3)
        ]
        for short in shorts:
            await take(short, 2)
        first_pass = len(target.passes)
        long = asyncio.ensure_future(
            stack.generate(token_ids=long_prompt, max_tokens=5, temperature=0)
        )
        channel = open_channel(stack.verifiers[0].address, NO_CREDENTIALS, GrpcConfig())
        health = health_pb2_grpc.HealthStub(channel)
        slowest = 0.0
        while not long.done():
            started = time.perf_counter()
            answer = await health.Check(health_pb2.HealthCheckRequest())
            slowest = max(slowest, time.perf_counter() - started)
            assert answer.status == SERVING
        for short in shorts:
            await short.aclose()
        await channel.close(None)
        assert slowest < 0.2
        prefill_passes = [
            chunks
            for chunks in target.passes[first_pass:]
            if any(num_logits == 0 for _, num_logits in chunks)
        ]
        assert len(prefill_passes) >= 2000 // 128
        for chunks in prefill_passes:
            assert chunks.count((1, 1)) == 3, "the short streams went on"

    one_shot = ScriptedRunner(
        hashed_script(258), vocab_size=258, num_pages=2048, context_length=4096
    )
    whole = {"runtime": {"max_batch_tokens": 4096}}
    async with scripted(
        one_shot, None, tokenizer=byte_tokenizer_dir, eos_token_ids=(EOS_ID,), verifier=whole
    ) as stack:
        result = await stack.generate(token_ids=long_prompt, max_tokens=5, temperature=0)
    assert one_shot.passes[0] == [(2000, 1)]
    assert result.token_ids == (await long).token_ids
