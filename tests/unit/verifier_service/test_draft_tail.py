"""Draft tokens merged across blocks, with distributions of any form, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verifier_harness import block

from paceline.errors import InvalidArgumentError
from paceline.sampling.draft_probs import DraftProbs
from verifier_service.draft_tail import DraftTail, check_block

VOCAB = 6


def dense(*rows: list[float]) -> DraftProbs:
    return DraftProbs(None, torch.tensor(rows))


def sparse(ids: list[list[int]], probs: list[list[float]]) -> DraftProbs:
    return DraftProbs(torch.tensor(ids), torch.tensor(probs))


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[int], DraftProbs | None]:
    """Tokens, and their distributions: dense, sparse or point masses."""
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=0, max_size=4))
    kind = draw(st.sampled_from(["dense", "sparse", "point"]))
    if kind == "point" or not tokens:
        return tokens, None
    if kind == "dense":
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        probs = torch.rand(len(tokens), VOCAB, generator=generator) + 0.1
        return tokens, DraftProbs(None, probs / probs.sum(1, keepdim=True))
    width = draw(st.integers(1, 3))
    ids = [[token, *(i for i in range(VOCAB) if i != token)][:width] for token in tokens]
    return tokens, sparse(ids, [[1 / width] * width] * len(tokens))


def laws(tokens: list[int], probs: DraftProbs | None) -> list[torch.Tensor]:
    """Each token's distribution over the whole vocabulary."""
    if probs is None:
        return [torch.nn.functional.one_hot(torch.tensor(t), VOCAB).double() for t in tokens]
    return [probs.dense_row(row, VOCAB).double() for row in range(len(tokens))]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(parts=st.lists(blocks(), max_size=4), data=st.data())
def test_a_merged_tail_keeps_each_tokens_own_distribution(
    parts: list[tuple[list[int], DraftProbs | None]], data: st.DataObject
) -> None:
    """Dense, sparse and point-mass rows mix, whatever was skipped or judged before."""
    tail = DraftTail()
    expected: list[tuple[int, torch.Tensor]] = []
    lengths: list[int] = []
    for tokens, probs in parts:
        skip = data.draw(st.integers(0, len(tokens)))
        tail.append(block(0, tokens, draft_probs=probs), skip)
        expected += list(zip(tokens, laws(tokens, probs), strict=True))[skip:]
        lengths += [len(tokens) - skip] * (len(tokens) > skip)
    judged = data.draw(st.integers(0, len(expected)))
    tail.consume(judged)
    for length in list(lengths):
        taken = min(length, judged)
        judged -= taken
        lengths[0] -= taken
        if lengths[0]:
            break
        del lengths[0]
    expected = expected[len(expected) - len(tail) :]
    assert tail.token_ids == [token for token, _ in expected]
    assert tail.first_block == (lengths[0] if lengths else 0)
    count = data.draw(st.integers(0, len(tail)))
    merged = tail.draft_probs(count)
    if merged is None:
        assert all(float(law.max()) == 1.0 for _, law in expected[:count])
        return
    merged.check(VOCAB)
    for row, (_, law) in enumerate(expected[:count]):
        torch.testing.assert_close(merged.dense_row(row, VOCAB).double(), law)
    assert tail.clear() == len(expected)
    assert (len(tail), tail.first_block) == (0, 0)


GOOD = [0.5, 0.25, 0.25, 0.0, 0.0, 0.0]
WRONG = {
    "a dense row sums to less": ([0], dense([0.5, 0.25, 0, 0, 0, 0])),
    "a dense row sums to more": ([0], dense([0.75, 0.5, 0, 0, 0, 0])),
    "a dense entry is negative": ([0], dense([1.5, -0.5, 0, 0, 0, 0])),
    "a dense entry is NaN": ([0], dense([0.5, float("nan"), 0.5, 0, 0, 0])),
    "a dense entry is infinite": ([0], dense([float("inf"), 0, 0, 0, 0, 0])),
    "the dense draft token has probability 0": ([3], dense(GOOD)),
    "the dense row is too narrow": ([0], dense([1.0, 0.0])),
    "the second row is wrong": ([0, 0], dense(GOOD, [0.0] * VOCAB)),
    "a row is missing": ([0, 1], dense(GOOD)),
    "a row is too many": ([0], dense(GOOD, GOOD)),
    "a sparse row sums to less": ([0], sparse([[0, 1]], [[0.5, 0.25]])),
    "a sparse entry is negative": ([0], sparse([[0, 1]], [[1.5, -0.5]])),
    "a sparse entry is NaN": ([0], sparse([[0, 1]], [[0.5, float("nan")]])),
    "a sparse id is -1": ([0], sparse([[0, -1]], [[0.5, 0.5]])),
    "a sparse id is the vocabulary size": ([0], sparse([[0, VOCAB]], [[0.5, 0.5]])),
    "the sparse draft token is not among the ids": ([2], sparse([[0, 1]], [[0.5, 0.5]])),
    "the sparse draft token has probability 0": ([1], sparse([[0, 1]], [[1.0, 0.0]])),
    "a sparse row names an id twice": ([0], sparse([[0, 0]], [[0.5, 0.5]])),
}


@pytest.mark.parametrize("problem", WRONG)
def test_distributions_that_no_drafter_sampled_from_are_refused(problem: str) -> None:
    """They would bias the output without a sign."""
    tokens, probs = WRONG[problem]
    with pytest.raises(InvalidArgumentError, match=r"^draft_probs: "):
        check_block(block(0, tokens, draft_probs=probs), VOCAB)


@pytest.mark.parametrize(
    "probs",
    [
        None,
        dense(GOOD, GOOD),
        sparse([[0, 1], [1, 4]], [[0.5, 0.5], [1.0, 0.0]]),
        sparse([[0, 1], [1, 1]], [[0.5, 0.5], [1.0, 0.0]]),  # padded by repeating an id
    ],
)
def test_right_distributions_pass(probs: DraftProbs | None) -> None:
    check_block(block(0, [0, 1], draft_probs=probs), VOCAB)
