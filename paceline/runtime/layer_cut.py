"""Loads some layers of a causal LM as a model of its own: a target's first, or chosen, layers with
its own embeddings, norm and head.

The layers are built at their places in the whole model, so that whatever depends on the place
(attention windows, scales, experts) is as there; the others are left out before any weight is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelLoadError


def chosen_layers(
    layers: int | Sequence[int], config: PreTrainedConfig, label: str
) -> tuple[int, ...]:
    """Indexes of the layers that `model.layers` asks for: the first so many, or these.

    Raises `ModelLoadError` if the model has not got them; `label` is how it calls the model.
    """
    total = int(config.get_text_config(decoder=True).num_hidden_layers)
    if isinstance(layers, int):
        if layers > total:
            raise ModelLoadError(
                f"model.layers: {layers} layers were asked for and {label} has only {total}"
            )
        return tuple(range(layers))
    if max(layers) >= total:
        raise ModelLoadError(
            f"model.layers: layer {max(layers)} was asked for and {label} has only {total} layers,"
            f" 0 to {total - 1}"
        )
    return tuple(layers)


def class_with_layers(config: PreTrainedConfig, layers: Sequence[int]) -> type[PreTrainedModel]:
    """The model's class, building no more than these layers; `from_pretrained` of it reads no
    others' weights. What it loads must go through `close_ranks` before use."""
    with torch.device("meta"):
        whole: type[PreTrainedModel] = type(AutoModelForCausalLM.from_config(config))

    def __init__(self: Any, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        whole.__init__(self, config, *args, **kwargs)
        total = config.get_text_config(decoder=True).num_hidden_layers
        _, found = _decoder_layers(self, total)
        for index in set(range(total)).difference(layers):
            delattr(found, str(index))

    # transformers finds how to convert a checkpoint by these names
    names = {"__init__": __init__, "__module__": whole.__module__, "__doc__": whole.__doc__}
    return type(whole.__name__, (whole,), names)


def close_ranks(model: PreTrainedModel, layers: Sequence[int]) -> None:
    """Number the layers of a model that has only these from 0 on, in its configuration too."""
    parent, found = _decoder_layers(model, len(layers))
    for index, layer in enumerate(found):
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = index  # type: ignore[assignment]
    name = next(name for name, child in parent.named_children() if child is found)
    setattr(parent, name, nn.ModuleList(found))
    _cut_config(model.config.get_text_config(decoder=True), layers)


def _decoder_layers(model: PreTrainedModel, length: int) -> tuple[nn.Module, nn.ModuleList]:
    """The list of the decoder's layers, so many of them, and the module that holds it."""
    for parent in model.modules():
        for child in parent.children():
            if isinstance(child, nn.ModuleList) and len(child) == length:
                return parent, child
    raise ModelLoadError(f"model.layers: {type(model).__name__} has no list of its layers")


def _cut_config(config: PreTrainedConfig, layers: Sequence[int]) -> None:
    """Keep the entries of these layers in what the configuration says layer by layer."""
    total = config.num_hidden_layers
    config.num_hidden_layers = len(layers)
    for name, value in list(vars(config).items()):
        if "layer" in name and isinstance(value, list | tuple) and len(value) == total:
            setattr(config, name, type(value)(value[index] for index in layers))
