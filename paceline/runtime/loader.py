"""Loads a causal LM by directory, hub id or GGUF file; each impossible wish is one clear error."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from paceline.config import ModelConfig
from paceline.errors import ModelLoadError
from paceline.runtime.layer_cut import chosen_layers, class_with_layers, close_ranks
from paceline.runtime.model_source import ModelSource, check_reachable, resolve_source
from paceline.runtime.quantization import (
    BITSANDBYTES_KINDS,
    bitsandbytes_config,
    check_available,
    quantize_in_place,
    stored_quantization,
)
from paceline.runtime.quiet import quiet_transformers

_log = logging.getLogger(__name__)

_CACHEABLE_LAYERS = {"full_attention", "sliding_attention", "attention"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, in evaluation mode, and what others need to know of it.

    `dtype` is what it computes in; `quantization` is the checkpoint's own if it has one;
    `vocab_width` counts the columns of the LM head, padding included; `eos_token_ids` is the full
    set of end ids, ascending.
    """

    model: PreTrainedModel
    source: ModelSource
    dtype: str
    device: str
    quantization: str
    vocab_width: int
    context_length: int
    eos_token_ids: tuple[int, ...]


def load_model(config: ModelConfig) -> LoadedModel:
    """Load a model as configured. Raises `ModelLoadError` naming the setting or the path.

    Sets the process's number of CPU threads if `config.threads` asks for it.
    """
    source = resolve_source(config.path, config.revision)
    device = resolve_device(config.device)
    if config.quantization != "none":
        check_available(config.quantization)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    check_reachable(source)
    with quiet_transformers():
        model_config = load_config(source)
        _check_architecture(model_config, source)
        stored = stored_quantization(model_config)
        if stored is not None:
            _check_stored(stored, config, source)
        model = _load_weights(source, model_config, config, device)
    _check_model(model, source)
    dtype = str(model.dtype).removeprefix("torch.")
    if stored is not None and config.dtype not in ("auto", dtype):
        raise ModelLoadError(
            f"model.dtype: {config.dtype} was asked for and the checkpoint {source.label}, which is"
            f" quantized already, computes in {dtype}"
        )
    return LoadedModel(
        model=model.eval(),
        source=source,
        dtype=dtype,
        device=str(device),
        quantization=stored or config.quantization,
        vocab_width=_vocab_width(model),
        context_length=context_length(model.config, source),
        eos_token_ids=_usable_ids(eos_token_ids(model), _vocab_width(model)),
    )


def resolve_device(name: str) -> torch.device:
    """The one device of a model; `auto` is CUDA where there is some."""
    if name == "auto":
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        _log.info("model.device auto: %s", device)
        return device
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ModelLoadError(f"model.device: {name} was asked for and there is no CUDA device")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise ModelLoadError(
                f"model.device: {name} was asked for and there are only"
                f" {torch.cuda.device_count()} CUDA devices"
            )
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype | str:
    """What `from_pretrained` takes as dtype; the checkpoint's own is "auto"."""
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    return torch.bfloat16 if device.type == "cpu" else "auto"


def eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """All end ids: the generation config's, else those of the model's config."""
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = model.config.get_text_config(decoder=True).eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(sorted(set(ids)))


def _usable_ids(token_ids: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Those that the model can produce; some checkpoints list others, -1 say."""
    usable = tuple(token_id for token_id in token_ids if 0 <= token_id < width)
    if usable != token_ids:
        _log.warning("end ids %s: the model can only produce %s", token_ids, usable)
    return usable


def context_length(config: PreTrainedConfig, source: ModelSource) -> int:
    """Positions that the model can tell apart without looking at the longest of a batch.

    A `longrope` model switches its frequencies for a whole batch once any position passes the
    original length; up to that length sessions cannot disturb each other.
    """
    text = config.get_text_config(decoder=True)
    length = getattr(text, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise ModelLoadError(
            f"model {source.name}: its configuration states no max_position_embeddings"
        )
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        length = min(length, int(rope.get("original_max_position_embeddings", length)))
    return length


def load_config(source: ModelSource) -> PreTrainedConfig:
    """A model's configuration alone. Raises `ModelLoadError`."""
    try:
        return AutoConfig.from_pretrained(source.name, **source.pretrained_arguments())
    except Exception as error:
        raise ModelLoadError(f"model {source.label}: {_first_line(error)}") from error


def _check_architecture(config: PreTrainedConfig, source: ModelSource) -> None:
    if config.is_encoder_decoder:
        raise ModelLoadError(
            f"model {source.label}: {config.model_type} is an encoder-decoder, not a causal LM"
        )
    text = config.get_text_config(decoder=True)
    strange = set(getattr(text, "layer_types", None) or ()) - _CACHEABLE_LAYERS
    if strange:
        raise ModelLoadError(
            f"model {source.label}: layers of type {', '.join(sorted(strange))} are not supported:"
            " only keys and values of full or sliding attention can be rolled back"
        )


def _check_stored(stored: str, config: ModelConfig, source: ModelSource) -> None:
    """Raise `ModelLoadError` if a quantized checkpoint cannot be served as configured."""
    if config.quantization not in ("none", stored):
        raise ModelLoadError(
            f"model.quantization: {config.quantization} was asked for and the checkpoint"
            f" {source.label} is quantized already, as {stored}"
        )
    if stored in BITSANDBYTES_KINDS:
        check_available(stored)


def _load_weights(
    source: ModelSource, model_config: PreTrainedConfig, config: ModelConfig, device: torch.device
) -> PreTrainedModel:
    arguments = source.pretrained_arguments()
    is_stored = stored_quantization(model_config) is not None  # transformers then sees to it
    quantize_while_loading = (
        config.quantization != "none" and source.gguf_file is None and not is_stored
    )
    if quantize_while_loading:
        arguments["quantization_config"] = bitsandbytes_config(config.quantization)
    elif source.gguf_file is not None and hasattr(transformers, "GgufConfig"):
        # Packed weights would save memory and cost far more time in a pass of several tokens.
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model_class: Any = AutoModelForCausalLM
    layers: tuple[int, ...] = ()
    if config.layers is not None:
        layers = chosen_layers(config.layers, model_config, source.label)
    try:
        if layers:
            model_class = class_with_layers(model_config, layers)
        # One explicit device from the start: a quantized model must never be moved (case I03).
        model: PreTrainedModel
        model, report = model_class.from_pretrained(
            source.name,
            config=model_config,
            dtype=resolve_dtype(config.dtype, device),
            device_map={"": device},
            output_loading_info=True,
            **arguments,
        )
        if layers:
            close_ranks(model, layers)
        if config.quantization != "none" and source.gguf_file is not None:
            quantize_in_place(model, config.quantization, device)
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(f"model {source.label} does not fit on {device}") from error
    except Exception as error:
        raise ModelLoadError(f"model {source.label}: {_first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        # They would be random numbers.
        raise ModelLoadError(
            f"model {source.label}: its files lack {len(missing)} weights, first {missing[0]}"
        )
    return model


def _check_model(model: PreTrainedModel, source: ModelSource) -> None:
    if getattr(model, "_is_stateful", False):
        raise ModelLoadError(
            f"model {source.label}: {type(model).__name__} keeps a recurrent state, which cannot"
            " be rolled back"
        )


def _vocab_width(model: PreTrainedModel) -> int:
    head: Any = model.get_output_embeddings()
    width = getattr(head, "out_features", None)
    return int(model.config.get_text_config(decoder=True).vocab_size if width is None else width)


def _first_line(error: Exception) -> str:
    """The gist of an error of transformers, whose messages run to pages."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
