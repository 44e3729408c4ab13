"""The draft tokens of one session that wait to be judged, merged across block borders."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.sampling.draft_probs import DraftProbs
from paceline.tree_shape import ROOT, TreeShape
from paceline.types import DraftBlock


class DraftTail:
    """Tokens and their draft distributions, oldest first.

    The last block may branch; nothing comes behind it.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._rows: list[DraftProbs | None] = []  # one row each; None is a point mass
        self._blocks: list[int] = []  # how many of the tokens came in each block
        self._steps: list[int] = []  # how many tokens before each its parent stands: 1 in a chain
        self.num_branching = 0
        """The last so many tokens are behind the first branch."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def append(self, block: DraftBlock, skip: int) -> None:
        """Add a block's tokens, less the first `skip`."""
        if len(block.token_ids) > skip:
            self._blocks.append(len(block.token_ids) - skip)
        self.token_ids.extend(block.token_ids[skip:])
        probs = block.draft_probs
        for row in range(skip, len(block.token_ids)):
            self._rows.append(None if probs is None else probs.rows(row, row + 1))
        tree = block.tree
        if tree is None:
            self._steps.extend([1] * (len(block.token_ids) - skip))
        else:
            steps = [node - parent for node, parent in enumerate(tree.parents)]
            self._steps.extend(steps[skip:])
            self.num_branching = len(tree) - tree.trunk

    def consume(self, num_tokens: int) -> None:
        """Remove the first tokens, which have been judged."""
        del self.token_ids[:num_tokens]
        del self._rows[:num_tokens]
        del self._steps[:num_tokens]
        self.num_branching = min(self.num_branching, len(self.token_ids))
        while num_tokens:
            taken = min(self._blocks[0], num_tokens)
            self._blocks[0] -= taken
            num_tokens -= taken
            if not self._blocks[0]:
                del self._blocks[0]

    @property
    def first_block(self) -> int:
        """Tokens of the oldest block; 0 if there is none."""
        return self._blocks[0] if self._blocks else 0

    @property
    def num_before_branches(self) -> int:
        """Tokens that form a chain: all of them if nothing branches."""
        return len(self.token_ids) - self.num_branching

    def tree(self, num_tokens: int) -> TreeShape | None:
        """How the first `num_tokens` hang together; None for a chain."""
        if num_tokens <= self.num_before_branches:
            return None
        steps = enumerate(self._steps[:num_tokens])
        return TreeShape(tuple(node - step for node, step in steps))

    def clear(self) -> int:
        """Drop everything; returns how many tokens that were."""
        dropped = len(self.token_ids)
        self.consume(dropped)
        return dropped

    def draft_probs(self, num_tokens: int) -> DraftProbs | None:
        """The distributions of the first `num_tokens`; None if all are point masses."""
        rows = self._rows[:num_tokens]
        if all(row is None for row in rows):
            return None
        full = [row or _point_mass(token) for row, token in zip(rows, self.token_ids, strict=False)]
        if all(row.ids is None for row in full):
            return DraftProbs(None, torch.cat([row.probs for row in full]))
        width = max(row.probs.shape[1] for row in full)
        return DraftProbs(
            torch.cat([_padded(_ids(row), width, beyond=True) for row in full]),
            torch.cat([_padded(row.probs, width, beyond=False) for row in full]),
        )


def _point_mass(token_id: int) -> DraftProbs:
    return DraftProbs(torch.tensor([[token_id]]), torch.ones(1, 1))


def _ids(row: DraftProbs) -> Tensor:
    return torch.arange(row.probs.shape[1])[None] if row.ids is None else row.ids


def _padded(values: Tensor, width: int, *, beyond: bool) -> Tensor:
    """Widen `[1, n]` to `[1, width]`: probabilities with 0, ids by repeating their last."""
    missing = width - values.shape[1]
    if not missing:
        return values
    filler = values[:, -1:] if beyond else torch.zeros_like(values[:, -1:])
    return torch.cat([values, filler.expand(1, missing)], dim=1)


def check_block(block: DraftBlock, vocab_size: int) -> None:
    """Raise `InvalidArgumentError` unless a drafter could have sent these ids and numbers."""
    for token_id in block.token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidArgumentError(
                "token_ids", f"{token_id} is outside the vocabulary of {vocab_size}"
            )
    if block.draft_probs is not None:
        _check_probs(block.draft_probs, block.token_ids, vocab_size)
    if block.parents:
        _check_tree(block)


def _check_tree(block: DraftBlock) -> None:
    if len(block.parents) != len(block.token_ids):
        raise InvalidArgumentError(
            "parents", f"{len(block.parents)} for {len(block.token_ids)} draft tokens"
        )
    for node, parent in enumerate(block.parents):
        if not ROOT <= parent < node:
            raise InvalidArgumentError("parents", f"token {node} cannot follow token {parent}")
    if len(set(zip(block.parents, block.token_ids, strict=True))) < len(block.parents):
        raise InvalidArgumentError("parents", "two tokens that follow the same one are equal")


def _check_probs(probs: DraftProbs, token_ids: tuple[int, ...], vocab_size: int) -> None:
    if probs.num_tokens != len(token_ids):
        raise InvalidArgumentError(
            "draft_probs", f"{probs.num_tokens} rows for {len(token_ids)} draft tokens"
        )
    if not token_ids:
        return
    probs.check(vocab_size)
    if not bool((probs.prob_of(torch.tensor(token_ids)) > 0).all()):
        raise InvalidArgumentError("draft_probs", "a draft token has draft probability 0")
