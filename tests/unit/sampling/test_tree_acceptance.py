"""The walk along a draft that branches: who is asked, by which numbers, and what is committed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.sampling.acceptance import Judgement, judge_rejection
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.judge import judge_pass
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.randomness import Purpose, uniform
from paceline.sampling.tree_acceptance import (
    TreeNumbers,
    child_thresholds,
    judge_tree_exact,
    judge_tree_rejection,
)
from paceline.sampling.trial import Trial
from paceline.tree_shape import ROOT, TreeShape

VOCAB = 5
TREE = TreeShape((ROOT, ROOT, 0, 0, 1, 3))
TOKENS = (1, 2, 1, 3, 4, 0)


def one_hot(*token_ids: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(token_ids), VOCAB).float()


@pytest.mark.parametrize(
    ("own", "path", "next_token"),
    [
        ((0, 9, 9, 9, 9, 9, 9), (), 0),
        ((1, 2, 9, 9, 9, 9, 9), (0,), 2),
        ((1, 3, 9, 9, 0, 9, 4), (0, 3, 5), 4),
        ((2, 9, 4, 9, 9, 3, 9), (1, 4), 3),
        ((1, 1, 9, 0, 9, 9, 9), (0, 2), 0),
    ],
)
def test_a_deterministic_target_follows_its_own_tokens(
    own: tuple[int, ...], path: tuple[int, ...], next_token: int
) -> None:
    """L03: row i + 1 is the target's token after node i; 9 must not be asked."""
    assert judge_tree_exact(TREE, own, TOKENS) == Judgement(len(path), next_token, path=path)


class Numbers(TreeNumbers):
    """The same number for every decision, and a list of what was asked."""

    asked: list[tuple[int, int]]

    @classmethod
    def of(cls, value: float) -> Numbers:
        found = cls(0, 0)
        found.value, found.asked = value, []  # type: ignore[attr-defined]
        return found

    def accept(self, depth: int, rank: int) -> float:
        self.asked.append((depth, rank))
        return self.value  # type: ignore[attr-defined,no-any-return]

    def next(self, depth: int) -> float:
        return self.value  # type: ignore[attr-defined,no-any-return]


def test_what_the_target_gives_probability_0_is_never_accepted() -> None:
    """Not by the smallest number there is; what is certain is, by the largest below 1."""
    target = one_hot(2, 0, 4, 0, 0, 3, 0)
    for number in (0.0, 1.0 - 2**-53):
        judgement = judge_tree_rejection(TREE, target, TOKENS, None, Numbers.of(number))
        assert judgement == Judgement(2, 3, path=(1, 4))


def test_a_sibling_is_judged_against_what_those_before_it_left() -> None:
    """By hand: target (.5 .3 .2), draft (.6 .3 .1), children 0 then 2."""
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    draft = DraftProbs(None, torch.tensor([[0.6, 0.3, 0.1]]).repeat(2, 1))

    thresholds, rest = child_thresholds(target, [0, 1], (0, 2), draft)

    # after 0: target (0 0 .1) / .1, draft (0 .75 .25)
    assert thresholds == pytest.approx([5 / 6, 1.0])
    # after both: (0 0 .75)
    assert rest.tolist() == pytest.approx([0.0, 0.0, 1.0])


def test_point_masses_leave_the_target_without_them() -> None:
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    thresholds, rest = child_thresholds(target, [0, 1], (0, 2), None)

    assert thresholds == pytest.approx([0.5, 0.4])
    assert rest.tolist() == pytest.approx([0.0, 1.0, 0.0])


def test_a_child_that_the_drafter_cannot_have_drawn_is_refused() -> None:
    draft = DraftProbs(None, torch.tensor([[0.5, 0.5, 0.0]]))

    with pytest.raises(InvalidArgumentError, match="draft_probs"):
        child_thresholds(torch.ones(3) / 3, [0], (2,), draft)


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_as_a_tree_is_judged_as_a_chain_is(seed: int) -> None:
    """By the same numbers bit for bit, so that it does not matter what shares a pass with it."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(4, VOCAB, generator=generator) + 0.05
    target /= target.sum(1, keepdim=True)
    draft = torch.rand(3, VOCAB, generator=generator) + 0.05
    draft_probs = DraftProbs(None, draft / draft.sum(1, keepdim=True))
    tokens = torch.randint(VOCAB, (3,), generator=generator).tolist()
    base = 17

    def numbers(purpose: Purpose, count: int) -> list[float]:
        return [uniform(seed, base + i, purpose) for i in range(count)]

    chain = judge_rejection(
        target, tokens, draft_probs, numbers(Purpose.ACCEPT, 3), numbers(Purpose.NEXT, 4)
    )
    tree = judge_tree_rejection(
        TreeShape((ROOT, 0, 1)), target, tokens, draft_probs, TreeNumbers(seed, base)
    )

    assert tree == chain._replace(path=tuple(range(chain.accepted_length)))


def test_siblings_and_depths_have_numbers_of_their_own() -> None:
    numbers = TreeNumbers(seed=5, base=10)
    found = [numbers.accept(depth, rank) for depth in range(3) for rank in range(3)]
    found += [numbers.next(depth) for depth in range(3)]

    assert len(set(found)) == len(found)


# --- as part of a pass ---------------------------------------------------------------------------


def trial(**changes: Any) -> Trial:
    plain = Trial(
        params=SamplingParams(temperature=0),
        token_ids=(3, 3),
        prompt_length=2,
        eos_token_ids=(),
        draft_tokens=TOKENS,
        draft_probs=None,
        epoch=0,
        num_rows=len(TOKENS) + 1,
        tree=TREE,
    )
    return replace(plain, **changes)


def logits_of(own: tuple[int, ...]) -> Tensor:
    return 8.0 * one_hot(*own) + torch.linspace(0, 0.3, VOCAB)


OWN = (1, 3, 0, 0, 0, 0, 4)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, acceptance=Acceptance.BLOCK),
        SamplingParams(temperature=1e-3, acceptance=Acceptance.COUPLED),
        SamplingParams(temperature=1e-3),
    ],
    ids=str,
)
def test_trees_and_chains_share_a_pass_under_every_rule(params: SamplingParams) -> None:
    """And logarithms and probabilities are those of the path's own rows."""
    asking = replace(params, logprobs=1)
    chain = trial(params=params, draft_tokens=(1, 3), num_rows=3, tree=None)
    logits = torch.cat([logits_of((1, 3, 2)), logits_of(OWN)])

    first, second = judge_pass(logits, [chain, trial(params=asking, wants_probs=True)])

    assert first == Judgement(2, 2)
    assert isinstance(second, Judgement)
    assert (second.path, second.next_token) == ((0, 3, 5), 4)
    expected = logits_of(OWN).log_softmax(1)
    rows, tokens = (0, 1, 4, 6), (1, 3, 0, 4)
    assert [entry[0] for entry in second.logprobs] == pytest.approx(
        [float(expected[row, token]) for row, token in zip(rows, tokens, strict=True)], abs=1e-5
    )
    if not params.is_deterministic:
        assert second.target_probs == pytest.approx([1.0] * 4)


def test_penalties_and_bans_are_those_of_each_path() -> None:
    """L03: a word of two ids is banned behind its first one, on whatever path that lies."""
    params = SamplingParams(temperature=0, bad_words_token_ids=((1, 3), (2, 4)))

    (judgement,) = judge_pass(logits_of(OWN), [trial(params=params)])

    # after 1 the target may not say 3 and says its second best, 4, which is no child of it
    assert judgement == Judgement(1, 4, path=(0,))
    (judgement,) = judge_pass(logits_of((2, 0, 4, 0, 0, 0, 0)), [trial(params=params)])
    assert judgement == Judgement(1, 3, path=(1,))

    longer = SamplingParams(temperature=0, bad_words_token_ids=((2, 4, 3),))
    (judgement,) = judge_pass(logits_of((2, 0, 4, 0, 0, 3, 0)), [trial(params=longer)])
    assert judgement == Judgement(2, 4, path=(1, 4))

    once = SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=2.0)
    near = logits_of((1, 1, 0, 0, 0, 0, 0)) * torch.tensor([0.1] * VOCAB)
    (judgement,) = judge_pass(near, [trial(params=once)])
    # 1 was drafted once on this path, so that it is not the best again
    assert isinstance(judgement, Judgement)
    assert judgement.path == (0,)
    assert judgement.next_token != 1
