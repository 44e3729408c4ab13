"""Weights as quantization will leave them, fast enough for every step of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.errors import ModelLoadError

NF4_BLOCK = 64
"""Neighbouring weights that share a scale, bitsandbytes' default."""


@contextmanager
def rounded_weights(weights: Sequence[nn.Parameter], quantization: str) -> Iterator[None]:
    """Meanwhile the weights are those that `nf4` or `int8` would store; then they are as before.

    What a backward pass finds in between is the gradient of the rounded weights, and a step of the
    optimizer outside of it applies it to the exact ones: the straight-through estimate (Bengio et
    al. 2013, arXiv 1308.3432).
    """
    exact = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight in weights:
            weight.copy_(rounded(weight, quantization))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, exact, strict=True):
                weight.copy_(value)


def rounded(weight: Tensor, quantization: str) -> Tensor:
    """A matrix after quantization and back, in its own dtype. Raises `ModelLoadError` for nf4
    without bitsandbytes, whose table it reads."""
    if quantization == "int8":
        # bitsandbytes scales each row to ±127
        scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
        return (weight / scale).round_().mul_(scale)
    table = nf4_table().to(weight.device)
    borders = (table[1:] + table[:-1]) / 2
    flat = weight.detach().float().flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % NF4_BLOCK)).view(-1, NF4_BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
    nearest = torch.bucketize(blocks / scale, borders, out_int32=True)
    values = table.index_select(0, nearest.flatten()).view_as(blocks).mul_(scale)
    return values.flatten()[: len(flat)].view_as(weight).to(weight.dtype)


def nf4_table() -> Tensor:
    """The 16 values of NF4 (Dettmers et al. 2023, arXiv 2305.14314), ascending, in [-1, 1]."""
    try:
        from bitsandbytes.functional import get_4bit_type  # noqa: PLC0415  (slow import)
    except ImportError as error:
        raise ModelLoadError("quantization: nf4 needs the package bitsandbytes") from error
    table: Tensor = get_4bit_type("nf4", device="cpu")
    return table.sort().values
