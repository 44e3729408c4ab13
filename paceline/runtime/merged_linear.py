"""Linear layers that read the same input, computed in one product.

A model multiplies one hidden state by the weights for queries, keys and values, and another by
those of the two halves of a gated feed-forward layer. For the few tokens of a decoding pass a
product takes the time to read its weights and that of the call: one call that reads all of them
takes less. Which layers these are is not told by their names but seen in a pass of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class SharedInputs:
    """Notes which linear layers a model calls one after the other with the very same tensor."""

    def __init__(self) -> None:
        self.groups: list[list[nn.Linear]] = []
        """Of two layers or more, each in the order of its calls."""
        self._input: Tensor | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Within, one pass of the model is seen."""
        hooks = [layer.register_forward_pre_hook(self._note) for layer in plain_layers(model)]
        try:
            yield
        finally:
            self._input = None
            for hook in hooks:
                hook.remove()
        seen = Counter(id(layer) for group in self.groups for layer in group)
        owners = Counter(
            id(weight) for module in model.modules() for weight in module.parameters(recurse=False)
        )
        self.groups = [
            group
            for group in self.groups
            if len(group) > 1
            and all(seen[id(layer)] == owners[id(layer.weight)] == 1 for layer in group)
        ]

    def take(self) -> list[list[nn.Linear]]:
        """The groups, which are then forgotten: whoever holds a layer holds its weight."""
        groups, self.groups = self.groups, []
        return groups

    def _note(self, layer: Any, arguments: tuple[Any, ...]) -> None:
        shared = arguments[0] if arguments else None
        if shared is not None and shared is self._input and _fits(layer, self.groups[-1][0]):
            self.groups[-1].append(layer)
        else:
            self.groups.append([layer])
        self._input = shared


def plain_layers(model: nn.Module) -> list[nn.Linear]:
    """The layers that are a product with a matrix and nothing besides: not quantized, without
    hooks, and in one place of the model only."""
    places = Counter(id(child) for module in model.modules() for child in module.children())
    return [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear
        and places[id(layer)] == 1
        and not (layer._forward_hooks or layer._forward_pre_hooks or hasattr(layer, "_hf_hook"))
    ]


def replace_layers(model: nn.Module, others: dict[nn.Module, nn.Module]) -> None:
    """Put other modules in the places of some."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child in others:
                setattr(module, name, others[child])


def merge(model: nn.Module, groups: Sequence[Sequence[nn.Linear]]) -> Callable[[], None]:
    """Let each group of layers compute in one product; returns how to undo it.

    No weight is held twice: those of the layers become views.
    """
    others: dict[nn.Module, nn.Module] = {}
    for layers in groups:
        merged = MergedLinear(layers)
        others[layers[0]] = merged
        for index, layer in enumerate(layers[1:], start=1):
            others[layer] = MergedPart(merged, index, layer)
    replace_layers(model, others)
    back = {new: old for old, new in others.items()}
    return lambda: replace_layers(model, back)


class MergedLinear(nn.Module):
    """Stands where the first of some layers stood, and computes what all of them would."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        first = layers[0]
        self.in_features, self.out_features = first.in_features, first.out_features
        self._sizes = [layer.out_features for layer in layers]
        self.product = nn.Linear(
            first.in_features, sum(self._sizes), bias=first.bias is not None, device="meta"
        )
        for name in ("weight", "bias"):
            own = [getattr(layer, name) for layer in layers]
            if own[0] is None:
                continue
            whole = torch.cat([each.detach() for each in own])
            setattr(self.product, name, nn.Parameter(whole, requires_grad=False))
            for layer, part in zip(layers, whole.split(self._sizes), strict=True):
                setattr(layer, name, nn.Parameter(part, requires_grad=False))
        self._held: list[Any] = []
        """The last input, and the parts of its product that have not been asked for yet."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The first layer's output, `[..., in_features]` to `[..., out_features]`."""
        parts = self.product(inputs).split(self._sizes, dim=-1)
        self._held[:] = (inputs, parts)
        own: Tensor = parts[0]
        return own

    def part(self, index: int, inputs: Tensor) -> Tensor:
        """Another layer's output."""
        if not self._held or self._held[0] is not inputs:
            self.forward(inputs)
        part: Tensor = self._held[1][index]
        if index == len(self._sizes) - 1:
            self._held.clear()
        return part


class MergedPart(nn.Module):
    """Stands where another of the layers stood."""

    def __init__(self, merged: MergedLinear, index: int, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._part = (merged, index)  # in a tuple, so that it is no child in a second place

    def forward(self, inputs: Tensor) -> Tensor:
        merged, index = self._part
        return merged.part(index, inputs)


def _fits(layer: nn.Linear, first: nn.Linear) -> bool:
    return (
        layer.weight.dtype == first.weight.dtype
        and layer.weight.device == first.weight.device
        and (layer.bias is None) == (first.bias is None)
    )
