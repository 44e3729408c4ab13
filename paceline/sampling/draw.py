"""Draft tokens: drawn by the drafter from its own logits, with the numbers that it will report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import PacelineError
from paceline.sampling.columns import Columns
from paceline.sampling.coupled import coupled_tokens
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.isolation import each_or_error
from paceline.sampling.penalties import NEGATIVE_INFINITY, changes_logits
from paceline.sampling.probabilities import RowContext, greedy_choice, target_weights
from paceline.sampling.randomness import Purpose, keyed_epoch, uniform
from paceline.sampling.selection import inverse_cdf, next_largest


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One draft to draw: where, in which epoch, and how many ids its distribution keeps.

    `draft_top_k` 0 keeps the full vocabulary, 1 makes the draft a point mass on the likeliest id.
    `num_others` asks for so many of a draw's `others`.
    """

    context: RowContext
    epoch: int
    draft_top_k: int
    num_others: int = 0


class Draw(NamedTuple):
    """A draft token and the distribution that it was sampled from; None for a point mass.

    `others` is what the target likeliest says if it is not that token, as far as the drafter can
    tell, likeliest first: guesses, on which no probability rests. They may be told though the row
    did not ask.
    """

    token_id: int
    probs: DraftProbs | None
    others: tuple[int, ...] = ()


def draw_drafts(
    logits: Tensor,  # [B, V], or [B, n] with `columns`
    rows: Sequence[DraftRow],
    columns: Columns | None = None,
) -> list[Draw | PacelineError]:
    """Draw one draft token a row. Ids are the vocabulary's own, whichever of them have `columns`.

    Greedy takes the argmax, `coupled` the argmax with shared noise. Otherwise the row's
    distribution is cut to its `draft_top_k` likeliest ids and renormalised in float32, and only
    then sampled: the numbers returned are the numbers sampled from.

    A row that fails (see `target_weights`) has its error in its place; the others are drawn.
    """
    return each_or_error(partial(_draw, columns=columns), logits, rows, [1] * len(rows))


def stack_draws(draws: Sequence[Draw]) -> DraftProbs | None:
    """The distributions of a block's draws, `[m, K]`; None for a deterministic draft.

    In a block of both kinds a point mass becomes a row like the others. Sparse rows are ordered by
    probability, so columns that are 0 in all of them are cut off.
    """
    sampled = next((draw.probs for draw in draws if draw.probs is not None), None)
    if sampled is None:
        return None
    block = DraftProbs.cat([draw.probs or _point_mass(draw.token_id, sampled) for draw in draws])
    if block.ids is None:
        return block
    width = max(1, int((block.probs > 0).sum(1).max()))
    return DraftProbs(block.ids[:, :width], block.probs[:, :width])


def _point_mass(token_id: int, like: DraftProbs) -> DraftProbs:
    """One row, dense or sparse as another is."""
    sparse = DraftProbs.point_masses([token_id])
    if like.ids is not None:
        return sparse
    return DraftProbs(None, sparse.dense_row(0, like.probs.shape[1])[None])


def _draw(logits: Tensor, rows: Sequence[DraftRow], columns: Columns | None) -> list[Draw]:
    # Rows that are drawn alike go together: greedy, coupled, or one width of distribution.
    groups: dict[tuple[str | int, bool], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        params = row.context.params
        is_narrow = columns is not None and _stays_narrow(row, len(columns))
        greedy_or_coupled = "greedy" if params.is_greedy else "coupled"
        width = _width(row, logits.shape[1] if columns is None else columns.vocab_size)
        kind = greedy_or_coupled if params.is_deterministic else width
        groups[kind, is_narrow].append(index)
    draws: dict[int, Draw] = {}
    for (kind, is_narrow), members in groups.items():
        part = logits if len(members) == len(rows) else logits[members]
        if columns is not None and not is_narrow:
            part = columns.widen(part, fill=NEGATIVE_INFINITY)
        named = columns if is_narrow else None
        chosen = [rows[index] for index in members]
        if kind == "greedy":
            drawn = _draw_greedy(part, chosen, named)
        elif kind == "coupled":
            drawn = _draw_coupled(part, chosen, named)
        else:
            drawn = _draw_sampled(part, chosen, named)
        draws.update(zip(members, drawn, strict=True))
    return [draws[index] for index in range(len(rows))]


def _stays_narrow(row: DraftRow, num_columns: int) -> bool:
    """Whether a row can be drawn from its few columns alone, which is less work: parameters that
    name ids, and a distribution over all ids, want the whole width."""
    if changes_logits(row.context):
        return False
    return row.context.params.is_deterministic or 0 < row.draft_top_k < num_columns


def _draw_greedy(logits: Tensor, rows: Sequence[DraftRow], columns: Columns | None) -> list[Draw]:
    adjusted, tokens = greedy_choice(logits, [row.context for row in rows])
    others = _next_largest(adjusted, tokens, rows)
    if columns is not None:
        tokens = columns.ids_at(tokens)
        others = None if others is None else columns.ids_at(others)
    return _point_draws(tokens, others, _num_others(rows))


def _draw_coupled(logits: Tensor, rows: Sequence[DraftRow], columns: Columns | None) -> list[Draw]:
    contexts = [row.context for row in rows]
    weights = target_weights(logits, contexts)
    if columns is not None:  # the noise is that of the vocabulary's ids
        weights = columns.widen(weights, fill=0.0)
    seeds = [context.params.seed for context in contexts]
    positions = [context.position for context in contexts]
    tokens = coupled_tokens(weights, seeds, positions)
    others = []
    rest, drawn = weights, tokens
    for _ in range(_num_others(rows)):
        rest = rest.scatter(1, drawn.unsqueeze(1), 0.0)
        drawn = coupled_tokens(rest, seeds, positions).clamp_(max=weights.shape[1] - 1)
        others.append(drawn)
    return _point_draws(tokens, torch.stack(others, 1) if others else None, len(others))


def _draw_sampled(logits: Tensor, rows: Sequence[DraftRow], columns: Columns | None) -> list[Draw]:
    weights = target_weights(logits, [row.context for row in rows]).float()
    width = _width(rows[0], logits.shape[1])
    ids: Tensor | None = None
    if width == 1:  # a point mass, which need not travel; a tie goes to the lowest id
        likeliest = weights.argmax(1)
        others = _next_largest(weights, likeliest, rows)
        if columns is not None:
            likeliest = columns.ids_at(likeliest)
            others = None if others is None else columns.ids_at(others)
        return _point_draws(likeliest, others, _num_others(rows))
    if width < logits.shape[1]:
        weights, ids = weights.topk(width)
        if columns is not None:
            ids = columns.ids_at(ids)
    probs = weights / weights.sum(1, keepdim=True)
    numbers = [
        uniform(
            row.context.params.seed,
            row.context.position,
            Purpose.DRAFT,
            keyed_epoch(row.context.params.acceptance, row.epoch),
        )
        for row in rows
    ]
    places = inverse_cdf(probs, torch.tensor(numbers, dtype=torch.float64, device=probs.device))
    others = _next_largest(probs, places, rows)
    tokens = places
    if ids is not None:
        tokens = ids.gather(1, places.unsqueeze(1)).squeeze(1)
        others = None if others is None else ids.gather(1, others)
    # Off the device once for the batch: the distributions leave for the wire anyway.
    kept = DraftProbs(None if ids is None else ids.cpu(), probs.cpu())
    drawn = tokens.tolist()
    told = _told(others, drawn, _num_others(rows))
    return [Draw(token, kept.rows(i, i + 1), told[i]) for i, token in enumerate(drawn)]


def _num_others(rows: Sequence[DraftRow]) -> int:
    return max(row.num_others for row in rows)


def _next_largest(weights: Tensor, best: Tensor, rows: Sequence[DraftRow]) -> Tensor | None:
    count = _num_others(rows)
    return next_largest(weights, best, count) if count else None


def _point_draws(tokens: Tensor, others: Tensor | None, count: int) -> list[Draw]:
    drawn = tokens.tolist()
    told = _told(others, drawn, count)
    return [Draw(token, None, other) for token, other in zip(drawn, told, strict=True)]


def _told(others: Tensor | None, drawn: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """`[R, n]` as a tuple a row, without what was drawn; empty ones if nobody asked."""
    if others is None:
        return [()] * len(drawn)
    return [
        tuple([other for other in row if other != token][:count])
        for token, row in zip(drawn, others.tolist(), strict=True)
    ]


def _width(row: DraftRow, vocab_size: int) -> int:
    """Entries of the row's distribution."""
    return min(row.draft_top_k, vocab_size) or vocab_size
