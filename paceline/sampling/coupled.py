"""Sampling with shared noise: argmax of log probability plus Gumbel noise, equal on both sides."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.sampling.randomness import NOISE_GROUP, group_noise, member_noise, seed_words

_NO_ID = 2**62
_GROUPS_TRIED = 8


def coupled_tokens(
    weights: Tensor,  # [R, V], from `target_weights`
    seeds: Sequence[int],
    positions: Sequence[int],
) -> Tensor:  # int64 [R]
    """Each row's argmax of log weight + noise(seed, position, id); the lowest id wins a tie.

    A sample of the row's distribution (Gumbel-max), and a function of weights, seed and position
    alone. Equals the argmax over the full vocabulary, but draws single noises only in groups of
    ids that can win: a group's largest log weight plus its largest noise bounds what its ids
    reach, and the groups with the highest bounds show how much must be reached.
    """
    num_rows, width = weights.shape
    grouped = torch.nn.functional.pad(weights, (0, -width % NOISE_GROUP))
    grouped = grouped.view(num_rows, -1, NOISE_GROUP)
    num_groups = grouped.shape[1]
    device = weights.device
    seed_tensor = torch.tensor([seed_words(seed) for seed in seeds], device=device)
    position_tensor = torch.tensor(list(positions), device=device)

    groups = torch.arange(num_groups, device=device)
    noise, _ = group_noise(seed_tensor[:, None], position_tensor[:, None], groups)
    bound = grouped.amax(2).double().log() + noise
    tried = bound.topk(min(_GROUPS_TRIED, num_groups)).indices
    row = torch.arange(num_rows, device=device).repeat_interleave(tried.shape[1])
    values, _ = _values(grouped, row, tried.flatten(), seed_tensor, position_tensor)
    best = values.view(num_rows, -1).amax(1)

    row, group = (bound >= best.unsqueeze(1)).nonzero(as_tuple=True)
    values, ids = _values(grouped, row, group, seed_tensor, position_tensor)
    best.scatter_reduce_(0, row, values.amax(1), "amax")
    winners = torch.where(values == best[row].unsqueeze(1), ids, _NO_ID).amin(1)
    chosen = torch.full((num_rows,), _NO_ID, device=device)
    return chosen.scatter_reduce_(0, row, winners, "amin")


def _values(
    grouped: Tensor, row: Tensor, group: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Log weight + noise of all ids of the (row, group) pairs, float64 `[n, 64]`, and the ids."""
    ids = group.unsqueeze(1) * NOISE_GROUP + torch.arange(NOISE_GROUP, device=row.device)
    noise = member_noise(seeds[row].unsqueeze(1), positions[row].unsqueeze(1), ids)
    return grouped[row, group].double().log() + noise, ids
