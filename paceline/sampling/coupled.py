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
    noise = _RowNoise(seeds, positions, grouped.shape[1], weights.device)
    bound = grouped.amax(2).double().log() + noise.peaks

    tried = bound.topk(min(_GROUPS_TRIED, grouped.shape[1])).indices
    row = torch.arange(num_rows, device=weights.device).repeat_interleave(tried.shape[1])
    group = tried.flatten()
    values, ids = _values(grouped, noise, row, group)
    best = values.view(num_rows, -1).amax(1)

    bound.scatter_(1, tried, float("-inf"))
    other_row, other_group = (bound >= best.unsqueeze(1)).nonzero(as_tuple=True)
    if other_row.numel():
        other_values, other_ids = _values(grouped, noise, other_row, other_group)
        best.scatter_reduce_(0, other_row, other_values.amax(1), "amax")
        row = torch.cat([row, other_row])
        values, ids = torch.cat([values, other_values]), torch.cat([ids, other_ids])
    winners = torch.where(values == best[row].unsqueeze(1), ids, _NO_ID).amin(1)
    chosen = torch.full((num_rows,), _NO_ID, device=weights.device)
    return chosen.scatter_reduce_(0, row, winners, "amin")


class _RowNoise:
    """The noise of a batch of rows: the peaks of all groups, single ids on demand."""

    def __init__(
        self, seeds: Sequence[int], positions: Sequence[int], num_groups: int, device: torch.device
    ) -> None:
        self._seeds = torch.tensor([seed_words(seed) for seed in seeds], device=device)
        self._positions = torch.tensor(list(positions), device=device)
        groups = torch.arange(num_groups, device=device)
        self.peaks, self._top_members = group_noise(
            self._seeds.unsqueeze(1), self._positions.unsqueeze(1), groups
        )

    def of(self, row: Tensor, group: Tensor, ids: Tensor) -> Tensor:
        """The noise of ids `[n, 64]` that are the groups `[n]` of rows `[n]`."""
        return member_noise(
            self._seeds[row].unsqueeze(1),
            self._positions[row].unsqueeze(1),
            ids,
            self.peaks[row, group].unsqueeze(1),
            self._top_members[row, group].unsqueeze(1),
        )


def _values(grouped: Tensor, noise: _RowNoise, row: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Log weight + noise of all ids of the (row, group) pairs, float64 `[n, 64]`, and the ids."""
    ids = group.unsqueeze(1) * NOISE_GROUP + torch.arange(NOISE_GROUP, device=row.device)
    return grouped[row, group].double().log() + noise.of(row, group, ids), ids
