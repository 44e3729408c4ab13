"""The children of a node of a draft that branches: drawn by the drafter, each without those before.

See `tree_acceptance.py` for what is made of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import PacelineError
from paceline.sampling.coupled import coupled_tokens
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.draw import Draw
from paceline.sampling.isolation import each_or_error
from paceline.sampling.probabilities import (
    RowContext,
    adjust_logits,
    greedy_tokens,
    target_weights,
)
from paceline.sampling.randomness import Purpose, uniform
from paceline.sampling.selection import inverse_cdf


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A node whose children are to be drawn: where, how many at most, and by which numbers.

    With 0 at most, the output cannot go on there. `draft_top_k` is as in `DraftRow`: 1 makes each
    child a point mass, the likeliest ids in order. `place` says which of a tree's draws the first
    child is, from 1 on.
    """

    context: RowContext
    epoch: int
    draft_top_k: int
    max_children: int
    place: int


class Children(NamedTuple):
    """Draws in the order in which they are judged, and what is expected of each.

    The i-th child is expected to be accepted with the i-th largest probability of the distribution
    that they were drawn from: a function of the node's ancestors, not of the draws. So whatever a
    tree's shape makes of it, it has not looked at a child to decide whether to keep it.
    """

    draws: list[Draw]
    expected: list[float]


def draw_children(
    logits: Tensor,  # [B, V]
    rows: Sequence[BranchRow],
) -> list[Children | PacelineError]:
    """The children of one node a row, as many as have a probability.

    Greedy takes the likeliest ids, `coupled` those of the largest sums of log probability and
    shared noise. Otherwise each is sampled from the row's distribution without those before it;
    what travels with a child is the whole distribution.

    A row that fails (see `target_weights`) has its error in its place; the others are drawn.
    """
    return each_or_error(_draw, logits, rows, [1] * len(rows))


def _draw(logits: Tensor, rows: Sequence[BranchRow]) -> list[Children]:
    groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    found = {i: Children([], []) for i, row in enumerate(rows) if not row.max_children}
    for index in (i for i in range(len(rows)) if i not in found):
        row = rows[index]
        params, width = row.context.params, min(row.draft_top_k, logits.shape[1])
        kind = "greedy" if params.is_greedy else "coupled" if params.is_deterministic else "sampled"
        count = min(row.max_children, logits.shape[1])
        groups[kind, count, width if kind == "sampled" else 0].append(index)
    for (kind, count, width), members in groups.items():
        part = logits if len(members) == len(rows) else logits[members]
        chosen = [rows[index] for index in members]
        found.update(zip(members, _draw_alike(part, chosen, kind, count, width), strict=True))
    return [found[index] for index in range(len(rows))]


def _draw_alike(
    logits: Tensor, rows: Sequence[BranchRow], kind: str, count: int, width: int
) -> list[Children]:
    contexts = [row.context for row in rows]
    if kind == "greedy":
        # which id is taken needs no temperature; at 1 the probabilities tell how sure the model is
        probs = adjust_logits(logits, contexts).float().softmax(1)
        if not bool(probs.isfinite().all()):
            greedy_tokens(logits, contexts)  # says what is wrong with which row
    else:
        weights = target_weights(logits, contexts).float()
        probs = weights / weights.sum(1, keepdim=True)
    expected, likeliest = probs.topk(count)
    laws: list[DraftProbs | None] = [None] * len(rows)
    if kind == "coupled":
        tokens = _coupled(weights, contexts, count)
    elif kind == "greedy" or width == 1:
        tokens = likeliest
    else:
        ids: Tensor | None = None
        if 0 < width < logits.shape[1]:
            # as in `draw_drafts`: first cut, then normalised, then sampled
            weights, ids = weights.topk(width)
            probs = weights / weights.sum(1, keepdim=True)
            expected = probs[:, :count]
        columns = _sampled(probs, rows, expected.shape[1])
        tokens = columns if ids is None else ids.gather(1, columns)
        kept = DraftProbs(None if ids is None else ids.cpu(), probs.cpu())
        laws = [kept.rows(i, i + 1) for i in range(len(rows))]
    listed = zip(tokens.tolist(), expected.tolist(), laws, strict=True)
    return [_children(ids_, values, law) for ids_, values, law in listed]


def _children(token_ids: list[int], expected: list[float], law: DraftProbs | None) -> Children:
    """As many as there were ids of positive probability."""
    count = sum(value > 0.0 for value in expected)
    return Children([Draw(token, law) for token in token_ids[:count]], expected[:count])


def _coupled(weights: Tensor, contexts: Sequence[RowContext], count: int) -> Tensor:
    """Each row's ids of the `count` largest sums of log weight and noise, `[B, count]`."""
    seeds = [context.params.seed for context in contexts]
    positions = [context.position for context in contexts]
    left = weights.clone()
    tokens: list[Tensor] = []
    for _ in range(count):
        tokens.append(coupled_tokens(left, seeds, positions))
        left.scatter_(1, tokens[-1].unsqueeze(1), 0.0)
    return torch.stack(tokens, dim=1)


def _sampled(probs: Tensor, rows: Sequence[BranchRow], count: int) -> Tensor:
    """Columns of `count` samples a row without replacement, `[B, count]`."""
    left = probs.double()
    columns: list[Tensor] = []
    for rank in range(count):
        numbers = [
            uniform(
                row.context.params.seed,
                row.context.position,
                Purpose.DRAFT,
                row.epoch,
                branch=row.place + rank,
            )
            for row in rows
        ]
        uniforms = torch.tensor(numbers, dtype=torch.float64, device=left.device)
        columns.append(inverse_cdf(left, uniforms))
        left = left.scatter(1, columns[-1].unsqueeze(1), 0.0)
    return torch.stack(columns, dim=1)
