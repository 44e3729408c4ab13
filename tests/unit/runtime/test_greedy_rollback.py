"""Greedy draft and verify over the ragged runner equals `generate` of transformers."""

from __future__ import annotations

import random

import pytest
from ragged_harness import greedy_with_drafts, plain_greedy, tiny_runner
from support.tiny_models import ARCHITECTURES, tiny_model


def _prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed * 1000 + length)
    return [rng.randrange(3, 320) for _ in range(length)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_random_wrong_drafts_never_change_greedy_output(arch: str) -> None:
    """D01, D02: drafts are right for a random stretch, then wrong, and rolled back."""
    prompts = [_prompt(3), _prompt(9), _prompt(20)]
    reference = tiny_model(arch)
    expected = [plain_greedy(reference, prompt, 30) for prompt in prompts]
    rng = random.Random(0)

    def drafts_of(session: int, done: int) -> list[int]:
        right = expected[session][done : done + rng.randint(0, 4)]
        return [*right, *(rng.randrange(320) for _ in range(rng.randint(0, 3)))]

    outputs, accepted = greedy_with_drafts(tiny_runner(arch), prompts, 30, drafts_of)

    assert outputs == expected
    assert {0, 4} <= {count for session in accepted for count in session}
    assert len({token for output in outputs for token in output}) > 5, "degenerate output"


@pytest.mark.parametrize("prompt_length", [10, 40])
def test_a_full_sliding_window_rolls_back_exactly(prompt_length: int) -> None:
    """D01: window 16, drafts of 4, right half of the time, 60 new tokens."""
    prompt = _prompt(prompt_length)
    expected = plain_greedy(tiny_model("mistral", sliding_window=16), prompt, 60)
    rng = random.Random(1)

    def drafts_of(_session: int, done: int) -> list[int]:
        right = expected[done : done + 4]
        return [token if rng.random() < 0.5 else (token + 1) % 320 for token in right]

    runner = tiny_runner("mistral", sliding_window=16)
    outputs, accepted = greedy_with_drafts(runner, [prompt], 60, drafts_of)

    assert outputs == [expected]
    assert 0 < sum(accepted[0]) < 4 * len(accepted[0])


def test_sessions_that_accept_different_counts_equal_their_solo_runs() -> None:
    """E01: prompts of 3, 9 and 17 ids accept 0, 2 and 4 of 4, round after round."""
    prompts = [_prompt(3), _prompt(9), _prompt(17)]
    forced = (0, 2, 4)
    reference = tiny_model("qwen3")
    expected = [plain_greedy(reference, prompt, 110) for prompt in prompts]

    def drafts_of(session: int, done: int) -> list[int]:
        block = expected[session][done : done + 4]
        right = forced[session]
        return [*block[:right], *((token + 1) % 320 for token in block[right:])]

    outputs, accepted = greedy_with_drafts(tiny_runner("qwen3"), prompts, 101, drafts_of)

    assert outputs == [tokens[:101] for tokens in expected]
    for session, counts in enumerate(accepted):
        assert len(counts) >= 20
        assert set(counts[:-1]) == {forced[session]}
