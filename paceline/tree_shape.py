"""The shape of a draft that branches: which node follows which, and how deep it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

ROOT = -1
"""The parent of the first nodes: the token that precedes the tree."""


@dataclass(frozen=True)
class TreeShape:
    """`parents[i]` is the node before node i, one of those numbered below it, or `ROOT`.

    Siblings stand in the order in which they are judged. A node at depth d takes the d-th position
    after those that precede the tree, from 0 on. A chain is a tree too.
    """

    parents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each node, those from the first one down to it, itself last."""
        paths: list[tuple[int, ...]] = []
        for node, parent in enumerate(self.parents):
            paths.append((node,) if parent == ROOT else (*paths[parent], node))
        return tuple(paths)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each node; 0 after the root."""
        return tuple(len(path) - 1 for path in self.paths)

    @cached_property
    def trunk(self) -> int:
        """How many of the first nodes every path begins with, each after the one before."""
        length = 0
        while length < len(self) and self.parents[length] == length - 1:
            if min(self.parents[length + 1 :], default=length) < length:
                break
            length += 1
        return length

    @property
    def is_chain(self) -> bool:
        """Whether nothing branches."""
        return self.trunk == len(self)

    def children(self, node: int) -> list[int]:
        """The nodes after a node, or after the `ROOT`, in order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def walk(self, node_tokens: Sequence[int], token_ids: Sequence[int]) -> tuple[int, ...]:
        """The path whose nodes hold these tokens, as far as there is one.

        `node_tokens` has a token a node, distinct among siblings.
        """
        path: list[int] = []
        node = ROOT
        for token_id in token_ids:
            found = [child for child in self.children(node) if node_tokens[child] == token_id]
            if not found:
                break
            node = found[0]
            path.append(node)
        return tuple(path)

    def without_trunk(self) -> TreeShape:
        """What is left when the trunk has come true."""
        return TreeShape(tuple(parent - self.trunk for parent in self.parents[self.trunk :]))
