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
from paceline.sampling.randomness import Purpose, gumbel_noise, uniform
from paceline.sampling.selection import inverse_cdf


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A node whose children are to be drawn: where, how many at most, and by which numbers.

    With 0 at most, the output cannot go on there. `draft_top_k` is as in `DraftRow`: 1 makes each
    child a point mass, the likeliest ids in order. `place` says which of a tree's draws the first
    child is, from 1 on. For `doubt` see `Children`.
    """

    context: RowContext
    epoch: int
    draft_top_k: int
    max_children: int
    place: int
    doubt: float = 0.5


class Children(NamedTuple):
    """Draws in the order in which they are judged, and with what probability each is expected to be
    accepted, were the judge to come by its parent.

    That depends on how far the target differs. `doubt` d says it: as if it had the drafter's logits
    with noise of d times Gumbel's standard law. Greedy and `coupled`, a token then is the target's
    own with the softmax of the (perturbed) logits over d. Otherwise the first sample is taken to be
    accepted with a = 1 - d (1 - p), p the largest probability, and each after it, once those before
    were rejected, with a / 2: about half of the draft lies where the target has more. Point masses,
    accepted by what the target gives them, are expected with their own probability.

    A sampled child's is a function of the node's ancestors, not of the draws: so whatever a tree's
    shape makes of it, it has not looked at a child to decide whether to keep it.
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
    laws: list[DraftProbs | None] = [None] * len(rows)
    doubt = torch.tensor([[row.doubt] for row in rows], device=logits.device)
    if kind == "greedy":
        sure = (adjust_logits(logits, contexts).float() / doubt).softmax(1)
        if not bool(sure.isfinite().all()):
            greedy_tokens(logits, contexts)  # says what is wrong with which row
        expected, tokens = sure.topk(count)
    elif kind == "coupled":
        weights = target_weights(logits, contexts)
        tokens = _coupled(weights, contexts, count)
        expected = (_perturbed(weights, contexts, tokens) / doubt).softmax(1)
        # once no id is left, the first one would come again
        expected *= torch.arange(count, device=logits.device) < (weights > 0.0).sum(1, keepdim=True)
    elif width == 1:
        weights = target_weights(logits, contexts).float()
        expected, tokens = (weights / weights.sum(1, keepdim=True)).topk(count)
    else:
        weights = target_weights(logits, contexts).float()
        ids: Tensor | None = None
        if 0 < width < logits.shape[1]:
            # as in `draw_drafts`: first cut, then normalised, then sampled
            weights, ids = weights.topk(width)
        probs = weights / weights.sum(1, keepdim=True)
        count = min(count, probs.shape[1])
        sure = 1.0 - doubt * (1.0 - probs.amax(1, keepdim=True))
        ranks = torch.arange(count, device=logits.device)
        later = (1.0 - sure) * (1.0 - sure / 2) ** (ranks - 1).clamp(min=0) * sure / 2
        expected = torch.where(ranks == 0, sure, later)
        expected *= ranks < (probs > 0.0).sum(1, keepdim=True)
        columns = _sampled(probs, rows, count)
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


def _perturbed(weights: Tensor, contexts: Sequence[RowContext], tokens: Tensor) -> Tensor:
    """Log weight and noise of some ids of each row, `[B, count]`."""
    noise = [
        gumbel_noise(context.params.seed, context.position, own)
        for context, own in zip(contexts, tokens, strict=True)
    ]
    return weights.gather(1, tokens).double().log() + torch.stack(noise)


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
