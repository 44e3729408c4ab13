"""How a draft that branches is judged: along one path, so that the target's law is kept.

The walk begins at the token before the tree. At each node its children are looked at in order,
until one is accepted and the walk goes on from there; where none is, or there is none, the next
token is drawn and the walk ends. Nodes off the path have no say. (To accept nodes independently
and take the longest path would favour tokens with many descendants.)

*Greedy and `coupled`*: the child that is the target's own token is accepted, if there is one.

*Rejection without replacement* (Jeon et al. 2024, "Recursive speculative decoding", arXiv
2402.14160; SpecInfer, Miao et al. 2024, with siblings that differ): children x_1, x_2, … of a node
were drawn from its draft distribution, each without those before it:

    draft_1 = draft,   draft_{i+1} = draft_i without x_i, normalised.

With target_1 the target's law after the node, x_i is accepted with probability
min(1, target_i(x_i) / draft_i(x_i)), else the next one is judged against the residual,

    target_{i+1} = max(0, target_i - draft_i), normalised,

and after the last the next token is drawn from what is left. Each step is speculative sampling of
target_i by one draft from draft_i, so whatever came before, the token has the law target_1. That
holds however many children there are, as long as nobody looked at x_i to decide that it should be
among them (`drafter_service/tree_growth.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.sampling.acceptance import Judgement, residual
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.randomness import Purpose, uniform
from paceline.sampling.selection import inverse_cdf
from paceline.tree_shape import ROOT, TreeShape


def judge_tree_exact(
    tree: TreeShape,
    target_tokens: Sequence[int],  # [m + 1]: after the root, then after each node
    draft_tokens: Sequence[int],  # [m]
) -> Judgement:
    """Greedy and `coupled`: follow the target's own tokens for as long as the tree has them."""
    path: list[int] = []
    node = ROOT
    while True:
        own = target_tokens[node + 1]
        found = [child for child in tree.children(node) if draft_tokens[child] == own]
        if not found:
            return Judgement(len(path), own, path=tuple(path))
        node = found[0]
        path.append(node)


class TreeNumbers(NamedTuple):
    """Where the uniform numbers of a walk come from: the sequence's seed and the tree's place."""

    seed: int
    base: int
    """Position of the first nodes."""

    def accept(self, depth: int, rank: int) -> float:
        """Of the rank-th child at a depth, both from 0. A first child's is a chain's own."""
        return uniform(self.seed, self.base + depth, Purpose.ACCEPT, branch=rank)

    def next(self, depth: int) -> float:
        """Of the token at a depth that is no draft."""
        return uniform(self.seed, self.base + depth, Purpose.NEXT)


def judge_tree_rejection(
    tree: TreeShape,
    target_probs: Tensor,  # [m + 1, V]: after the root, then after each node
    draft_tokens: Sequence[int],  # [m]
    draft_probs: DraftProbs | None,  # [m, V or K], what each node's first sibling was drawn from
    numbers: TreeNumbers,
) -> Judgement:
    """Rejection without replacement, node by node.

    Raises `InvalidArgumentError` if a draft token has draft probability 0.
    """
    draft = None if draft_probs is None else draft_probs.to(target_probs.device)
    path: list[int] = []
    node = ROOT
    while True:
        depth, children = len(path), tree.children(node)
        thresholds, rest = child_thresholds(target_probs[node + 1], children, draft_tokens, draft)
        accepted = [
            child
            for rank, (child, threshold) in enumerate(zip(children, thresholds, strict=True))
            if numbers.accept(depth, rank) < threshold
        ]
        if not accepted:
            number = torch.tensor([numbers.next(depth)], dtype=torch.float64, device=rest.device)
            return Judgement(len(path), int(inverse_cdf(rest[None], number)), path=tuple(path))
        node = accepted[0]
        path.append(node)


def child_thresholds(
    target: Tensor,  # [V]
    children: Sequence[int],
    draft_tokens: Sequence[int],
    draft: DraftProbs | None,
) -> tuple[list[float], Tensor]:
    """For each child of a node, its acceptance probability once those before it were rejected.

    And what the next token is drawn from if all are, `[V]`. Without `draft` each child is a point
    mass.
    """
    thresholds: list[float] = []
    for index, child in enumerate(children):
        token = draft_tokens[child]
        if draft is None:
            law = torch.zeros_like(target)
            law[token] = 1.0
        else:
            law = draft.dense_row(child, len(target))
            if index:  # the first is judged by the very numbers of a chain
                law = law.double()
                law[[draft_tokens[sibling] for sibling in children[:index]]] = 0.0
                law /= law.sum()
            law = law.to(target)
        drafted = float(law[token])
        if not drafted > 0.0:
            raise InvalidArgumentError("draft_probs", "a draft token has draft probability 0")
        thresholds.append(min(1.0, float(target[token]) / drafted))
        target = residual(target, law)
    return thresholds, target
