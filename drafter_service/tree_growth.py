"""A draft that branches, as it grows: the likeliest nodes first, under a budget of nodes.

What is expected of a node is what is expected of its parent times what its parent expects of a
child of its rank (`Children`): the probability that a judge comes by and takes it, were the
drafter always right about its own. The tree is what a best-first search finds, the `max_nodes`
best; where one child always outweighs all others it is a chain. A pass feeds all nodes that belong
to the best so far and whose children are not known, so that a tree takes about as many passes as
it is deep, and a chain as many as a chain.

A node is in the tree for what is expected of it and of others, never for its token: in the order
of a best-first search each draw is made, or not, by what was drawn before it, which is all that
the acceptance rule asks for. Nodes that were fed too early for that order change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from paceline.sampling.draw import Draw
from paceline.sampling.tree_draw import Children
from paceline.tree_shape import ROOT, TreeShape


@dataclass(frozen=True, slots=True)
class Node:
    """One that may become part of the tree; `parent` counts all that were drawn."""

    parent: int
    draw: Draw
    expected: float
    path: tuple[int, ...]
    """The tokens from the first one down to its own."""


class TreeGrowth:
    """Grows one tree after the first `root` tokens of a sequence.

    Nothing grows behind an id of `end_ids`. `num_slots` is how many nodes the cache has room for,
    at least `max_nodes`.
    """

    def __init__(
        self, *, root: int, epoch: int, max_nodes: int, num_slots: int, end_ids: Set[int]
    ) -> None:
        self.root = root
        self.epoch = epoch
        self.nodes: list[Node] = []
        self.fed: list[int] = []
        """The nodes in the drafter's cache, in the order of their slots."""
        self.max_nodes = max_nodes
        self.is_complete = False
        """Whether it was proposed, and waits for what becomes of it."""
        self._num_slots = num_slots
        self._end_ids = end_ids
        self._num_expanded = 0

    def place(self, max_children: int) -> int:
        """Which of the tree's draws, from 1 on, the first child of the next expanded node is."""
        return 1 + self._num_expanded * max_children

    def expand(self, node: int, children: Children) -> None:
        """Take the children of a node, or of the `ROOT`; the order of calls numbers the draws."""
        self._num_expanded += 1
        reached = 1.0 if node == ROOT else self.nodes[node].expected
        path = self.path(node)
        for draw, expected in zip(children.draws, children.expected, strict=True):
            value = reached * min(1.0, expected)
            self.nodes.append(Node(node, draw, value, (*path, draw.token_id)))

    def path(self, node: int) -> tuple[int, ...]:
        """The tokens from the first one down to a node's own; none for the `ROOT`."""
        return () if node == ROOT else self.nodes[node].path

    def frontier(self) -> list[int]:
        """The nodes to feed next, the likeliest first; none when the tree has grown."""
        # the last of the best has no children among them
        best = self._best()[: self.max_nodes - 1]
        wanted = [node for node in best if node not in self.fed and self._may_grow(node)]
        if not wanted:
            return []
        # those up to the first one are sure to be in the tree; of the places after it each may yet
        # be taken by a node that is not known and must be fed
        num_reserved = self.max_nodes - 2 - best.index(wanted[0])
        spare = self._num_slots - len(self.fed) - 1 - num_reserved
        return wanted[: 1 + max(0, spare)]

    def _may_grow(self, node: int) -> bool:
        return self.nodes[node].path[-1] not in self._end_ids

    def _best(self) -> list[int]:
        order = sorted(range(len(self.nodes)), key=lambda i: (-self.nodes[i].expected, i))
        return order[: self.max_nodes]

    def shape_with(self, nodes: Sequence[int]) -> TreeShape:
        """Of all nodes in the cache once these are fed."""
        slots = {node: slot for slot, node in enumerate([*self.fed, *nodes])}
        return TreeShape(tuple(slots.get(self.nodes[node].parent, ROOT) for node in slots))

    def path_of(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The slots, from the first node's on, of the path that holds these tokens, if fed."""
        tokens = [self.nodes[node].draw.token_id for node in self.fed]
        return self.shape_with(()).walk(tokens, token_ids)

    def tree(self) -> tuple[list[Draw], TreeShape]:
        """The best nodes, the likeliest first, and how they hang together."""
        best = self._best()
        numbers = {node: number for number, node in enumerate(best)}
        parents = tuple(numbers.get(self.nodes[node].parent, ROOT) for node in best)
        return [self.nodes[node].draw for node in best], TreeShape(parents)
