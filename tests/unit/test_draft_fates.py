"""Every draft token that reaches the verifier has one fate, whatever the order of things."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from support.pipeline import Pipeline, outputs

from paceline.config import TreeConfig, VerifierConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.telemetry.metrics import DISCARD_REASONS
from verifier_service.verifier import Verifier

VOCAB = 7
TARGET = hashed_script(VOCAB, seed=1)
GREEDY = SamplingParams(temperature=0, max_tokens=30)


def mostly_right(history: Sequence[int]) -> torch.Tensor:
    """Agrees with the target at most positions."""
    other = hashed_script(VOCAB, seed=2)
    return TARGET(history) if len(history) % 9 else other(history)


def check(verifier: Verifier) -> None:
    fates = verifier.counters["draft_tokens"] + sum(verifier.metrics.discards.values())
    for session in verifier._sessions.values():
        fates += len(session.tail) + session.outcomes.num_tokens
        fates += sum(session.discards.by_reason.values())
    assert fates == verifier.metrics.num_received


@pytest.mark.parametrize("tree", [None, TreeConfig(max_children=3, doubt=1.0)], ids=str)
def test_arrived_drafts_are_judged_or_discarded_for_one_reason(tree: TreeConfig | None) -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        chance = random.Random(seed)
        pipeline = Pipeline(
            ScriptedRunner(TARGET, vocab_size=VOCAB, num_pages=64),
            ScriptedRunner(mostly_right, vocab_size=VOCAB, num_pages=64),
            verifier_config=VerifierConfig(draft_patience_ms=10, max_drafts_per_pass=2),
            tree=tree,
        )
        verifier = pipeline.verifier_engine
        relays = [
            pipeline.open([1, 2, index], GREEDY, window=12, num_outcome_tokens=3)
            for index in range(2)
        ]
        for turn in range(160):
            possible = pipeline.hops()
            if possible:
                chance.choice(possible)()
            pipeline.now += chance.choice([0.0, 0.004])
            assert pipeline.drafter is not None
            if turn == 10 + seed and seed % 2:
                pipeline.drafter.lose()
            if turn == 20 + seed and seed % 2:
                pipeline.drafter.restore()
            if turn == 60 and seed % 4 == 0:
                relays[0].close()
            check(verifier)
        pipeline.run()
        check(verifier)
        assert len(outputs(relays[1])) == GREEDY.max_tokens
        for relay in relays:
            relay.close()
        pipeline.run()
        assert not verifier._sessions
        check(verifier)
        seen.update(verifier.metrics.discards)
    # trees are judged whole or void, so that no token of one is found to be known already
    wanted = DISCARD_REASONS if tree is None else ("rejected", "mismatch", "ended")
    assert all(seen[reason] for reason in wanted), seen
