"""The output law of drafts that branch, computed without sampling.

Every way in which a tree can be drawn is enumerated with its probability, and the acceptance
numbers are integrated out by the thresholds and weights that production judges with.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from toy_pair import Tokens, ToyPair

from drafter_service.tree_growth import TreeGrowth
from paceline.errors import PacelineError
from paceline.sampling import tree_acceptance
from paceline.sampling.draw import Draw, stack_draws
from paceline.sampling.tree_draw import BranchRow, Children, draw_children
from paceline.tree_shape import ROOT, TreeShape

Law = dict[Tokens, float]
Tree = tuple[list[Draw], TreeShape]


class TreeLaws:
    """The laws of one pair of models; all that is computed of a prefix is kept."""

    def __init__(self, pair: ToyPair) -> None:
        self.pair = pair

    # --- production's numbers -------------------------------------------------------------------

    @functools.cache  # noqa: B019  (lives as long as its test)
    def children(self, tokens: Tokens, count: int) -> Children:
        """One family by the production call, which also says what is expected of it."""
        pair = self.pair
        row = BranchRow(pair.context(tokens), 0, pair.draft_top_k, count, place=1, doubt=1.2)
        (children,) = draw_children(pair.draft_logits(tokens)[None], [row])
        assert not isinstance(children, PacelineError)
        return children

    @functools.cache  # noqa: B019
    def judged(self, tokens: Tokens, family: Tokens) -> tuple[list[float], list[float]]:
        """How likely each child of a node is accepted, and each token is the next otherwise."""
        draws = [self.draw(tokens, token) for token in family]
        thresholds, rest = tree_acceptance.child_thresholds(
            self.pair.target_row(tokens), range(len(family)), family, stack_draws(draws)
        )
        accepted, reached = [], 1.0
        for threshold in thresholds:
            accepted.append(reached * threshold)
            reached *= 1.0 - threshold
        return accepted, (reached * rest / rest.sum()).tolist()

    def draw(self, tokens: Tokens, token: int) -> Draw:
        """A child as the drafter sends it."""
        is_point_mass = self.pair.draft_top_k == 1
        return Draw(token, None if is_point_mass else self.pair.draft_row(tokens))

    @functools.cache  # noqa: B019
    def families(self, tokens: Tokens, count: int) -> list[tuple[Tokens, float]]:
        """Every family of up to `count` children of a node, and how likely it is drawn."""
        if self.pair.draft_top_k == 1:
            return [(tuple(d.token_id for d in self.children(tokens, count).draws), 1.0)]
        law = self.pair.draft_row(tokens).dense_row(0, self.pair.vocab_size).double().tolist()
        support = [token for token, weight in enumerate(law) if weight > 0.0]
        found = []
        for family in itertools.permutations(support, min(count, len(support))):
            weight, left = 1.0, set(support)
            for token in family:
                weight *= law[token] / sum(law[other] for other in left)
                left.remove(token)
            found.append((family, weight))
        return found

    # --- shapes that are given ------------------------------------------------------------------

    @functools.cache  # noqa: B019
    def of_shape(self, tokens: Tokens, widths: Tokens) -> Law:
        """What one pass commits: a node at depth i has `widths[i]` children, as far as there are.

        Families are independent of each other, so that each accepted child goes on by itself.
        """
        committed: Law = defaultdict(float)
        width, deeper = (widths[0], widths[1:]) if widths else (0, ())
        for family, weight in self.families(tokens, width):
            accepted, rest = self.judged(tokens, family)
            for token, share in zip(family, accepted, strict=True):
                for output, probability in self.of_shape((*tokens, token), deeper).items():
                    committed[(token, *output)] += weight * share * probability
            for token, share in enumerate(rest):
                committed[(token,)] += weight * share
        return committed

    # --- shapes that grow by what was drawn -----------------------------------------------------

    def grown(self, tokens: Tokens, max_nodes: int, max_children: int, end_ids: Tokens = ()) -> Law:
        """What one pass commits over a tree that the drafter grows by its own rule."""
        committed: Law = defaultdict(float)
        for tree, weight in self.trees(tokens, max_nodes, max_children, end_ids):
            for output, probability in self.of_tree(tokens, tree).items():
                committed[output] += weight * probability
        return committed

    def trees(
        self, tokens: Tokens, max_nodes: int, max_children: int, end_ids: Tokens = ()
    ) -> Iterator[tuple[Tree, float]]:
        """Every tree that the drafter may grow, and how likely it is."""
        growth = TreeGrowth(
            root=len(tokens),
            epoch=0,
            max_nodes=max_nodes,
            num_slots=max_nodes,
            end_ids=frozenset(end_ids),
        )
        yield from self._grow(tokens, growth, [ROOT], max_children)

    def _grow(
        self, tokens: Tokens, growth: TreeGrowth, nodes: Sequence[int], max_children: int
    ) -> Iterator[tuple[Tree, float]]:
        nodes = nodes or growth.frontier()
        if not nodes:
            yield growth.tree(), 1.0
            return
        node, *others = nodes
        prefix = tokens + growth.path(node)
        expected = self.children(prefix, max_children).expected
        for family, weight in self.families(prefix, len(expected)):
            own = copy.copy(growth)
            own.nodes, own.fed = growth.nodes.copy(), growth.fed.copy()
            own.fed += [node] if node != ROOT else []
            own.expand(node, Children([self.draw(prefix, token) for token in family], expected))
            for tree, probability in self._grow(tokens, own, others, max_children):
                yield tree, weight * probability

    def of_tree(self, tokens: Tokens, tree: Tree) -> Law:
        """What one pass commits that judges this very tree."""
        draws, shape = tree
        committed: Law = defaultdict(float)

        def walk(node: int, path: Tokens, weight: float) -> None:
            children = shape.children(node)
            family = tuple(draws[child].token_id for child in children)
            accepted, rest = self.judged(tokens + path, family)
            for token, share in enumerate(rest):
                committed[(*path, token)] += weight * share
            for child, token, share in zip(children, family, accepted, strict=True):
                if share > 0.0:
                    walk(child, (*path, token), weight * share)

        walk(ROOT, (), 1.0)
        return committed
