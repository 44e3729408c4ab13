"""Quantization by bitsandbytes: 8-bit integers, or 4-bit NF4 with bfloat16 compute."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelLoadError

COMPUTE_DTYPE = torch.bfloat16
BITSANDBYTES_KINDS = ("int8", "nf4", "fp4")


def check_available(quantization: str) -> None:
    """Raise `ModelLoadError` if bitsandbytes is missing or broken."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelLoadError(f"model.quantization: {quantization} needs the package bitsandbytes")
    # It would warn of a kernel that it does without, and of a cast in every layer of every pass.
    for name in ("bitsandbytes.backends.cpu.ops", "bitsandbytes.autograd._functions"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        import bitsandbytes  # noqa: F401, PLC0415  (slow, and only wanted here)
    except Exception as error:
        raise ModelLoadError(
            f"model.quantization: {quantization}: bitsandbytes does not load: {error}"
        ) from error


def stored_quantization(config: PreTrainedConfig) -> str | None:
    """How the weights of a checkpoint are quantized already; None if they are not.

    `int8` and `nf4` are those of `model.quantization`; of others, what the checkpoint calls it.
    """
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    values: dict[str, Any] = stored if isinstance(stored, dict) else stored.to_dict()
    if values.get("load_in_8bit"):
        return "int8"
    if values.get("load_in_4bit"):
        return str(values.get("bnb_4bit_quant_type", "fp4"))
    return str(values.get("quant_method", "quantized"))


def bitsandbytes_config(quantization: str) -> BitsAndBytesConfig:
    """What `from_pretrained` takes to quantize while loading."""
    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=COMPUTE_DTYPE,
        bnb_4bit_use_double_quant=False,
    )


def quantize_in_place(model: PreTrainedModel, quantization: str, device: torch.device) -> None:
    """Replace a loaded model's linear layers, except the LM head, by quantized ones on `device`.

    For GGUF files, which transformers does not load and quantize in one go.
    """
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head:
            parent, _, attribute = name.rpartition(".")
            quantized = _quantized(module, quantization, device)
            setattr(model.get_submodule(parent), attribute, quantized)


def _quantized(linear: nn.Linear, quantization: str, device: torch.device) -> nn.Module:
    import bitsandbytes as bnb  # noqa: PLC0415

    shape = (linear.in_features, linear.out_features, linear.bias is not None)
    weight = linear.weight.detach()
    module: Any
    # The parameter quantizes itself on the way to its device.
    if quantization == "int8":
        module = bnb.nn.Linear8bitLt(*shape, has_fp16_weights=False, threshold=6.0, device="meta")
        module.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False).to(
            device
        )
    else:
        module = bnb.nn.Linear4bit(
            *shape,
            compute_dtype=COMPUTE_DTYPE,
            compress_statistics=False,
            quant_type="nf4",
            device="meta",
        )
        module.weight = bnb.nn.Params4bit(
            weight,
            requires_grad=False,
            compress_statistics=False,
            quant_type="nf4",
            module=module,
        ).to(device)
    module.bias = linear.bias
    return module.eval()  # type: ignore[no-any-return]
