"""What a drafter service makes of features in its advances."""

from __future__ import annotations

from typing import Any

import torch
from drafter_harness import LINK, PROMPT, CountingDrafter, DrafterBench, only_error, opening
from support.feature_witness import FeatureWitness

from paceline.features import Features
from paceline.types import Advance


def bench_of(**changes: Any) -> DrafterBench:
    bench = DrafterBench(FeatureWitness(lambda tokens: 4, feature_size=2))
    bench.post(opening(**changes))
    return bench


def advance(base: int, *token_ids: int, features: Features) -> Advance:
    return Advance(1, 0, base, token_ids, features=features)


def test_they_reach_the_drafter_before_it_is_asked_again() -> None:
    bench = bench_of(features=True)
    bench.run()
    features = Features.of(0, torch.ones(len(PROMPT), 2))
    assert bench.post(advance(len(PROMPT), 7, features=features)) == []
    assert bench.drafter.told[LINK, 1] == [features]
    (block, _) = bench.run()
    assert block.token_ids == (4, 4, 4, 4)


def test_a_session_that_was_opened_without_takes_none() -> None:
    """Nor does a drafter that has no use for them."""
    features = Features.of(0, torch.ones(1, 2))
    bench = DrafterBench(FeatureWitness(lambda tokens: 4, feature_size=0))
    bench.post(opening())
    error = only_error(bench.post(advance(3, 7, features=features)))
    assert (error.code, error.message[:9]) == ("INVALID_ARGUMENT", "features:")
    plain = DrafterBench(CountingDrafter())
    plain.post(opening(features=True))
    assert only_error(plain.post(advance(3, 7, features=features))).code == "INVALID_ARGUMENT"


def test_the_last_committed_token_has_none_yet() -> None:
    bench = bench_of(features=True)
    features = Features.of(0, torch.ones(4, 2))
    error = only_error(bench.post(advance(3, 7, features=features)))
    assert error.message == "features: positions up to 4 of 4 committed tokens"
