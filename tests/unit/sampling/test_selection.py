"""Argmax, mass cut-off and inverse CDF against their plain definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.sampling.selection import inverse_cdf, largest, mass_cutoff, next_largest

BELOW_ONE = math.nextafter(1.0, 0.0)


def _random(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [1, 7, 4096, 8192, 8193, 9000, 12_288])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_argmax_is_the_first_maximum(width: int, dtype: torch.dtype) -> None:
    rows = _random(40, width, width).mul(2).round().to(dtype)  # rounded: many ties
    expected = [row.index(max(row)) for row in rows.tolist()]
    peaks, indices = largest(rows)
    assert indices.tolist() == expected
    assert peaks.tolist() == rows.amax(1).tolist()


def test_a_greedy_tie_over_blocks_goes_to_the_lowest_id() -> None:
    rows = torch.zeros(3, 8600)  # 33 whole blocks of 256 end at 8448
    rows[0, [8599, 300, 10]] = 1.0
    rows[1, [8590, 8599]] = 1.0  # behind the last whole block
    rows[2, [8447, 8599]] = 1.0
    assert largest(rows)[1].tolist() == [10, 8590, 8447]


@pytest.mark.parametrize("place", [3, 8595])
@pytest.mark.parametrize("width", [40, 8600])
def test_a_row_with_a_nan_has_no_maximum(place: int, width: int) -> None:
    rows = torch.zeros(2, width)
    rows[0, min(place, width - 1)] = math.nan
    peaks, _ = largest(rows)
    assert math.isnan(peaks[0])
    assert peaks[1] == 0.0


def _plain_cutoff(weights: list[float], share: float) -> float:
    total = math.fsum(weights)
    kept = [w for w in weights if math.fsum(v for v in weights if v > w) < share * total]
    return min(kept)


@settings(derandomize=True, max_examples=80)
@given(
    st.integers(0, 10_000),
    st.integers(1, 300) | st.sampled_from([128, 256, 384]),  # multiples of 64 lose light blocks
    st.sampled_from([0.01, 0.3, 0.5, 0.9, 0.99]),
    st.sampled_from([0.0, 0.3, 1.0, 5.0, 40.0]),
)
def test_the_mass_cutoff_is_the_definition(
    seed: int, width: int, share: float, scale: float
) -> None:
    logits = _random(3, width, seed).double() * scale
    weights = (logits - logits.amax(1, keepdim=True)).exp()
    cutoff = mass_cutoff(weights, torch.full((3,), share, dtype=torch.float64))
    for row, found in zip(weights.tolist(), cutoff.tolist(), strict=True):
        assert found == _plain_cutoff(row, share)


def test_the_cutoff_is_found_among_a_few_heavy_blocks() -> None:
    weights = torch.full((2, 64 * 100), 1e-9)
    weights[0, [70, 3000, 3001]] = torch.tensor([1.0, 0.5, 0.25])
    weights[1, [5, 6399]] = torch.tensor([0.125, 1.0])
    cutoff = mass_cutoff(weights, torch.tensor([0.9, 0.5]))
    assert cutoff.tolist() == [0.25, 1.0]


def test_rows_have_their_own_share() -> None:
    weights = torch.tensor([[1.0, 0.9, 0.8, 0.7]]).repeat(3, 1)
    cutoff = mass_cutoff(weights, torch.tensor([0.1, 0.5, 0.99]))
    assert torch.allclose(cutoff, torch.tensor([1.0, 0.9, 0.7]))


@pytest.mark.parametrize("u", [0.0, 5e-324, 2.0**-53])
def test_the_lowest_numbers_take_the_first_id_that_has_weight(u: float) -> None:
    weights = torch.tensor([[0.0, 0.0, 0.3, 0.7, 0.0]])
    assert inverse_cdf(weights, torch.tensor([u], dtype=torch.float64)).tolist() == [2]


@pytest.mark.parametrize("u", [BELOW_ONE, 1.0])
def test_the_highest_numbers_take_the_last_id_that_has_weight(u: float) -> None:
    weights = torch.tensor([[0.1, 0.0, 0.3, 0.7 / 3, 0.0, 0.0]])
    assert inverse_cdf(weights, torch.tensor([u], dtype=torch.float64)).tolist() == [3]


@settings(derandomize=True, max_examples=60)
@given(
    st.lists(st.floats(0, 1).map(lambda x: x if x > 0.3 else 0.0), min_size=1, max_size=9),
    st.floats(0, 1),
)
def test_no_number_ever_takes_an_id_of_weight_zero(weights: list[float], u: float) -> None:
    if sum(weights) == 0.0:
        weights[0] = 1.0
    chosen = int(inverse_cdf(torch.tensor([weights]), torch.tensor([u], dtype=torch.float64)))
    assert weights[chosen] > 0.0


def test_equal_steps_of_the_number_give_each_id_its_share() -> None:
    weights = torch.tensor([[3.0, 1.0, 0.0, 4.0]])
    numbers = (torch.arange(8000, dtype=torch.float64) + 0.5) / 8000
    counts = inverse_cdf(weights.expand(8000, 4), numbers).bincount(minlength=4)
    assert counts.tolist() == [3000, 1000, 0, 4000]


@pytest.mark.parametrize("width", [2, 3, 100, 9000])
@pytest.mark.parametrize("count", [1, 2])
def test_the_next_largest_are_those_behind_what_was_chosen(width: int, count: int) -> None:
    """Whichever that is, in narrow rows and in wide ones."""
    rows = torch.randn(4, width, generator=torch.Generator().manual_seed(width))
    ranked = rows.argsort(1, descending=True)
    for place in range(min(width, 4)):
        chosen = ranked[:, place]
        for best, found, order in zip(
            chosen.tolist(),
            next_largest(rows, chosen, count).tolist(),
            ranked.tolist(),
            strict=True,
        ):
            others = [index for index in found if index != best][:count]
            assert others == [index for index in order if index != best][:count]
