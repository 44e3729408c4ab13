"""Choices over rows as wide as the vocabulary, without a full sort: argmax, mass cut-off, CDF."""

from __future__ import annotations

import torch
from torch import Tensor

_ARGMAX_BLOCK = 256
_NARROW = 8192
"""Up to this width one pass over a row takes less time than the calls for a second."""
_HEAVY_BLOCK = 64
_BUCKET_SHIFT = 19
_NUM_BUCKETS = (0x3F800000 >> _BUCKET_SHIFT) + 1


def largest(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's maximum, and its index, the lowest on a tie: `[R, V]` to `[R]` and int64 `[R]`.

    A row with a NaN has that as its maximum. Of a wide row it finds the best block first:
    reductions without an index vectorise, those with one do not (about 8 times slower on a CPU, in
    any dtype).
    """
    num_rows, width = rows.shape
    if width <= _NARROW:
        peak, best = rows.max(1)
        return peak, best
    whole = width // _ARGMAX_BLOCK * _ARGMAX_BLOCK
    blocks = rows[:, :whole].view(num_rows, -1, _ARGMAX_BLOCK)
    peak, block = blocks.amax(2).max(1)
    row = torch.arange(num_rows, device=rows.device)
    best = block * _ARGMAX_BLOCK + blocks[row, block].argmax(1)
    if whole < width:
        behind, rest = rows[:, whole:].max(1)
        is_behind = (behind > peak) | behind.isnan()
        peak = torch.where(is_behind, behind, peak)
        best = torch.where(is_behind, whole + rest, best)
    return peak, best


def next_largest(rows: Tensor, best: Tensor, count: int) -> Tensor:
    """The indices of each row's largest entries apart from that at `best`, largest first.

    `[R, V]` and int64 `[R]` to `[R, count]` or one more, among which `best` may then be; or as many
    as there are. Of entries that tie, any.
    """
    if rows.shape[1] <= _NARROW:
        return rows.topk(min(count + 1, rows.shape[1])).indices
    others = rows.scatter(1, best.unsqueeze(1), float("-inf"))
    found = [rows.new_empty((len(rows), 0), dtype=torch.int64)]
    for _ in range(min(count, rows.shape[1] - 1)):
        index = largest(others)[1].unsqueeze(1)
        others.scatter_(1, index, float("-inf"))
        found.append(index)
    return torch.cat(found, 1)


def mass_cutoff(weights: Tensor, share: Tensor) -> Tensor:
    """The smallest weight kept when the heaviest entries up to a share of the total are kept.

    An entry is kept while the entries strictly heavier than it hold less than `share` of the
    row's total, so the heaviest always is, and equals stay or go together. `weights` is `[R, V]`
    in [0, 1], `share` is `[R]` in (0, 1); returns `[R]`.

    Three steps. Blocks too light to matter are left out, which are most where a few ids hold the
    mass. A histogram over the floating-point bits (16 buckets per power of two; the bits order
    non-negative floats) finds the bucket in which the share runs out, for any distribution. Only
    the entries of that bucket are sorted.
    """
    num_rows = weights.shape[0]
    total = weights.sum(1, keepdim=True).double()
    wanted = share.double().unsqueeze(1) * total
    weights = _heavy_blocks(weights, (total - wanted) / 2)
    buckets = weights.float().view(torch.int32).long().bitwise_right_shift_(_BUCKET_SHIFT)
    histogram = weights.new_zeros(num_rows, _NUM_BUCKETS).scatter_add_(1, buckets, weights)
    histogram = histogram.double()
    # at_or_above[b]: what bucket b and all heavier ones hold.
    at_or_above = histogram.flip(1).cumsum(1).flip(1)
    # Rounding may make all of the row hold less than what is wanted.
    last = (at_or_above >= wanted).sum(1, keepdim=True).sub_(1).clamp_(min=0)
    above = (at_or_above - histogram).gather(1, last)

    row, column = (buckets == last).nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=num_rows)
    # The members of each row to the left, weight 0 to their right; then sort what little there is.
    rank = torch.arange(row.numel(), device=row.device) - (counts.cumsum(0) - counts)[row]
    members = weights.new_zeros(num_rows, int(counts.max()))
    members[row, rank] = weights[row, column]
    members = members.sort(1, descending=True).values
    heavier = above + members.double().cumsum(1) - members.double()
    # Rounding may let padding seem wanted too: the last member ends the search.
    num_kept = torch.minimum((heavier < wanted).sum(1), counts).clamp_(min=1)
    return members.gather(1, num_kept.unsqueeze(1) - 1).squeeze(1)


def _heavy_blocks(weights: Tensor, spare: Tensor) -> Tensor:
    """The row without blocks whose entries together weigh less than `spare`, `[R, 1]`.

    Returns `[R, W]`, W at most V: every entry above `spare` / V, and what shares a block with one.
    The row itself where that is a good part of it.
    """
    num_rows, width = weights.shape
    if width % _HEAVY_BLOCK:
        return weights
    blocks = weights.view(num_rows, -1, _HEAVY_BLOCK)
    peaks = blocks.amax(2)
    num_heavy = int((peaks > spare / width).sum(1).max())
    if 2 * num_heavy > peaks.shape[1]:
        return weights
    heavy = peaks.topk(num_heavy).indices.unsqueeze(2).expand(-1, -1, _HEAVY_BLOCK)
    return blocks.gather(1, heavy).view(num_rows, -1)


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Sample each row in proportion to its weights: `[R, V]`, float64 `[R]` to int64 `[R]`.

    Takes the first index whose cumulated weight exceeds uniform x total. An entry of weight 0 is
    never taken, for no uniform in [0, 1]. Sums are float64.
    """
    cumulated = weights.cumsum(1, dtype=torch.float64)
    total = cumulated[:, -1:].contiguous()
    wanted = uniforms.to(cumulated).unsqueeze(1) * total
    index = torch.searchsorted(cumulated, wanted, right=True)
    # Rounding may carry the product up to the total; the last entry with weight ends the search.
    last = torch.searchsorted(cumulated, total)
    return torch.minimum(index, last).squeeze(1)
