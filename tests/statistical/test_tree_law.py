"""Drafts that branch keep the target's law: by exact enumeration within 1e-6, and end to end."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from exact_law import distance, law_over_rounds
from scipy import stats
from support.pipeline import Pipeline, outputs
from toy_pair import PROMPT, Tokens, ToyPair
from tree_law import Law, Tree, TreeLaws

from paceline.config import TreeConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling import tree_acceptance
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import SamplingParams
from paceline.tree_shape import TreeShape

TOLERANCE = 1e-6
SAMPLED = SamplingParams(temperature=0.9, frequency_penalty=0.4)
SHAPES = [widths for depth in (1, 2, 3) for widths in itertools.product((1, 2, 3), repeat=depth)]


@pytest.mark.parametrize("draft_top_k", [0, 1, 2])
def test_every_shape_keeps_the_law(draft_top_k: int) -> None:
    """L03: branching up to 3, depth up to 3; dense drafts, point masses and cut ones."""
    pair = ToyPair(3, SAMPLED, draft_top_k)
    laws = TreeLaws(pair)
    target = pair.target_law(PROMPT, 3)
    for widths in SHAPES:
        law = law_over_rounds(lambda tokens, w=widths: laws.of_shape(tokens, w), 3)
        assert distance(law, target) < TOLERANCE, widths


@pytest.mark.parametrize(
    ("vocab_size", "draft_top_k", "max_nodes", "max_children"),
    [(3, 0, 3, 2), (3, 0, 4, 3), (3, 2, 5, 2), (4, 3, 3, 3), (3, 1, 6, 3), (5, 1, 8, 3)],
)
@pytest.mark.parametrize("end_ids", [(), (1,)])
def test_a_tree_that_grows_by_what_was_drawn_keeps_the_law(
    vocab_size: int, draft_top_k: int, max_nodes: int, max_children: int, end_ids: Tokens
) -> None:
    """L03: the shape rule as it is, over several rounds; nothing grows behind an end id."""
    pair = ToyPair(vocab_size, SAMPLED, draft_top_k, disagreement=0.7)
    laws = TreeLaws(pair)
    num_tokens = 3 if max_nodes == 3 or draft_top_k else 2

    def after(tokens: Tokens) -> Law:
        return laws.grown(tokens, max_nodes, max_children, end_ids)

    law = law_over_rounds(after, num_tokens)

    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(law, pair.target_law(PROMPT, num_tokens)) < TOLERANCE
    prompts = [PROMPT, *((*PROMPT, token) for token in range(vocab_size))]
    trees = (tree for p in prompts for tree, _ in laws.trees(p, max_nodes, max_children))
    assert not all(shape.is_chain for _, shape in trees)


def test_trees_of_different_shapes_come_of_different_draws() -> None:
    """Else the test above would prove nothing of a shape that depends on them."""
    pair = ToyPair(3, SAMPLED, disagreement=0.7)

    shapes = {shape.parents for (_, shape), _ in TreeLaws(pair).trees(PROMPT, 4, 3)}

    assert len(shapes) > 2
    assert {TreeShape(parents).is_chain for parents in shapes} == {True, False}


def pruned(trees: Iterator[tuple[Tree, float]]) -> Iterator[tuple[Tree, float]]:
    """Trees less the nodes that the drafter, having drawn them, holds unlikely: a wrong rule."""
    for (draws, shape), weight in trees:
        kept = [
            node
            for node in range(len(shape))
            if all(_prob(draws[ancestor].probs, draws[ancestor].token_id) > 0.2
                   for ancestor in shape.paths[node])
        ]  # fmt: skip
        numbers = {node: number for number, node in enumerate(kept)}
        parents = tuple(numbers.get(shape.parents[node], -1) for node in kept)
        yield ([draws[node] for node in kept], TreeShape(parents)), weight


def _prob(law: DraftProbs | None, token_id: int) -> float:
    assert law is not None
    return float(law.prob_of(torch.tensor([token_id])))


def test_a_shape_that_looks_at_a_token_before_it_keeps_it_is_seen_to_be_biased() -> None:
    """The enumeration notices the mistake that the shape rule must not make."""
    pair = ToyPair(3, SAMPLED, disagreement=0.7)
    laws = TreeLaws(pair)
    law: Law = {}
    for tree, weight in pruned(laws.trees(PROMPT, 4, 3)):
        for output, probability in laws.of_tree(PROMPT, tree).items():
            law[output[:1]] = law.get(output[:1], 0.0) + weight * probability

    assert distance(law, pair.target_law(PROMPT, 1)) > 0.01


def judged_as_if_drawn_with_replacement(
    original: Callable[..., tuple[list[float], torch.Tensor]],
) -> Callable[..., tuple[list[float], torch.Tensor]]:
    """The law that each sibling is held against still holds those before it: a wrong rule."""

    def judge(
        target: torch.Tensor, children: Sequence[int], tokens: Sequence[int], draft: DraftProbs
    ) -> tuple[list[float], torch.Tensor]:
        thresholds: list[float] = []
        for child in children:
            (threshold,), target = original(target, [child], tokens, draft)
            thresholds.append(threshold)
        return thresholds, target

    return judge


def test_siblings_judged_as_if_drawn_with_replacement_are_seen_to_be_biased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = ToyPair(3, SAMPLED, disagreement=0.7)
    wrong = judged_as_if_drawn_with_replacement(tree_acceptance.child_thresholds)
    monkeypatch.setattr(tree_acceptance, "child_thresholds", wrong)

    law = law_over_rounds(lambda tokens: TreeLaws(pair).of_shape(tokens, (3,)), 1)

    assert distance(law, pair.target_law(PROMPT, 1)) > 0.01


def test_sampled_sessions_with_trees_have_the_targets_law() -> None:
    """A number that had a say in one round and is used again would bias the joint law."""
    target = hashed_script(3, seed=1)
    other = hashed_script(3, seed=5)
    counts: Counter[Tokens] = Counter()
    num_seeds, num_tokens, accepted, judged = 600, 4, 0, 0
    for start in range(0, num_seeds, 200):
        pipeline = Pipeline(
            ScriptedRunner(target, vocab_size=3, num_pages=1000),
            ScriptedRunner(lambda h: target(h) + other(h), vocab_size=3, num_pages=1000),
            tree=TreeConfig(max_children=3, doubt=1.0),
        )
        relays = [
            pipeline.open(
                [1],
                SamplingParams(temperature=1.0, max_tokens=num_tokens, seed=seed),
                window=8,
            )
            for seed in range(start, start + 200)
        ]
        pipeline.run()
        counts.update(tuple(outputs(relay)) for relay in relays)
        accepted += sum(relay.session.counts.accepted for relay in relays)
        judged += sum(relay.session.counts.judged for relay in relays)
    law: Law = {(): 1.0}
    for _ in range(num_tokens):
        law = {
            (*output, token): weight * share
            for output, weight in law.items()
            for token, share in enumerate(target([1, *output]).double().softmax(0).tolist())
        }
    common = [output for output, weight in law.items() if weight * num_seeds >= 8]
    observed = [counts[output] for output in common]
    expected = [law[output] * num_seeds for output in common]
    observed.append(num_seeds - sum(observed))
    expected.append(num_seeds - sum(expected))

    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert 0 < accepted < judged
