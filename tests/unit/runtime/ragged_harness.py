"""Drives a runner and a plain model side by side."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from support.tiny_models import tiny_loaded
from torch import Tensor
from transformers import PreTrainedModel

from paceline.config import RuntimeConfig
from paceline.runtime.model_runner import ModelRunner
from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """Logits `[num_tokens, vocab]` of one ordinary forward without a cache."""
    ids = torch.tensor([list(token_ids)])
    logits: Tensor = model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    return logits


@torch.inference_mode()
def plain_greedy(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What `generate` of transformers says, greedily, ignoring end tokens."""
    ids = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = None
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens
    )
    result: list[int] = output[0, len(prompt) :].tolist()
    return result


def tiny_runner(
    arch: str = "llama", *, page_size: int = 4, kv_tokens: int = 1024, **overrides: object
) -> ModelRunner:
    """A runner over a tiny model that has passed the self-check."""
    runtime = RuntimeConfig(page_size=page_size, kv_tokens=kv_tokens)
    return build_runner(tiny_loaded(arch, **overrides), runtime)


@dataclass
class Track:
    """One session of a schedule: its page table and the tokens that the table should hold."""

    table: PageTable
    tokens: list[int] = field(default_factory=list)


def run_schedule(
    runner: ModelRunner, reference: PreTrainedModel, seed: int, *, num_passes: int, max_length: int
) -> float:
    """Random passes over several sessions; returns the largest difference from plain forwards.

    Each pass takes some sessions, each with a chunk of random length: a piece of a prompt, one
    token, or a draft of which a random part is rolled back after it.
    """
    rng = random.Random(seed)
    tracks = [Track(runner.pool.open_table(max_length)) for _ in range(4)]
    worst = 0.0
    for _ in range(num_passes):
        picked = rng.sample(tracks, rng.randint(1, len(tracks)))
        chunks: list[Chunk] = []
        for track in picked:
            if len(track.tokens) > max_length - 12:
                track.table.truncate(keep := rng.randint(0, 5))
                del track.tokens[keep:]
            count = rng.choice((1, 1, 2, 5, 11))
            token_ids = [rng.randrange(runner.vocab_size) for _ in range(count)]
            track.tokens += token_ids
            chunks.append(Chunk(track.table, token_ids, rng.randint(0, count)))
        logits = runner.forward(chunks)
        row = 0
        for track, chunk in zip(picked, chunks, strict=True):
            assert track.table.length == len(track.tokens)
            expected = plain_logits(reference, track.tokens)
            expected = expected[len(expected) - chunk.num_logits :]
            got = logits[row : row + chunk.num_logits]
            row += chunk.num_logits
            if chunk.num_logits:
                worst = max(worst, float((got - expected).abs().max()))
            rejected = rng.randint(0, len(chunk.token_ids))
            if rng.random() < 0.5 and rejected:
                del track.tokens[-rejected:]
                track.table.truncate(len(track.tokens))
        assert row == len(logits)
    for track in tracks:
        track.table.free()
    runner.pool.check_integrity()
    assert runner.pool.used_pages == 0
    return worst


DraftsOf = Callable[[int, int], Sequence[int]]
"""Drafts of session i that has n output tokens."""


def greedy_with_drafts(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], num_tokens: int, drafts_of: DraftsOf
) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy draft and verify, all sessions in each pass; outputs and accepted lengths."""
    slack = 16
    tables = [runner.pool.open_table(len(prompt) + num_tokens + slack) for prompt in prompts]
    outputs: list[list[int]] = [[] for _ in prompts]
    accepted: list[list[int]] = [[] for _ in prompts]
    logits = runner.forward(
        [Chunk(table, prompt, 1) for table, prompt in zip(tables, prompts, strict=True)]
    )
    for output, token in zip(outputs, logits.argmax(-1).tolist(), strict=True):
        output.append(token)
    while live := [i for i, output in enumerate(outputs) if len(output) < num_tokens]:
        drafts = {i: list(drafts_of(i, len(outputs[i]))) for i in live}
        chunks = [Chunk(tables[i], [outputs[i][-1], *drafts[i]], len(drafts[i]) + 1) for i in live]
        choices = runner.forward(chunks).argmax(-1).tolist()
        for i in live:
            mine, choices = choices[: len(drafts[i]) + 1], choices[len(drafts[i]) + 1 :]
            count = 0
            while count < len(drafts[i]) and drafts[i][count] == mine[count]:
                count += 1
            outputs[i] += mine[: count + 1]
            accepted[i].append(count)
            tables[i].truncate(len(prompts[i]) + len(outputs[i]) - 1)
    for table in tables:
        table.free()
    return [output[:num_tokens] for output in outputs], accepted
