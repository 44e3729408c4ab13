"""The law of sampled text with other outcomes drafted ahead: the target's, by every rule.

Real engines and a real relay, in one thread and a fixed order, so that the figures are the same in
every run. Each token's law given the one before it is known exactly; the counts of all transitions
together are tested by chi-square.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.pipeline import Pipeline, outputs
from support.transitions import TARGET, VOCAB, p_value

from paceline.runtime.scripted import ScriptedRunner, table_script
from paceline.sampling.params import Acceptance, SamplingParams

DRAFT = {
    0: {0: 0.3, 1: 0.2, 2: 0.5},
    1: {0: 0.2, 1: 0.5, 2: 0.3},
    2: {0: 0.4, 1: 0.1, 2: 0.3, 3: 0.2},
    3: {0: 0.2, 1: 0.3, 3: 0.5},
}
NUM_ROUNDS = 15
LENGTH = 48


def drafter_first(pipeline: Pipeline) -> None:
    """Let everything happen; the drafter has all the time that it wants before each pass."""
    while True:
        if possible := pipeline.hops():
            possible[-1]()
            continue
        due = pipeline.verifier_engine.next_step_at(pipeline.now)
        if due is None:
            return
        pipeline.now = due


def texts(acceptance: Acceptance, **fields: Any) -> tuple[list[list[int]], int]:
    """Of four sessions at a time, and how many rejections found drafts."""
    pipeline = Pipeline(
        ScriptedRunner(table_script(TARGET, VOCAB), vocab_size=VOCAB),
        ScriptedRunner(table_script(DRAFT, VOCAB), vocab_size=VOCAB),
    )
    found: list[list[int]] = []
    for turn in range(NUM_ROUNDS):
        relays = [
            pipeline.open(
                [index],
                SamplingParams(max_tokens=LENGTH, acceptance=acceptance, seed=4 * turn + index),
                window=4,
                num_speculative_tokens=2,
                draft_top_k=3,
                num_outcome_tokens=2,
                **fields,
            )
            for index in range(4)
        ]
        drafter_first(pipeline)
        found += [outputs(relay) for relay in relays]
        for relay in relays:
            relay.close()
        drafter_first(pipeline)
    assert pipeline.drafter is not None
    return found, pipeline.drafter.engine.counters["outcomes_used"]


@pytest.mark.parametrize("acceptance", Acceptance)
def test_what_is_said_follows_the_target(acceptance: Acceptance) -> None:
    found, num_used = texts(acceptance)
    assert sum(map(len, found)) == 4 * NUM_ROUNDS * LENGTH
    assert num_used > 100, "nothing was tested"
    assert p_value(found) > 0.001
