"""The children of a node: which ids, in which order, by which numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext
from paceline.sampling.randomness import gumbel_noise
from paceline.sampling.tree_draw import BranchRow, Children, draw_children

VOCAB = 90
LOGITS = 2.0 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))


def row(count: int = 3, *, draft_top_k: int = 0, place: int = 1, **params: Any) -> BranchRow:
    context = RowContext(SamplingParams(**params), (1, 2), 1, (), (7,))
    return BranchRow(context, 0, draft_top_k, count, place)


def children(own: BranchRow, logits: Tensor = LOGITS) -> Children:
    (found,) = draw_children(logits[None], [own])
    assert isinstance(found, Children)
    return found


def ids(found: Children) -> list[int]:
    return [draw.token_id for draw in found.draws]


@pytest.mark.parametrize("doubt", [1.0, 0.3])
def test_greedy_children_are_the_likeliest_and_expected_the_more_the_less_doubt(
    doubt: float,
) -> None:
    found = children(replace(row(temperature=0), doubt=doubt))

    values, order = (LOGITS / doubt).softmax(0).topk(3)
    assert ids(found) == order.tolist()
    assert found.expected == pytest.approx(values.tolist())
    assert all(draw.probs is None for draw in found.draws)


@pytest.mark.parametrize("top_k", [1, 2])
def test_coupled_children_are_no_more_than_the_ids_that_are_left(top_k: int) -> None:
    """L03: siblings that are equal are a draft that no verifier takes."""
    logits = torch.tensor([9.0, 1.0, 2.0, 3.0])
    for seed in range(20):
        found = children(
            row(3, temperature=1.0, acceptance=Acceptance.COUPLED, top_k=top_k, seed=seed), logits
        )
        assert sorted(ids(found)) == [0, 3][:top_k]
        assert len(found.expected) == top_k


@pytest.mark.parametrize("seed", range(8))
def test_coupled_children_are_those_of_the_largest_perturbed_logits(seed: int) -> None:
    own = row(5, temperature=0.7, acceptance=Acceptance.COUPLED, seed=seed)

    found = children(own)

    perturbed = LOGITS.double() / 0.7 + gumbel_noise(seed, 3, torch.arange(VOCAB))
    best = perturbed.topk(5)
    assert ids(found) == best.indices.tolist()
    assert found.expected == pytest.approx((best.values / 0.5).softmax(0).tolist(), rel=1e-4)
    assert all(draw.probs is None for draw in found.draws)


@pytest.mark.parametrize("draft_top_k", [0, 4])
def test_sampled_children_differ_and_carry_the_law_of_the_first(draft_top_k: int) -> None:
    for seed in range(30):
        found = children(row(draft_top_k=draft_top_k, seed=seed))

        assert len(set(ids(found))) == 3
        law = found.draws[0].probs
        assert law is not None
        dense = law.dense_row(0, VOCAB)
        expected = LOGITS.softmax(0)
        if draft_top_k:
            kept = expected.topk(draft_top_k)
            expected = torch.zeros(VOCAB).index_add(0, kept.indices, kept.values)
            expected /= expected.sum()
        torch.testing.assert_close(dense, expected)
        assert all(torch.equal(draw.probs.probs, law.probs) for draw in found.draws)  # type: ignore[union-attr]
        sure = 1 - 0.5 * (1 - float(expected.max()))
        half = sure / 2
        assert found.expected == pytest.approx(
            [sure, (1 - sure) * half, (1 - sure) * (1 - half) * half]
        )


def test_a_point_mass_a_child_takes_the_likeliest_in_order() -> None:
    found = children(row(draft_top_k=1, seed=5))

    assert ids(found) == LOGITS.topk(3).indices.tolist()
    assert found.expected == pytest.approx(LOGITS.softmax(0).topk(3).values.tolist())
    assert all(draw.probs is None for draw in found.draws)


def test_pairs_of_siblings_have_the_law_of_drawing_without_replacement() -> None:
    """With the real generator, over 6,000 seeds."""
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1])
    rows = [row(2, seed=seed) for seed in range(6000)]
    drawn = draw_children(probs.log().repeat(len(rows), 1), rows)
    counts = Counter(tuple(ids(found)) for found in drawn if isinstance(found, Children))
    law = {
        (i, j): float(probs[i] * probs[j] / (1 - probs[i]))
        for i in range(4)
        for j in range(4)
        if i != j
    }

    assert set(counts) == set(law)
    observed = [counts[pair] for pair in law]
    expected = [share * len(rows) for share in law.values()]
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-3


def test_each_draw_of_a_tree_has_a_number_of_its_own() -> None:
    """And of its epoch: what had a say in one tree's shape must have none in the next."""
    uniform_law = torch.zeros(1000)
    first = ids(children(row(3, seed=1), uniform_law))
    again = ids(children(row(3, seed=1), uniform_law))
    elsewhere = ids(children(row(3, seed=1, place=2), uniform_law))
    far = ids(children(row(3, seed=1, place=4), uniform_law))
    later = ids(children(replace(row(3, seed=1), epoch=1), uniform_law))

    assert first == again
    assert abs(first[1] - elsewhere[0]) <= 2  # the same number, among one id less
    assert all(abs(i - j) > 2 for i in first for j in (*far, *later))


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0}, {"acceptance": Acceptance.COUPLED}, {}, {"draft_top_k": 1}],
    ids=str,
)
def test_banned_ids_are_no_children_and_few_ids_are_few_children(params: dict[str, Any]) -> None:
    """F04 for trees: what the target cannot say is not drafted on any branch."""
    found = children(row(3, allowed_token_ids=(4, 9), seed=2, **params))
    assert sorted(ids(found)) == [4, 9]
    assert len(found.expected) == 2

    banned = tuple((int(i),) for i in LOGITS.topk(5).indices)
    found = children(row(3, bad_words_token_ids=banned, seed=2, **params))
    assert not {(i,) for i in ids(found)} & set(banned)


def test_a_row_that_fails_leaves_the_others_alone() -> None:
    masks = {"allowed_token_ids": (4,), "bad_words_token_ids": ((7, 4),)}
    rows = [row(**masks), row(temperature=0, **masks), row(0), row(temperature=0)]

    found = draw_children(LOGITS.repeat(4, 1), rows)

    assert isinstance(found[0], InvalidArgumentError)
    assert isinstance(found[1], InvalidArgumentError)
    assert found[2] == Children([], [])
    assert ids(found[3]) == LOGITS.topk(3).indices.tolist()  # type: ignore[arg-type]
