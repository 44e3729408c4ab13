"""Pruned sampling with shared noise equals the argmax over the full vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.sampling import coupled
from paceline.sampling.coupled import coupled_tokens
from paceline.sampling.randomness import gumbel_noise


def _weights(rows: int, width: int, scale: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, generator=generator) * scale
    return (logits - logits.amax(1, keepdim=True)).exp()


@pytest.mark.parametrize("width", [3, 64, 65, 1000, 5000])
@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0, 30.0])
def test_the_pruned_argmax_is_the_full_one(width: int, scale: float) -> None:
    weights = _weights(12, width, scale)
    weights[:, 1] = 0.0
    seeds, positions = [7, 2**63 + 5, 0] * 4, [0, 5, 1000, 2**31] * 3
    chosen = coupled_tokens(weights, seeds, positions)
    for row in range(12):
        noise = gumbel_noise(seeds[row], positions[row], torch.arange(width))
        full = weights[row].double().log() + noise
        assert int(chosen[row]) == int(full.argmax())


def test_few_noises_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a large vocabulary must not draw noise for all of it."""
    drawn = 0

    def counting(*args: Tensor) -> Tensor:
        nonlocal drawn
        noise = original(*args)
        drawn += noise.numel()
        return noise

    original = coupled.member_noise
    monkeypatch.setattr(coupled, "member_noise", counting)
    coupled_tokens(_weights(8, 49152, 4.0), list(range(8)), [3] * 8)
    assert drawn < 8 * 49152 / 8


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    weights = _weights(6, 300, 2.0)
    together = coupled_tokens(weights, [4] * 6, list(range(6)))
    for row in range(6):
        assert coupled_tokens(weights[row : row + 1], [4], [row]).tolist() == [int(together[row])]


def test_an_id_of_weight_zero_never_comes() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0]]).repeat(200, 1)
    assert coupled_tokens(weights, list(range(200)), [0] * 200).tolist() == [1] * 200


def test_over_seeds_the_tokens_have_the_law_of_the_weights() -> None:
    weights = torch.tensor([[0.2, 1.0, 0.5, 0.05]])
    chosen = coupled_tokens(weights.repeat(4000, 1), list(range(4000)), [9] * 4000)
    counts = chosen.bincount(minlength=4).double()
    expected = weights[0].double() / weights.sum() * 4000
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3  # chi-square, 3 df, 0.999
