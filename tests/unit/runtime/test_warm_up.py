"""Passes before the first request leave nothing behind."""

from __future__ import annotations

import pytest
from support.pipeline import cascade_of

from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.runtime.warm_up import DECODED, PROMPT_TOKENS, ROUNDS, warm_up

VOCAB = 11


def runner(**options: int) -> ScriptedRunner:
    return ScriptedRunner(hashed_script(VOCAB, seed=1), vocab_size=VOCAB, **options)


def test_a_prompt_and_what_is_decoded_after_it() -> None:
    model = runner()
    warm_up(model)
    sizes = [number for ((number, _),) in model.passes]
    assert sizes == [PROMPT_TOKENS, *DECODED] * ROUNDS
    assert model.pool.used_pages == model.pool.reserved_pages == 0


@pytest.mark.parametrize("options", [{"context_length": 12}, {"num_pages": 3, "page_size": 4}])
def test_a_small_context_or_pool_has_a_shorter_prompt(options: dict[str, int]) -> None:
    model = runner(**options)
    warm_up(model)
    assert [number for ((number, _),) in model.passes] == [4, *DECODED] * ROUNDS
    assert model.pool.used_pages == 0


def test_one_without_room_for_any_is_left_alone() -> None:
    model = runner(context_length=8)
    warm_up(model)
    assert model.passes == []


def test_a_cascade_warms_its_model() -> None:
    model = runner()
    cascade_of(model, 1, 2).warm_up()
    assert model.passes
