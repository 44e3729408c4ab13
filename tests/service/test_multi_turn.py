"""Conversations over real services: a turn computes what is new, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.byte_tokenizer import build_byte_tokenizer
from support.services import Stack, running, scripted, settings, take, until
from support.tiny_models import save_tiny_model
from test_cancellation import check_pool, model

from paceline.errors import InvalidArgumentError

PAGE = 8
TURNS = ("hello there", "and then?", "why", "tell me more of it", "no", "good bye now")
LETTERS = [32, *range(97, 123)]
NUM_TOKENS = 19
EXACT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Renders an answer as it was generated, so that a turn's prompt continues the turn before."""
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "coupled": {"temperature": 1, "seed": 7, "acceptance": "coupled"},
    "seeded": {"temperature": 1, "seed": 7, "acceptance": "rejection"},
}


@pytest.fixture(scope="module")
def chat_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """A random model of an architecture that speaks in bytes."""
    found: dict[tuple[str, int], Path] = {}

    def make(arch: str, seed: int) -> Path:
        if (arch, seed) not in found:
            found[arch, seed] = save_tiny_model(
                tmp_path_factory.mktemp(arch),
                arch,
                seed=seed,
                tokenizer=build_byte_tokenizer(chat_template=EXACT_TEMPLATE),
                eos_token_id=257,
            )
        return found[arch, seed]

    return make


def document(target: Path, draft: Path, *, reuse: bool, **runtime: Any) -> dict[str, Any]:
    worker = {"runtime": {"page_size": PAGE, "prefix_reuse": reuse, **runtime}}
    # never an answer without the drafter, whatever else the machine is doing
    patience = {"draft_patience_ms": 60_000, "seeded_draft_patience_ms": 60_000}
    return settings(target, draft, verifier=worker | patience, drafter=worker)


async def computed(stack: Stack) -> list[int]:
    """Prompt tokens that verifier and drafter have computed so far."""
    infos = [await stack.info(role) for role in ("verifier", "drafter")]
    return [info.counters["prefix_tokens_computed"] for info in infos]


async def converse(
    stack: Stack, rule: str, *, bounded: bool, num_turns: int = len(TURNS)
) -> list[list[int]]:
    """The ids of the answers; `bounded` checks what each turn may compute."""
    messages: list[dict[str, str]] = []
    answers: list[list[int]] = []
    known = 0
    for text in TURNS[:num_turns]:
        messages.append({"role": "user", "content": text})
        before = await computed(stack)
        result = await stack.generate(
            messages=messages, max_tokens=NUM_TOKENS, allowed_token_ids=LETTERS, **RULES[rule]
        )
        await until(stack.is_idle)
        prompt_length, cached = result.usage.prompt_tokens, result.usage.cached_prompt_tokens
        counts = [now - then for now, then in zip(await computed(stack), before, strict=True)]
        if bounded:
            assert counts[0] == prompt_length - cached
            assert max(counts) <= PAGE + prompt_length - known
        else:
            assert (counts, cached) == ([prompt_length] * 2, 0)
        known = prompt_length + len(result.token_ids)
        assert result.stats.drafted > 0
        answers.append(result.token_ids)
        messages.append({"role": "assistant", "content": result.text})
    return answers


@pytest.mark.parametrize(
    ("target", "draft", "rule"),
    [
        ("llama", "llama", "greedy"),
        ("llama", "llama", "seeded"),
        ("gemma3_text", "mistral", "greedy"),
        ("gemma3_text", "mistral", "coupled"),
    ],
)
async def test_six_turns_are_the_same_with_and_without_reuse(
    target: str, draft: str, rule: str, chat_dir: Callable[[str, int], Path]
) -> None:
    """A06, D01, D02: id by id; each turn computes at most a page and the new turn, on both sides.
    Sliding windows are 8 tokens, one page."""
    models = chat_dir(target, 0), chat_dir(draft, 1)
    async with running(document(*models, reuse=True)) as stack:
        warm = await converse(stack, rule, bounded=True)
        again = await converse(stack, rule, bounded=True, num_turns=2)
    async with running(document(*models, reuse=False)) as stack:
        cold = await converse(stack, rule, bounded=False)
    assert warm == cold
    assert again == cold[:2]


@pytest.mark.parametrize("arch", ["gemma3_text", "mistral"])
async def test_windows_slide_rightly_over_pages_that_others_filled(
    arch: str, chat_dir: Callable[[str, int], Path], greedy: Callable[..., list[int]]
) -> None:
    """D01, D02: window 8, pages of 4, prompts that are beginnings of one another in any order."""
    target = chat_dir(arch, 0)
    text = [*b"a text that is longer than every window", 1, 2]
    runtime = {"page_size": 4, "max_batch_tokens": 16}
    async with running(document(target, chat_dir(arch, 1), reuse=True, **runtime)) as stack:
        for length in (30, 6, 8, 9, 40, 31, 30):
            prompt = text[:length]
            wanted = greedy(target, prompt, NUM_TOKENS)
            found = await stack.generate(token_ids=prompt, max_tokens=NUM_TOKENS, temperature=0)
            assert found.token_ids == wanted
        reused = [(await stack.info(role)).counters for role in ("verifier", "drafter")]
        assert min(found["prefix_tokens_reused"] for found in reused) > 80


async def test_sessions_side_by_side_share_a_prefix_whoever_leaves(
    chat_dir: Callable[[str, int], Path], greedy: Callable[..., list[int]]
) -> None:
    """Eight with a long common beginning, every other one cancelled after a few tokens."""
    target = chat_dir("llama", 0)
    shared = [*b"you are a most helpful machine, and nothing else matters to you."]
    async with running(document(target, chat_dir("llama", 1), reuse=True)) as stack:
        await stack.generate(token_ids=[*shared, 1], max_tokens=2, temperature=0)

        async def one(index: int) -> None:
            fields: Any = {"token_ids": [*shared, index, 2], "max_tokens": 30, "temperature": 0}
            if index % 2:
                chunks = stack.client.generate(**fields)
                await take(chunks, index % 4)
                await chunks.aclose()
            else:
                result = await stack.generate(**fields)
                assert result.token_ids == greedy(target, fields["token_ids"], 30)
                assert result.usage.cached_prompt_tokens == 64

        for _ in range(2):
            await asyncio.gather(*(one(index) for index in range(8)))
            await until(stack.is_idle)


@pytest.mark.parametrize("num_chunks", [0, 1, 2])
async def test_a_prompt_that_was_cancelled_serves_the_next(
    num_chunks: int, byte_tokenizer_dir: Path
) -> None:
    """G08: 17 ids, then the same and three more; every finer point is a unit test."""
    target, draft = model(), model(1)
    prompt = [*range(17)]
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        fields: Any = {"max_tokens": 20, "temperature": 0}
        chunks = stack.client.generate(token_ids=prompt, **fields)
        if num_chunks:
            await take(chunks, num_chunks)
        else:
            waiting = asyncio.ensure_future(anext(chunks))
            await until(lambda: has_begun(stack))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await chunks.aclose()
        await until(stack.is_idle)
        warm = await stack.generate(token_ids=[*prompt, 4, 9, 4], **fields)
        cold = await stack.generate(token_ids=[*prompt, 4, 9, 4], **fields, cache_salt="cold")
        assert warm.token_ids == cold.token_ids
        assert cold.usage.cached_prompt_tokens == 0
        if num_chunks:
            assert warm.usage.cached_prompt_tokens == 16
    check_pool(target)
    check_pool(draft)


async def has_begun(stack: Stack) -> bool:
    return (await stack.info("verifier")).counters["prefix_tokens_computed"] > 0


async def test_salts_keep_tenants_apart_on_both_workers(byte_tokenizer_dir: Path) -> None:
    """What one has sent shows in nobody else's counts, and the ids are the same."""
    target, draft = model(), model()
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:

        async def ask(salt: str | None) -> tuple[int, list[int]]:
            result = await stack.generate(
                token_ids=[*range(30)], max_tokens=9, temperature=0, cache_salt=salt
            )
            await until(stack.is_idle)
            return result.usage.cached_prompt_tokens, result.token_ids

        found = [await ask(salt) for salt in (None, "a", "b", "a", None)]
        assert [cached for cached, _ in found] == [0, 0, 0, 28, 28]
        assert len({tuple(ids) for _, ids in found}) == 1
        drafting = (await stack.info("drafter")).counters
        assert drafting["prefix_tokens_reused"] == 2 * 28
        with pytest.raises(InvalidArgumentError, match="cache_salt: 257 characters; at most 256"):
            await ask("x" * 257)
        with pytest.raises(InvalidArgumentError, match="cache_salt: must not be empty"):
            await ask("")


async def test_a_full_cache_is_room_for_whoever_comes(byte_tokenizer_dir: Path) -> None:
    """D08: each prompt fills the pool; none waits, and the next pushes the last one out."""
    target, draft = model(num_pages=12), model(num_pages=12)
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        for turn in range(6):
            result = await stack.generate(
                token_ids=[*range(turn, turn + 36)], max_tokens=12, temperature=0
            )
            assert len(result.token_ids) == 12
            assert result.stats.accepted > 0
            await until(stack.is_idle)
        for role in ("verifier", "drafter"):
            assert (await stack.info(role)).counters["prefix_pages_evicted"] >= 5 * 10
    check_pool(target)
    check_pool(draft)
