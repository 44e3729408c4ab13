"""The output law of `rejection` and `block`, by exact enumeration, is the target's within 1e-6."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from exact_law import distance, expected_accepted, one_round, output_law
from toy_pair import PROMPT, Tokens, ToyPair

from drafter_service.ngram_index import NgramIndex
from paceline.sampling.acceptance import Judgement, residual
from paceline.sampling.columns import Columns
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.draw import DraftRow, Draw, draw_drafts, stack_draws
from paceline.sampling.judge import judge_pass
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.trial import Trial

TOLERANCE = 1e-6
SAMPLED = [Acceptance.REJECTION, Acceptance.BLOCK]

FILTERS: list[dict[str, Any]] = [
    {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    for top_k in (0, 2)
    for top_p in (1.0, 0.7)
    for min_p in (0.0, 0.25)
]
ADJUSTMENTS: list[dict[str, Any]] = [
    {**penalty, **bias}
    for penalty in (
        {},
        {"repetition_penalty": 1.6},
        {"presence_penalty": 0.8},
        {"frequency_penalty": 0.9},
    )
    for bias in ({}, {"logit_bias": ((0, 1.5), (2, -0.7))})
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_every_combination_of_parameters_keeps_the_law(
    temperature: float, filters: dict[str, Any]
) -> None:
    """Three tokens over several rounds of two drafts, both rules, with and without a bonus row."""
    for index, adjustment in enumerate(ADJUSTMENTS):
        params = SamplingParams(temperature=temperature, **filters, **adjustment)
        pair = ToyPair(3, params, draft_top_k=2 if index % 2 else 0)
        target = pair.target_law(PROMPT, 3)
        for acceptance in SAMPLED:
            law = output_law(pair, acceptance, 2, 3, bonus=bool(index % 3))
            assert sum(law.values()) == pytest.approx(1.0, abs=1e-6)
            assert distance(law, target) < TOLERANCE, (params, acceptance)


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("acceptance", SAMPLED)
@pytest.mark.parametrize(
    ("vocab_size", "draft_top_k", "block_length"),
    [(3, 0, 1), (3, 0, 4), (3, 1, 3), (3, 2, 4), (4, 0, 3), (4, 2, 4), (4, 3, 2)],
)
def test_blocks_up_to_four_with_full_and_truncated_drafts_keep_the_law(
    vocab_size: int, draft_top_k: int, block_length: int, acceptance: Acceptance, bonus: bool
) -> None:
    pair = ToyPair(vocab_size, SamplingParams(frequency_penalty=0.5), draft_top_k)
    law = output_law(pair, acceptance, block_length, 3, bonus=bonus)
    assert distance(law, pair.target_law(PROMPT, 3)) < TOLERANCE


@pytest.mark.parametrize("disagreement", [0.0, 0.1, 3.0, 10.0])
def test_block_never_accepts_fewer_drafts_than_rejection(disagreement: float) -> None:
    gains = []
    for length, temperature, top_k in itertools.product((1, 2, 3, 4), (0.3, 1.0, 2.0), (0, 2)):
        params = SamplingParams(temperature=temperature, top_k=top_k)
        pair = ToyPair(3, params, disagreement=disagreement)
        by_token, by_block = (
            expected_accepted(pair, acceptance, PROMPT, length) for acceptance in SAMPLED
        )
        assert by_block >= by_token - TOLERANCE
        gains.append(by_block - by_token)
    if disagreement == 3.0:
        assert max(gains) > 0.01


def test_sampling_first_and_truncating_later_would_be_seen() -> None:
    """The enumeration can fail: drafts of the full law judged by truncated numbers are biased."""
    pair = ToyPair(4, SamplingParams())
    target = pair.target_row(PROMPT)
    sampled_from = pair.draft_row(PROMPT).dense_row(0, 4)
    reported = sampled_from.clone()
    reported[reported < reported.topk(2).values[-1]] = 1e-9
    reported /= reported.sum()
    accepted = sampled_from * (target / reported).clamp(max=1.0)
    law = accepted + (1.0 - accepted.sum()) * residual(target, reported)
    assert float((law - target).abs().max()) > 0.01


def test_one_round_with_a_point_mass_draft_keeps_the_law() -> None:
    """A09: an n-gram drafter's law is one-hot; draft_probs are absent on the wire."""

    class Copying(ToyPair):
        def draft_row(self, tokens: Tokens) -> DraftProbs:  # type: ignore[override]
            return DraftProbs.point_masses([(tokens[-1] + 1) % self.vocab_size])

    pair = Copying(3, SamplingParams(temperature=0.5))
    for acceptance, length in itertools.product(SAMPLED, (1, 2, 4)):
        law = output_law(pair, acceptance, length, 3, bonus=True)
        assert distance(law, pair.target_law(PROMPT, 3)) < TOLERANCE
        assert sum(one_round(pair, acceptance, PROMPT, length, bonus=False).values()) == (
            pytest.approx(1.0)
        )


@pytest.mark.parametrize("draft_top_k", [0, 2])
def test_copied_and_drawn_tokens_in_one_block_keep_the_law(draft_top_k: int) -> None:
    """A09: a cascade. Which of the two a position gets is a function of the tokens before it."""
    copied = 0

    class Cascade(ToyPair):
        def draft_row(self, tokens: Tokens) -> DraftProbs:  # type: ignore[override]
            nonlocal copied
            index = NgramIndex(range(1, 3), may_come=lambda token, position: True, undo_depth=1)
            for token in tokens:
                index.append(token)
            row: DraftProbs = super().draft_row(tokens)
            guess = index.guesses[-1]
            if guess is None or len(tokens) % 3 == 0:
                return row
            copied += 1
            stacked = stack_draws([Draw(guess.token_id, None), Draw(0, row)])
            assert stacked is not None
            return stacked.rows(0, 1)

    pair = Cascade(3, SamplingParams(temperature=0.8), draft_top_k)
    for acceptance, length in itertools.product(SAMPLED, (2, 4)):
        law = output_law(pair, acceptance, length, 4, bonus=True)
        assert distance(law, pair.target_law(PROMPT, 4)) < TOLERANCE
    assert copied > 100


@pytest.mark.parametrize("draft_top_k", [0, 2])
@pytest.mark.parametrize("params", [{}, {"frequency_penalty": 0.7}, {"logit_bias": ((1, 2.0),)}])
def test_drafts_of_a_reduced_vocabulary_keep_the_law(
    params: dict[str, Any], draft_top_k: int
) -> None:
    """A09: the drafter knows ids 0, 1 and 3 of four, and gives 2 probability 0."""

    class Reduced(ToyPair):
        def draft_row(self, tokens: Tokens) -> DraftProbs:  # type: ignore[override]
            columns = Columns(torch.tensor([0, 1, 3]), self.vocab_size)
            logits = self.draft_logits(tokens)[columns.token_ids]
            row = DraftRow(self.context(tokens), 0, self.draft_top_k)
            draw = draw_drafts(logits.unsqueeze(0), [row], columns)[0]
            assert isinstance(draw, Draw)
            assert draw.probs is not None
            return draw.probs

    pair = Reduced(4, SamplingParams(temperature=0.8, **params), draft_top_k)
    for acceptance, length in itertools.product(SAMPLED, (1, 3)):
        law = output_law(pair, acceptance, length, 3, bonus=True)
        assert distance(law, pair.target_law(PROMPT, 3)) < TOLERANCE


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_greedy_is_the_targets_argmax_under_every_combination(filters: dict[str, Any]) -> None:
    """Temperature 0: production judging, block by block, equals one token at a time."""
    for adjustment, acceptance in itertools.product(ADJUSTMENTS, Acceptance):
        params = SamplingParams(temperature=0, acceptance=acceptance, **filters, **adjustment)
        pair = ToyPair(4, params)
        expected = PROMPT
        for _ in range(9):
            expected += (int(pair.target_row(expected).argmax()),)
        tokens = PROMPT
        while len(tokens) < len(expected):
            drafts: Tokens = ()
            for _ in range(3):
                row = DraftRow(pair.context(tokens, drafts), 0, 0)
                draw = draw_drafts(pair.draft_logits(tokens + drafts).unsqueeze(0), [row])[0]
                drafts += (draw.token_id,)  # type: ignore[union-attr]
            rows = [pair.target_logits(tokens + drafts[:i]) for i in range(4)]
            trial = Trial(params, tokens, len(PROMPT), (), drafts, None, 0, 4)
            (judgement,) = judge_pass(torch.stack(rows), [trial])
            assert isinstance(judgement, Judgement)
            assert judgement.next_token is not None
            tokens += (*drafts[: judgement.accepted_length], judgement.next_token)
        assert tokens[: len(expected)] == expected
