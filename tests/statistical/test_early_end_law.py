"""Ending a block where the drafter is unsure: exact by its distribution, biased by its draw."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from exact_law import distance, draft_sequences, expected_accepted, output_law
from toy_pair import PROMPT, Tokens, ToyPair

from drafter_service.confidence import confidences
from paceline.sampling.params import Acceptance, SamplingParams

SAMPLED = [Acceptance.REJECTION, Acceptance.BLOCK]
THRESHOLD = 0.5
TOLERANCE = 1e-6


@dataclass(frozen=True)
class UnsurePair(ToyPair):
    """Its drafter ends a block as the production drafter does."""

    threshold: float = THRESHOLD

    def ends_block(self, tokens: Tokens) -> bool:
        return confidences(self.draft_logits(tokens)[None])[0] < self.threshold


@dataclass(frozen=True)
class UnsureOfAll(ToyPair):
    """Its drafter ends a block where the product of its confidences falls below a limit."""

    least: float = THRESHOLD

    def ends_block(self, tokens: Tokens) -> bool:
        drafted = range(len(PROMPT), len(tokens) + 1)
        found = [confidences(self.draft_logits(tokens[:end])[None])[0] for end in drafted]
        return math.prod(found) < self.least


def thrown_away(pair: ToyPair, tokens: Tokens, length: int) -> Iterator[tuple[Tokens, float]]:
    """Blocks of a drafter that draws a token, finds that it was unlikely, and ends before it."""
    for drafts, weight in draft_sequences(pair, tokens, length):
        kept: Tokens = ()
        for token in drafts:
            row = pair.draft_row(tokens + kept).dense_row(0, pair.vocab_size)
            if float(row[token]) < THRESHOLD:
                break
            kept += (token,)
        yield kept, weight


SAMPLING = SamplingParams(temperature=0.9)


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("draft_top_k", [0, 2])
@pytest.mark.parametrize("acceptance", SAMPLED)
def test_ending_by_the_distribution_before_the_draw_keeps_the_law(
    acceptance: Acceptance, draft_top_k: int, bonus: bool
) -> None:
    """Over several rounds of up to three drafts; under `block` the joint rule sees the end too."""
    prefixes = [PROMPT, *((*PROMPT, token) for token in range(4))]
    lengths: set[int] = set()
    for threshold in (0.4, 0.5, 0.6, 0.7):
        pair = UnsurePair(4, SAMPLING, draft_top_k, threshold=threshold)
        for tokens in prefixes:
            lengths |= {len(drafts) for drafts, _ in draft_sequences(pair, tokens, 3)}
        law = output_law(pair, acceptance, 3, 3, bonus=bonus)
        assert sum(law.values()) == pytest.approx(1.0, abs=1e-6)
        assert distance(law, pair.target_law(PROMPT, 3)) < TOLERANCE
    assert lengths == {1, 2, 3}


@pytest.mark.parametrize("acceptance", SAMPLED)
def test_ending_by_the_confidence_in_all_of_a_block_keeps_the_law(acceptance: Acceptance) -> None:
    lengths: set[int] = set()
    for least in (0.2, 0.3, 0.4, 0.6):
        pair = UnsureOfAll(4, SAMPLING, 0, least=least)
        lengths |= {len(drafts) for drafts, _ in draft_sequences(pair, PROMPT, 3)}
        law = output_law(pair, acceptance, 3, 3, bonus=True)
        assert distance(law, pair.target_law(PROMPT, 3)) < TOLERANCE
    assert lengths == {1, 2, 3}


@pytest.mark.parametrize("acceptance", SAMPLED)
def test_throwing_an_unlikely_draw_away_makes_it_rarer_than_the_target_has_it(
    acceptance: Acceptance,
) -> None:
    """The drafter of the test's own; the law is off by more than a thousandth."""
    pair = ToyPair(4, SAMPLING)
    law = output_law(pair, acceptance, 3, 3, bonus=True, sequences=thrown_away)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-6)
    assert distance(law, pair.target_law(PROMPT, 3)) > 1e-3


def test_what_is_left_out_is_accepted_less_often() -> None:
    """The reason for it: drafts behind an unsure one are mostly in vain."""
    whole, ended = ToyPair(4, SAMPLING), UnsurePair(4, SAMPLING)

    def rate(pair: ToyPair) -> float:
        drafted = sum(weight * len(drafts) for drafts, weight in draft_sequences(pair, PROMPT, 3))
        return expected_accepted(pair, Acceptance.REJECTION, PROMPT, 3) / drafted

    assert rate(ended) > rate(whole) + 0.02
