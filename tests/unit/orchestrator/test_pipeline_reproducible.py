"""Same request, same seed, same ids: whatever the order in which the pipeline's messages travel."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.pipeline import Pipeline, cascade_of, outputs, verdicts, worker_info

from drafter_service.drafter import Drafter
from drafter_service.model import ModelDrafter
from drafter_service.ngram import NgramDrafter
from paceline.config import NgramConfig, RuntimeConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams

VOCAB = 5
TARGET = hashed_script(VOCAB, seed=1, order=1)
DRAFT = hashed_script(VOCAB, seed=2, order=1)

DRAFTERS: dict[str, Callable[[], ScriptedRunner | Drafter]] = {
    "model": lambda: ScriptedRunner(DRAFT, vocab_size=VOCAB),
    "ngram": lambda: NgramDrafter(NgramConfig(min_match=1, max_match=2)),
    "cascade": lambda: cascade_of(ScriptedRunner(DRAFT, vocab_size=VOCAB), 1, 2),
    "unsure model": lambda: ModelDrafter(
        ScriptedRunner(lambda tokens: TARGET(tokens) + 0.2 * DRAFT(tokens), vocab_size=VOCAB),
        RuntimeConfig(),
        worker_info("model", VOCAB),
        min_confidence=0.45,
    ),
}


def generate(
    drafter: str, acceptance: Acceptance, window: int, *, order: int, seed: int, neighbours: int = 0
) -> list[int]:
    """One seeded generation, its events shuffled by `order`, beside other sessions."""
    pipeline = Pipeline(ScriptedRunner(TARGET, vocab_size=VOCAB), DRAFTERS[drafter]())
    shape = {"num_speculative_tokens": min(3, window), "window": window, "draft_top_k": 2}
    sampling = SamplingParams(seed=seed, max_tokens=30, acceptance=acceptance)
    relay = pipeline.open([1, 2, 3, 1, 2], sampling, reproducible=True, commit_credit=12, **shape)
    for other in range(neighbours):
        pipeline.open([other], SamplingParams(seed=other, max_tokens=20), **shape)
    shuffled = random.Random(order)
    finished = False
    while not finished:
        possible = pipeline.hops()
        if possible:
            shuffled.choice(possible)()
        else:
            due = pipeline.verifier_engine.next_step_at(pipeline.now)
            assert due is None or due - pipeline.now <= 0.011, (
                "a seeded session ran out of patience"
            )
            pipeline.now = pipeline.now if due is None else due
        relay.taken(len(outputs(relay)))
        finished = any(verdict.finish_reason for verdict in verdicts(relay))
    return outputs(relay)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("window", [1, 3, 9])
@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.BLOCK])
def test_a_seed_gives_one_output_in_every_order_of_events(
    drafter: str, acceptance: Acceptance, window: int
) -> None:
    """A06: alone and beside others, with drafts early and late."""
    expected = generate(drafter, acceptance, window, order=0, seed=7)
    for order in range(1, 13):
        again = generate(
            drafter, acceptance, window, order=order, seed=7, neighbours=3 * (order % 2)
        )
        assert again == expected
    assert generate(drafter, acceptance, window, order=0, seed=8) != expected
