"""Blocks that end early: where the model is unsure, and until the end is judged nothing follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from drafter_harness import PROMPT, VOCAB, DrafterBench, drafted, opening
from support.pipeline import Pipeline, cascade_of, outputs, reference, worker_info

from drafter_service.confidence import confidences
from drafter_service.model import ModelDrafter
from paceline.config import RuntimeConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import Advance, DraftBlock, DrafterState

PAUSED, RUNNING, UNSURE = DrafterState.PAUSED, DrafterState.RUNNING, DrafterState.UNSURE
UNSURE_AT = (5, 14)
"""Positions of whose tokens the model holds none likely."""


def script(history: Sequence[int]) -> torch.Tensor:
    row = torch.zeros(VOCAB)
    row[len(history) % VOCAB] = 1.0 if len(history) in UNSURE_AT else 9.0
    return row


def drafter(min_confidence: float = 0.5, **options: int) -> ModelDrafter:
    return ModelDrafter(
        ScriptedRunner(script, vocab_size=VOCAB, **options),
        RuntimeConfig(),
        worker_info("model", VOCAB),
        min_confidence=min_confidence,
    )


def bench_of(min_confidence: float = 0.5, **changes: Any) -> DrafterBench:
    bench = DrafterBench(drafter(min_confidence))
    bench.post(opening(**changes))
    return bench


def shapes(replies: Sequence[DraftBlock]) -> list[tuple[int, int, DrafterState]]:
    return [(block.base, len(block.token_ids), block.state) for block in replies]


def test_a_block_ends_with_the_token_before_which_the_model_was_unsure() -> None:
    """Position 5, of a window of 8 from 3 on; a sure model fills it."""
    assert shapes(bench_of().run()) == [(3, 3, UNSURE)]
    assert shapes(bench_of(0.0).run()) == [(3, 4, RUNNING), (7, 4, PAUSED)]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0, max_tokens=50),
        SamplingParams(temperature=3.0, max_tokens=50),
        SamplingParams(top_k=1, max_tokens=50),
    ],
)
def test_the_models_own_law_decides_whatever_the_request(sampling: SamplingParams) -> None:
    (block,) = bench_of(sampling=sampling, draft_top_k=1).run()
    assert (len(block.token_ids), block.state) == (3, UNSURE)


def test_nothing_is_drafted_behind_it_before_it_is_final() -> None:
    bench = bench_of()
    bench.run()
    bench.advance(3)
    bench.advance(4)
    assert bench.run() == []
    bench.advance(5)
    assert shapes(bench.run()) == [(6, 4, RUNNING), (10, 4, PAUSED)]


def test_with_the_token_after_it_that_the_target_said_drafting_goes_on() -> None:
    bench = bench_of()
    bench.run()
    bench.advance(3, 4, 5, 9)
    assert drafted(bench.run())[:2] == [7, 8]


def test_a_rejection_before_it_wakes_the_drafter() -> None:
    bench = bench_of()
    bench.run()
    bench.advance(3, 9, epoch=1)
    assert shapes(bench.run()) == [(5, 1, UNSURE)], "the same place is unsure again"
    bench.advance(epoch=2)  # told to start anew
    assert shapes(bench.run()) == [(5, 1, UNSURE)]


def test_an_advance_says_how_sure_the_model_has_to_be_of_all_of_a_block() -> None:
    """It holds each token likely with 0.9988, and one of them, at 5, with 0.2."""
    for min_confidence, blocks in (
        (0.9995, [(3, 1, UNSURE)]),
        (0.998, [(3, 2, UNSURE)]),
        (0.5, [(3, 3, UNSURE)]),
        (0.1, [(3, 4, RUNNING), (7, 4, PAUSED)]),
    ):
        bench = bench_of(0.0)
        bench.post(Advance(1, 0, 3, (), min_confidence=min_confidence))
        assert shapes(bench.run()) == blocks
    bench.post(Advance(1, 0, 3, (3, 4, 5, 6, 7), min_confidence=0.998))
    assert shapes(bench.run())[-1] == (11, 1, UNSURE), "8 to 10 are on their way"


def test_the_last_token_of_a_full_window_may_be_unsure_too() -> None:
    """Whether a window was full at that moment is timing."""
    bench = bench_of(window=3, num_speculative_tokens=3)
    assert shapes(bench.run()) == [(3, 3, UNSURE)]


def test_a_cascades_model_may_be_unsure() -> None:
    bench = DrafterBench(cascade_of(ScriptedRunner(script, vocab_size=VOCAB), 2, 4))
    bench.drafter._model = drafter()
    bench.post(opening())
    assert shapes(bench.run()) == [(3, 3, UNSURE)]


def test_confidence_is_the_largest_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, float("-inf"), -3.0, 2.0]])
    assert confidences(logits) == pytest.approx(logits.softmax(1).amax(1).tolist())
    assert confidences(logits.bfloat16()) == pytest.approx(confidences(logits), abs=1e-2)


@pytest.mark.parametrize("window", [1, 4, 12])
def test_short_blocks_leave_the_targets_greedy_text_alone(window: int) -> None:
    """And a drafter that ends blocks has more of its drafts accepted."""
    target, noise = hashed_script(VOCAB, seed=1), hashed_script(VOCAB, seed=2)
    rates = []
    for min_confidence in (0.0, 0.5):
        draft = ScriptedRunner(
            lambda history: target(history) + 0.6 * noise(history), vocab_size=VOCAB
        )
        model = ModelDrafter(
            draft, RuntimeConfig(), worker_info("model", VOCAB), min_confidence=min_confidence
        )
        pipeline = Pipeline(ScriptedRunner(target, vocab_size=VOCAB), model)
        relay = pipeline.open(PROMPT, SamplingParams(temperature=0, max_tokens=150), window=window)
        pipeline.run()
        assert outputs(relay) == reference(target, PROMPT, 150)
        rates.append(relay.session.counts.accepted / relay.session.counts.drafted)
    assert rates[1] > rates[0] or window == 1
