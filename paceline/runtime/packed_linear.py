"""Linear layers of a CPU with their weights in the order that its matrix product wants.

A product of few rows is bound by reading weights; oneDNN, which torch brings along, reads them
nearly twice as fast when they lie in blocks of its own choice. The two operators are those that
torch's compiler uses for a frozen model; where they are missing, or a layer is none for them, it
stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from paceline.runtime.merged_linear import plain_layers, replace_layers

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
"""Norm of the difference to the plain product, relative to that; other dtypes are not packed."""
NUM_ROWS = 3


class PackedLinear(nn.Module):
    """One layer; its weight can be multiplied by and is of no other use."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        bias = None if layer.bias is None else layer.bias.detach()
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
        self._operands = (packed, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        packed, bias = self._operands
        product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
        return product

    def unpacked(self) -> nn.Linear:
        """The layer as it was."""
        packed, bias = self._operands
        layer = nn.Linear(self.in_features, self.out_features, bias is not None, device="meta")
        layer.weight = nn.Parameter(packed.to_dense(), requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias, requires_grad=False)
        return layer


@torch.inference_mode()
def pack(model: nn.Module) -> Callable[[], None]:
    """Pack the layers of a model on a CPU, each checked against itself; returns how to undo it.

    The weight of an LM head that is tied to the embedding is then held twice, since that looks up
    rows of it.
    """
    if torch.backends.mkldnn.is_available():
        _pack(model)
    return lambda: unpack(model)


def unpack(model: nn.Module) -> None:
    """Put plain layers back, for a model that wants more of a layer than its product."""
    for layer in [module for module in model.modules() if isinstance(module, PackedLinear)]:
        replace_layers(model, {layer: layer.unpacked()})


def _pack(model: nn.Module) -> None:
    layers = plain_layers(model)
    while layers:
        layer = layers.pop()  # so that no weight is held twice for longer than it takes
        tolerance = TOLERANCE.get(layer.weight.dtype)
        if layer.weight.device.type != "cpu" or tolerance is None:
            continue
        try:
            packed = PackedLinear(layer)
            is_right = _deviation(packed, layer) <= tolerance
        except (AttributeError, RuntimeError, TypeError) as error:  # another torch, another CPU
            logger.info("linear layers are not packed: %s", str(error).splitlines()[0])
            break
        if is_right:
            replace_layers(model, {layer: packed})


def _deviation(packed: PackedLinear, layer: nn.Linear) -> float:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_ROWS, layer.in_features, generator=generator).to(layer.weight.dtype)
    expected = linear(inputs, layer.weight, layer.bias)
    return float((packed(inputs) - expected).float().norm() / expected.float().norm())
