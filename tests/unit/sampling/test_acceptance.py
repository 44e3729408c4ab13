"""The acceptance rules on one block, with the numbers at their ends."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.sampling.acceptance import (
    Judgement,
    block_thresholds,
    judge_block,
    judge_exact,
    judge_rejection,
    next_weights,
    rejection_thresholds,
    residual,
)
from paceline.sampling.draft_probs import DraftProbs

BELOW_ONE = math.nextafter(1.0, 0.0)
ULP = 5e-324
BOTH = pytest.mark.parametrize("judge", [judge_rejection, judge_block])


def _dense(*rows: list[float]) -> DraftProbs:
    return DraftProbs(None, torch.tensor(rows))


def _target(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_the_residual_is_the_positive_part_over_the_whole_vocabulary() -> None:
    """A04: p=[.5,.3,.2], q=[.6,.1,.3] leaves only token 1, also when token 0 was rejected."""
    left = residual(_target([0.5, 0.3, 0.2])[0], _target([0.6, 0.1, 0.3])[0])
    assert left.tolist() == [0.0, 1.0, 0.0]


def test_the_residual_of_equal_distributions_falls_back_to_the_target() -> None:
    """A04: residual(p, p) is p, without NaN."""
    target = _target([0.5, 0.3, 0.2])[0]
    assert torch.equal(residual(target, target.clone()), target)
    assert torch.allclose(residual(0.25 * target, target), target)


@BOTH
def test_the_correction_is_the_residual_token_for_every_number(judge: type) -> None:
    """A04: with token 0 rejected the correction is always token 1."""
    for number in (0.0, ULP, 0.3, 0.999, BELOW_ONE):
        verdict = judge(
            _target([0.5, 0.3, 0.2]), (0,), _dense([0.6, 0.1, 0.3]), [BELOW_ONE], [number]
        )
        assert verdict == Judgement(0, 1)


@BOTH
def test_the_first_draft_is_judged_like_any_other(judge: type) -> None:
    """A01: a one-token draft that the target never gives is rejected."""
    for number in (0.0, ULP, 0.5, BELOW_ONE):
        verdict = judge(_target([0.0, 1.0]), (0,), _dense([1.0, 0.0]), [number], [number])
        assert verdict == Judgement(0, 1)


@BOTH
def test_a_draft_that_equals_the_target_is_accepted_for_every_number(judge: type) -> None:
    row = [0.25, 0.5, 0.25]
    for number in (0.0, 0.5, BELOW_ONE):
        target = _target(row, row, [0.0, 0.0, 1.0])
        judgement = judge(target, (1, 2), _dense(row, row), [number] * 2, [number] * 3)
        assert judgement == Judgement(2, 2)


@BOTH
def test_full_acceptance_gives_a_bonus_only_with_a_bonus_row(judge: type) -> None:
    row = [0.5, 0.5]
    args = ((0, 1), _dense(row, row), [0.0, 0.0])
    assert judge(_target(row, row, [0.0, 1.0]), *args, [0.1] * 3) == Judgement(2, 1)
    assert judge(_target(row, row), *args, [0.1] * 2) == Judgement(2, None)


@BOTH
def test_a_pass_without_drafts_samples_the_target(judge: type) -> None:
    target = _target([0.25, 0.75])
    assert judge(target, (), None, [], [0.2]) == Judgement(0, 0)
    assert judge(target, (), None, [], [0.3]) == Judgement(0, 1)


@BOTH
def test_a_deterministic_draft_is_a_point_mass(judge: type) -> None:
    """A09: the draft's law is one-hot, so its token is accepted with its target probability."""
    target = _target([0.7, 0.2, 0.1])
    assert judge(target, (0,), None, [0.69], [0.5]).accepted_length == 1
    assert judge(target, (0,), None, [0.71], [0.5]) == Judgement(0, 1)  # residual .2 : .1
    assert judge(target, (0,), None, [0.71], [0.7]) == Judgement(0, 2)


@BOTH
def test_a_draft_token_of_draft_probability_zero_is_refused(judge: type) -> None:
    with pytest.raises(InvalidArgumentError, match="draft_probs"):
        judge(_target([0.5, 0.5]), (0,), _dense([0.0, 1.0]), [0.5], [0.5])


def test_greedy_accepts_only_the_argmax() -> None:
    """A03: at temperature 0 probabilities do not matter, only the target's own token does."""
    assert judge_exact([1, 5, 2], [0, 5]) == Judgement(0, 1)
    assert judge_exact([1, 5, 2], [1, 4]) == Judgement(1, 5)
    assert judge_exact([1, 5, 2], [1, 5]) == Judgement(2, 2)
    assert judge_exact([1, 5], [1, 5]) == Judgement(2, None)
    assert judge_exact([3], []) == Judgement(0, 3)


def test_block_verification_gains_on_the_example_of_its_paper() -> None:
    """Target (1/3, 2/3), draft (2/3, 1/3), two drafts: 10/9 accepted singly, 11/9 jointly."""
    target = _target([1 / 3, 2 / 3], [1 / 3, 2 / 3])
    draft = DraftProbs(None, torch.tensor([[2 / 3, 1 / 3]] * 2, dtype=torch.float64))
    by_token = by_block = 0.0
    for tokens in itertools.product(range(2), repeat=2):
        weight = math.prod((2 / 3, 1 / 3)[x] for x in tokens)
        a = rejection_thresholds(target, tokens, draft)
        h, _ = block_thresholds(target, tokens, draft)
        by_token += weight * (a[0] + a[0] * a[1])
        by_block += weight * (2 * h[1] + (1 - h[1]) * h[0])
    assert by_token == pytest.approx(10 / 9)
    assert by_block == pytest.approx(11 / 9)


def _random_block(seed: int, length: int, width: int) -> tuple[Tensor, DraftProbs, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, length + 1, width, generator=generator, dtype=torch.float64)
    target, draft = logits.mul(1.5).softmax(2)
    tokens = torch.multinomial(draft[:length], 1, generator=generator).flatten().tolist()
    return target, DraftProbs(None, draft[:length].float()), tokens


@settings(derandomize=True, max_examples=40)
@given(st.integers(0, 9999), st.integers(1, 4), st.integers(2, 5))
def test_the_lengths_follow_the_thresholds(seed: int, length: int, width: int) -> None:
    """What the enumeration assumes: each number only matters as below its threshold or not."""
    target, draft, tokens = _random_block(seed, length, width)
    a = rejection_thresholds(target, tokens, draft)
    h, joint = block_thresholds(target, tokens, draft)
    for below in itertools.product([True, False], repeat=length):
        numbers = [_beside(t, low) for t, low in zip(a, below, strict=True)]
        hits = [u < t for u, t in zip(numbers, a, strict=True)]
        expected = hits.index(False) if False in hits else length
        verdict = judge_rejection(target, tokens, draft, numbers, [0.5] * (length + 1))
        assert verdict.accepted_length == expected

        numbers = [_beside(t, low) for t, low in zip(h, below, strict=True)]
        hits = [u < t for u, t in zip(numbers, h, strict=True)]
        expected = max((i + 1 for i, hit in enumerate(hits) if hit), default=0)
        verdict = judge_block(target, tokens, draft, numbers, [0.5] * (length + 1))
        assert verdict.accepted_length == expected
        weights = next_weights(target, draft, expected, joint[expected])
        assert weights is not None
        assert float(weights[verdict.next_token]) > 0.0


def _beside(threshold: float, below: bool) -> float:
    """The number next to a threshold, inside the unit interval."""
    if below:
        return max(0.0, math.nextafter(threshold, 0.0))
    return min(BELOW_ONE, threshold)


@settings(derandomize=True, max_examples=40)
@given(st.integers(0, 9999), st.integers(1, 4), st.integers(2, 6))
def test_sparse_and_dense_rows_of_the_same_law_judge_alike(
    seed: int, length: int, width: int
) -> None:
    target, dense, tokens = _random_block(seed, length, width)
    order = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
    ids = order.repeat(length, 1)
    sparse = DraftProbs(ids, dense.probs.gather(1, ids))
    for function in (rejection_thresholds, lambda *a: block_thresholds(*a)[0]):
        assert function(target, tokens, sparse) == pytest.approx(function(target, tokens, dense))
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(2, length + 1, generator=generator, dtype=torch.float64).tolist()
    for judge in (judge_rejection, judge_block):
        expected = judge(target, tokens, dense, *numbers)
        assert judge(target, tokens, sparse, *numbers) == expected


def test_a_block_whose_draft_equals_the_target_has_thresholds_of_one() -> None:
    row = [0.2, 0.3, 0.5]
    draft = DraftProbs(None, torch.tensor([row, row], dtype=torch.float64))
    assert block_thresholds(_target(row, row, row), (0, 1), draft) == ([1.0, 1.0], [1.0] * 3)
