"""Narrow logits: drawing from some columns is drawing from all, the others impossible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError, PacelineError
from paceline.sampling.columns import Columns
from paceline.sampling.draw import DraftRow, Draw, draw_drafts
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext

VOCAB = 300
COLUMNS = Columns(torch.arange(0, VOCAB, 3), VOCAB)
NEGATIVE_INFINITY = float("-inf")

PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy with a bias": {"temperature": 0, "logit_bias": ((3, 9.0), (4, 90.0))},
    "coupled": {"acceptance": Acceptance.COUPLED},
    "coupled, cut": {"acceptance": Acceptance.COUPLED, "top_p": 0.7, "temperature": 0.6},
    "coupled, penalised": {"acceptance": Acceptance.COUPLED, "frequency_penalty": 1.5},
    "rejection": {},
    "rejection, cut": {"top_k": 5, "min_p": 0.02, "temperature": 1.7},
    "rejection, penalised": {"repetition_penalty": 3.0},
    "block": {"acceptance": Acceptance.BLOCK, "typical_p": 0.8},
    "block, allowed": {"acceptance": Acceptance.BLOCK, "allowed_token_ids": (0, 1, 2, 3, 9, 12)},
    "before min_tokens": {"min_tokens": 9, "stop_token_ids": (9, 12)},
}


def rows(**params: Any) -> list[DraftRow]:
    return [
        DraftRow(RowContext(SamplingParams(seed=seed, **params), (0, 3, 9, 4), 2), seed % 3, top_k)
        for seed, top_k in enumerate((0, 1, 2, 7, len(COLUMNS), len(COLUMNS) + 1, VOCAB) * 3)
    ]


def logits(num_rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(num_rows, len(COLUMNS), generator=generator) * 2


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_narrow_draws_are_those_of_wide_logits(params: dict[str, Any]) -> None:
    """Tokens and the numbers that they were drawn from, whatever the width of the distribution."""
    asked = rows(**params)
    narrow = logits(len(asked))
    expected = draw_drafts(COLUMNS.widen(narrow, fill=NEGATIVE_INFINITY), asked)
    for ours, theirs in zip(draw_drafts(narrow, asked, COLUMNS), expected, strict=True):
        assert isinstance(ours, Draw)
        assert isinstance(theirs, Draw)
        assert ours.token_id == theirs.token_id
        assert ours.token_id % 3 == 0
        assert (ours.probs is None) == (theirs.probs is None)
        if ours.probs is not None and theirs.probs is not None:
            ours.probs.check(VOCAB)
            assert torch.allclose(
                ours.probs.dense_row(0, VOCAB), theirs.probs.dense_row(0, VOCAB), atol=1e-7
            )
            assert float(ours.probs.prob_of(torch.tensor([ours.token_id]))) > 0


def test_a_batch_of_all_kinds_draws_what_each_row_draws_alone() -> None:
    """A06: what a seed draws does not depend on whether a neighbour needs the whole width."""
    asked = [row for params in PARAMS.values() for row in rows(**params)[:5]]
    narrow = logits(len(asked))
    together = draw_drafts(narrow, asked, COLUMNS)
    for index, drawn in enumerate(together):
        (alone,) = draw_drafts(narrow[index : index + 1], [asked[index]], COLUMNS)
        assert isinstance(drawn, Draw)
        assert isinstance(alone, Draw)
        assert drawn.token_id == alone.token_id
        if drawn.probs is not None and alone.probs is not None:
            assert torch.equal(drawn.probs.probs, alone.probs.probs)


def test_parameters_that_leave_no_column_are_an_error_of_their_row_alone() -> None:
    row, other = rows(allowed_token_ids=(1, 2))[3], rows()[3]
    failed, drawn = draw_drafts(logits(2), [row, other], COLUMNS)
    assert isinstance(failed, InvalidArgumentError)
    assert not isinstance(drawn, PacelineError)


def test_columns_below_a_size_are_the_first_ones() -> None:
    cut = COLUMNS.below(7)
    assert cut.token_ids.tolist() == [0, 3, 6]
    assert cut.vocab_size == 7
    assert COLUMNS.below(VOCAB) is COLUMNS
