"""Features on their way from verdicts to advances, in every order of events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.feature_witness import FeatureWitness, joined
from support.pipeline import Pipeline
from torch import Tensor

from orchestrator.feature_flow import FeatureFlow
from orchestrator.relay import Relay
from paceline.features import Features
from paceline.runtime.runner import Chunk
from paceline.runtime.scripted import ScriptedRunner, _seen, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams

VOCAB = 8
SIZE = 3
TARGET = hashed_script(VOCAB, seed=1)
PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [2, 1], [3])
NUM_TOKENS = 25


def hidden_after(history: Sequence[int]) -> list[float]:
    """What the scripted target reads at the last of these tokens; exact in bfloat16."""
    return [len(history), history[-1], sum(history) % 64]


class TellingRunner(ScriptedRunner):
    """A scripted target that shows hidden states, of whatever the page table holds."""

    feature_size = SIZE

    def forward_with_features(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[Tensor]]:
        logits = self.forward(chunks)
        hidden = []
        for chunk in chunks:
            table = chunk.table
            tokens = [self._cached_ids[table.slot(position)] for position in range(table.length)]
            first = table.length - len(chunk.token_ids)
            rows = [
                hidden_after(_seen(tokens, end + 1, chunk)) for end in range(first, table.length)
            ]
            hidden.append(torch.tensor(rows))
        return logits, hidden


def guess(tokens: Sequence[int]) -> int:
    """Right two times in three for a greedy target."""
    right = int(TARGET(tokens).argmax())
    return right if len(tokens) % 3 else (right + 1) % VOCAB


def pipeline_of(witness: FeatureWitness) -> Pipeline:
    pipeline = Pipeline(TellingRunner(TARGET, vocab_size=VOCAB), witness)
    assert pipeline.drafter is not None
    for worker in (pipeline.verifier, pipeline.drafter):
        worker.info = replace(worker.info, feature_size=SIZE)
    return pipeline


def expected(text: Sequence[int], start: int, end: int) -> list[list[float]]:
    return [hidden_after(text[: position + 1]) for position in range(start, end)]


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "coupled": {"acceptance": Acceptance.COUPLED},
    "rejection": {"acceptance": Acceptance.REJECTION, "temperature": 0.3},
    "block": {"acceptance": Acceptance.BLOCK, "temperature": 0.3},
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("window", [1, 6])
def test_every_committed_position_is_told_once_in_order_and_as_the_target_read_it(
    window: int, sampling: dict[str, Any]
) -> None:
    """With drafts accepted, rejected, overtaken and in flight; with a bonus and without."""
    for order in range(8):
        witness = FeatureWitness(guess, feature_size=SIZE)
        pipeline = pipeline_of(witness)
        params = SamplingParams(max_tokens=NUM_TOKENS, seed=order, **sampling)
        relays: list[Relay] = [
            pipeline.open(prompt, params, window=window, num_speculative_tokens=min(3, window))
            for prompt in PROMPTS
        ]
        shuffled = random.Random(order)
        while any(relay._verifier.worker is not None for relay in relays):
            possible = pipeline.hops()
            if possible:
                shuffled.choice(possible)()
            else:
                due = pipeline.verifier_engine.next_step_at(pipeline.now)
                assert due is not None
                pipeline.now = due
        accepted = 0
        for relay, told in zip(relays, witness.told.values(), strict=True):
            text = relay.session.tokens
            found = joined(told)
            assert found.tolist() == expected(text, 0, len(found))
            assert len(found) >= len(text) - window - 2
            accepted += relay.session.counts.accepted
        assert accepted > 0


def test_a_drafter_that_comes_later_is_told_from_then_on() -> None:
    """What it missed is gone; what the verifier sent meanwhile to nobody was not made."""
    witness = FeatureWitness(guess, feature_size=SIZE)
    pipeline = pipeline_of(witness)
    assert pipeline.drafter is not None
    relay = pipeline.open(PROMPTS[0], SamplingParams(temperature=0, max_tokens=60))
    while len(relay.session.tokens) < 20:
        pipeline.hops()[0]()
    pipeline.drafter.lose()
    before = witness.told.copy()
    while len(relay.session.tokens) < 30:
        pipeline.hops()[0]()
    pipeline.drafter.restore()
    pipeline.run()
    (later,) = [told for key, told in witness.told.items() if key not in before]
    assert later[0].base >= 29
    for features in later:
        found = features.values.tolist()
        assert found == expected(relay.session.tokens, features.base, features.end)


def test_the_target_shows_no_features_to_a_drafter_that_is_off() -> None:
    witness = FeatureWitness(guess, feature_size=SIZE)
    pipeline = pipeline_of(witness)
    relay = pipeline.open(PROMPTS[0], SamplingParams(temperature=0, max_tokens=60))
    while len(relay.session.tokens) < 12:
        pipeline.hops()[0]()
    (session,) = pipeline.verifier_engine._sessions.values()
    assert session.sends_features
    session.set_speculation(enabled=False)
    assert not session.sends_features


def test_another_drafter_is_told_again_what_the_last_one_knew() -> None:
    flow = FeatureFlow()
    features = Features.of(0, torch.ones(4, SIZE))
    assert flow.fresh(features) is not None
    assert flow.fresh(features) is None
    assert flow.fresh(None) is None
    flow.restart()
    again = flow.fresh(features)
    assert again is not None
    assert again.end == 4


def test_of_a_tree_the_accepted_path_is_told() -> None:
    """L03: whose nodes do not lie side by side."""
    witness = FeatureWitness(
        guess, feature_size=SIZE, others=lambda tokens: (len(tokens) * 3) % VOCAB
    )
    pipeline = pipeline_of(witness)
    sampling = SamplingParams(temperature=0, max_tokens=60)
    relay = pipeline.open(PROMPTS[0], sampling, window=6, num_speculative_tokens=6)
    pipeline.run()
    (told,) = witness.told.values()
    found = joined(told)
    assert relay.session.counts.accepted > 20
    assert found.tolist() == expected(relay.session.tokens, 0, len(found))
