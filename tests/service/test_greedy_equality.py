"""Greedy float32 output of the whole system over gRPC is the target's own, token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.byte_tokenizer import BOS_ID
from support.services import Stack, running, settings

PROMPT = "The cat sat on the mat; the cat"
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_TEXT = "user: hi\nassistant:"
REPEATED = 2 * list(range(5, 18))
"""Something for prompt lookup to find."""
NUM_TOKENS = 48


def byte_ids(text: str) -> list[int]:
    return [BOS_ID, *text.encode()]


@pytest.mark.parametrize("draft", ["ngram", "same", "other"])
async def test_any_drafter_and_window_gives_the_targets_own_greedy_text(
    draft: str, tiny_dir: Callable[..., Path], greedy: Callable[..., list[int]]
) -> None:
    """A11: prompts as text, ids and chat; windows 1, 4 and 12."""
    target = tiny_dir()
    drafts: dict[str, Path | str] = {"ngram": "ngram", "same": target, "other": tiny_dir(1)}
    ways: list[tuple[dict[str, Any], list[int], tuple[int, ...]]] = [
        ({"prompt": PROMPT}, byte_ids(PROMPT), (4,)),
        ({"messages": MESSAGES}, byte_ids(CHAT_TEXT), (4,)),
        ({"token_ids": REPEATED}, REPEATED, (1, 4, 12)),
    ]
    async with running(settings(target, drafts[draft])) as stack:
        for given, prompt_ids, windows in ways:
            wanted = greedy(target, prompt_ids, NUM_TOKENS)
            for window in windows:
                result = await stack.generate(
                    **given, max_tokens=NUM_TOKENS, temperature=0, window=window
                )
                assert result.token_ids == wanted, (draft, window)
                assert result.usage.prompt_tokens == len(prompt_ids)
                assert result.usage.completion_tokens == len(wanted)
                assert result.finish_reason == ("length" if len(wanted) == NUM_TOKENS else "stop")
                assert result.text == decoded(result.token_ids)
        check_speculated(draft, result.stats)
        await check_no_speculation(stack, ways[0][0], greedy(target, ways[0][1], NUM_TOKENS))


def check_speculated(draft: str, stats: Any) -> None:
    assert stats.speculation == "on"
    assert stats.drafted > 0
    if draft == "same":
        assert stats.epochs == 0  # nothing is rejected; an end may cut the last pass
        assert 0 <= stats.judged - stats.accepted < 12
        assert stats.mean_acceptance_length > 3
    if draft == "other":
        assert stats.accepted < stats.judged


async def check_no_speculation(stack: Stack, given: dict[str, Any], wanted: list[int]) -> None:
    result = await stack.generate(**given, max_tokens=NUM_TOKENS, temperature=0, speculation=False)
    assert result.token_ids == wanted
    assert result.stats.speculation == "off"
    assert result.stats.drafted == 0
    assert set(result.origins) == {"prefill", "autoregressive"}


def decoded(token_ids: list[int]) -> str:
    return bytes(i for i in token_ids if i < 256).decode(errors="replace")


@pytest.mark.parametrize("widths", [(384, 320), (320, 384)])
async def test_heads_padded_to_different_widths_are_a_pair(
    widths: tuple[int, int], tiny_dir: Callable[..., Path], greedy: Callable[..., list[int]]
) -> None:
    """C01: 300 real ids, heads of 320 and 384 columns; padding is never drafted nor emitted."""
    target_width, draft_width = widths
    target = tiny_dir(0, target_width, specials=42)
    draft = tiny_dir(1, draft_width, specials=42)
    prompt = list(range(20, 60))
    wanted = greedy(target, prompt, NUM_TOKENS, vocab_size=300)
    async with running(settings(target, draft)) as stack:
        result = await stack.generate(token_ids=prompt, max_tokens=NUM_TOKENS, temperature=0)
        assert result.token_ids == wanted
        for rule in ("rejection", "block", "coupled"):
            sampled = await stack.generate(
                token_ids=prompt,
                max_tokens=60,
                temperature=5.0,
                acceptance=rule,
                ignore_eos=True,
                seed=3,
            )
            assert len(sampled.token_ids) == 60
            assert max(sampled.token_ids) < 300
            assert sampled.stats.judged > 0


async def test_a_draft_with_a_shorter_context_drafts_as_far_as_it_reaches(
    tiny_dir: Callable[..., Path], greedy: Callable[..., list[int]]
) -> None:
    """D04: draft limit 32, target 128; only the long session goes without drafts."""
    target, draft = tiny_dir(context=128), tiny_dir(context=32)
    long, medium, short = list(range(1, 41)), list(range(1, 29)), list(range(1, 9))
    async with running(settings(target, draft)) as stack:
        result = await stack.generate(token_ids=long, max_tokens=60, temperature=0)
        assert result.token_ids == greedy(target, long, 60)
        assert result.stats.drafted == 0

        result = await stack.generate(token_ids=medium, max_tokens=30, temperature=0)
        assert result.token_ids == greedy(target, medium, 30)
        assert 0 < result.stats.drafted <= 4
        assert all(origin == "autoregressive" for origin in result.origins[5:])

        result = await stack.generate(token_ids=short, max_tokens=20, temperature=0)
        assert result.token_ids == greedy(target, short, 20)
        assert result.stats.accepted > 10


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")])
async def test_drafter_and_verifier_may_compute_in_different_dtypes(
    dtypes: tuple[str, str], tiny_dir: Callable[..., Path]
) -> None:
    """I04: the wire carries plain ids and float32; a fixed seed gives the same text twice.

    One block at a time, so that both runs make the same passes: in bfloat16 another number of rows
    rounds otherwise.
    """
    document = settings(tiny_dir(), tiny_dir())
    document["verifier"]["model"]["dtype"], document["drafter"]["model"]["dtype"] = dtypes
    async with running(document) as stack:
        fields = {"token_ids": [5, 6, 7], "max_tokens": 60, "seed": 11, "ignore_eos": True}
        fields |= {"window": 4, "num_speculative_tokens": 4}
        first, second = [await stack.generate(**fields, temperature=1.0) for _ in range(2)]
        assert first.token_ids == second.token_ids
        assert len(first.token_ids) == 60
        assert first.stats.accepted > 20
        infos = [await stack.info("verifier"), await stack.info("drafter")]
        assert tuple(info.dtype for info in infos) == dtypes
