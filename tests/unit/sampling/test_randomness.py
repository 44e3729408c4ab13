"""Counter-based numbers: the published generator, open intervals, independent of company."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from paceline.sampling.params import Acceptance
from paceline.sampling.randomness import (
    NOISE_GROUP,
    Purpose,
    group_noise,
    gumbel_noise,
    keyed_epoch,
    member_noise,
    philox,
    philox_tensor,
    seed_words,
    uniform,
)

WORD = st.integers(0, 2**32 - 1)

# Random123's known-answer vectors for philox4x32 with 10 rounds (Salmon et al. 2011).
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    assert philox(counter, key) == answer


@settings(derandomize=True, max_examples=60)
@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
def test_the_tensor_form_equals_the_scalar_form_bit_for_bit(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> None:
    words = philox_tensor(torch.tensor(counter), torch.tensor(key))
    assert tuple(words.tolist()) == philox(counter, key)
    many = philox_tensor(torch.tensor(counter)[:, None].expand(4, 3), torch.tensor(key)[:, None])
    assert torch.equal(many, words[:, None].expand(4, 3))


@settings(derandomize=True, max_examples=100)
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from(Purpose),
    st.integers(0, 2**64 - 1),
)
def test_a_uniform_number_lies_strictly_inside_the_unit_interval(
    seed: int, position: int, purpose: Purpose, epoch: int
) -> None:
    number = uniform(seed, position, purpose, epoch)
    assert 0.0 < number < 1.0
    assert number == uniform(seed, position, purpose, epoch)


def test_seed_position_purpose_and_epoch_each_change_the_number() -> None:
    base = (3, 5, Purpose.DRAFT, 1)
    others = [
        (4, 5, Purpose.DRAFT, 1),
        (3 + 2**32, 5, Purpose.DRAFT, 1),
        (3, 6, Purpose.DRAFT, 1),
        (3, 5, Purpose.ACCEPT, 1),
        (3, 5, Purpose.DRAFT, 2),
        (3, 5, Purpose.DRAFT, 1 + 2**32),
    ]
    numbers = {uniform(*key) for key in [base, *others]}
    assert len(numbers) == 7


def test_uniform_numbers_are_uniform() -> None:
    numbers = [uniform(seed, 17, Purpose.NEXT) for seed in range(4000)]
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3


def test_only_block_numbers_are_keyed_by_the_epoch() -> None:
    assert keyed_epoch(Acceptance.BLOCK, 7) == 7
    assert keyed_epoch(Acceptance.REJECTION, 7) == 0
    assert keyed_epoch(Acceptance.COUPLED, 7) == 0


def test_noise_of_an_id_does_not_depend_on_the_ids_asked_with_it() -> None:
    alone = [float(gumbel_noise(9, 4, torch.tensor([i]))) for i in range(200)]
    together = gumbel_noise(9, 4, torch.arange(200))
    shuffled = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert together.dtype == torch.float64
    assert together.tolist() == alone
    assert torch.equal(gumbel_noise(9, 4, shuffled), together[shuffled])


def test_noise_differs_by_seed_and_position() -> None:
    ids = torch.arange(8)
    base = gumbel_noise(1, 2, ids)
    for other in (
        gumbel_noise(2, 2, ids),
        gumbel_noise(1, 3, ids),
        gumbel_noise(1 + 2**32, 2, ids),
    ):
        assert not bool((base == other).any())


def test_no_noise_exceeds_the_maximum_of_its_group_and_one_id_attains_it() -> None:
    ids = torch.arange(NOISE_GROUP * 50)
    noise = gumbel_noise(5, 1, ids).view(50, NOISE_GROUP)
    seeds = torch.tensor([seed_words(5)])
    peak, member = group_noise(seeds, torch.tensor([1]), torch.arange(50))
    assert torch.equal(noise.amax(1), peak)
    assert torch.equal(noise.argmax(1), member)


def test_noise_has_the_standard_gumbel_law_and_is_independent_within_a_group() -> None:
    """The top-down construction must give independent Gumbel numbers, not only the right maxima."""
    seeds = torch.tensor([seed_words(seed) for seed in range(3000)])
    positions, ids = torch.full((3000, 1), 3), torch.arange(4)
    peak, member = group_noise(seeds[:, None], positions, torch.zeros_like(positions))
    noise = member_noise(seeds[:, None], positions, ids, peak, member)  # [3000, 4]
    assert torch.equal(noise[17], gumbel_noise(17, 3, torch.arange(4)))
    for column in noise.T.tolist():
        assert stats.kstest(column, "gumbel_r").pvalue > 1e-3
    uniforms = torch.exp(-torch.exp(-noise))
    quadrant = (uniforms > 0.5).long()
    pairs = (quadrant[:, 0] * 2 + quadrant[:, 1]).bincount(minlength=4).double()
    expected = len(seeds) / 4
    assert float(((pairs - expected) ** 2 / expected).sum()) < stats.chi2.ppf(1 - 1e-3, 3)
    # The largest of the four is each of them equally often.
    winners = noise.argmax(1).bincount(minlength=4).double()
    assert float(((winners - expected) ** 2 / expected).sum()) < stats.chi2.ppf(1 - 1e-3, 3)
    assert math.isfinite(float(noise.abs().max()))
