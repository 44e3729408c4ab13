"""Draft distributions: joining, reading and refusing."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.errors import InvalidArgumentError
from paceline.sampling.draft_probs import DraftProbs

SPARSE = DraftProbs(torch.tensor([[3, 1], [0, 2]]), torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
DENSE = DraftProbs(None, torch.tensor([[0.1, 0.2, 0.7]]))


def test_a_row_spreads_over_the_vocabulary() -> None:
    assert SPARSE.dense_row(0, 5).tolist() == [0.0, 0.25, 0.0, 0.75, 0.0]
    assert torch.allclose(DENSE.dense_row(0, 3), DENSE.probs[0])


def test_each_row_tells_the_probability_of_its_own_token() -> None:
    assert SPARSE.prob_of(torch.tensor([3, 1])).tolist() == [0.75, 0.0]
    assert DENSE.prob_of(torch.tensor([2])).tolist() == pytest.approx([0.7])


def test_blocks_of_different_widths_are_joined_with_padding_of_probability_zero() -> None:
    masses = DraftProbs.point_masses((4, 2))
    joined = DraftProbs.cat([SPARSE, masses])
    joined.check(5)
    assert joined.num_tokens == 4
    for row in range(2):
        assert torch.equal(joined.dense_row(row, 5), SPARSE.dense_row(row, 5))
        assert torch.equal(joined.dense_row(2 + row, 5), masses.dense_row(row, 5))
    assert DraftProbs.cat([SPARSE]) is SPARSE
    assert DraftProbs.cat([DENSE, DENSE]).num_tokens == 2


def test_dense_and_sparse_blocks_cannot_be_joined() -> None:
    with pytest.raises(InvalidArgumentError, match="format"):
        DraftProbs.cat([SPARSE, DENSE])


def test_rows_are_cut_from_a_block() -> None:
    part = SPARSE.rows(1, 2)
    assert part.num_tokens == 1
    assert torch.equal(part.dense_row(0, 3), SPARSE.dense_row(1, 3))


@pytest.mark.parametrize(
    ("ids", "probs"),
    [
        ([[0, 5]], [[0.5, 0.5]]),  # id outside the vocabulary
        ([[-1, 0]], [[0.5, 0.5]]),
        ([[1, 1]], [[0.5, 0.5]]),  # an id twice
        ([[0, 1]], [[1.5, -0.5]]),
        ([[0, 1]], [[0.5, math.nan]]),
        ([[0, 1]], [[0.5, math.inf]]),
        ([[0, 1]], [[0.5, 0.4]]),
        ([[0]], [[0.5, 0.5]]),
        (None, [[0.5, 0.5]]),  # dense rows of another width
    ],
)
def test_rows_that_are_no_distributions_are_refused(
    ids: list[list[int]] | None, probs: list[list[float]]
) -> None:
    wrong = DraftProbs(None if ids is None else torch.tensor(ids), torch.tensor(probs))
    with pytest.raises(InvalidArgumentError, match="draft_probs"):
        wrong.check(5)


def test_good_rows_pass() -> None:
    """I04: what comes from the wire sums to 1 within 1e-3."""
    SPARSE.check(4)
    DENSE.check(3)
    DraftProbs(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.4995]])).check(2)
