"""From a configuration to a `ModelRunner` whose results are proven against the model's own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import psutil
import torch
from transformers import PreTrainedModel

from paceline.config import ModelConfig, RuntimeConfig
from paceline.errors import ModelLoadError
from paceline.runtime.kv_store import KVStore, bytes_needed
from paceline.runtime.loader import LoadedModel, load_model
from paceline.runtime.merged_linear import SharedInputs, merge
from paceline.runtime.model_runner import ModelRunner
from paceline.runtime.packed_linear import pack
from paceline.runtime.page_pool import PagePool
from paceline.runtime.quiet import quiet_transformers
from paceline.runtime.ragged_attention import ATTENTION_NAME, UnsupportedAttentionError
from paceline.runtime.self_check import NUM_TOKENS, Reference, deviation, take_reference

_log = logging.getLogger(__name__)

# Largest accepted deviation of the self-check. An unsupported architecture is off by 0.1 to 1.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.06, "float16": 0.03}
_QUANTIZED_TOLERANCE = {
    "nf4": 0.06,
    "int8": 0.35,  # it rounds a call's inputs by what else is in the call (case I01)
}


def create_runner(
    config: ModelConfig, runtime: RuntimeConfig, *, vocab_size: int | None = None
) -> tuple[ModelRunner, LoadedModel]:
    """Load a model and build its runner. Raises `ModelLoadError`."""
    loaded = load_model(config)
    return build_runner(loaded, runtime, vocab_size=vocab_size), loaded


def build_runner(
    loaded: LoadedModel, runtime: RuntimeConfig, *, vocab_size: int | None = None
) -> ModelRunner:
    """Switch a model to ragged attention, check it, and allocate its KV pool.

    `vocab_size` is the number of ids of the tokenizer; a wider head is cut to it, None takes the
    whole head. A model serves one runner. Raises `ModelLoadError`.
    """
    assert loaded.model.config._attn_implementation != ATTENTION_NAME, "serves a runner already"
    if vocab_size is None:
        vocab_size = loaded.vocab_width
    if vocab_size > loaded.vocab_width:
        raise ModelLoadError(
            f"the tokenizer has {vocab_size} ids, the model {loaded.source.name} only"
            f" {loaded.vocab_width}"
        )
    if loaded.context_length < NUM_TOKENS:
        raise ModelLoadError(f"context length {loaded.context_length} is below {NUM_TOKENS}")
    if runtime.kv_tokens < runtime.page_size:
        raise ModelLoadError(
            f"runtime.kv_tokens: {runtime.kv_tokens} is less than one page of"
            f" runtime.page_size {runtime.page_size}"
        )
    reference = _checked_reference(loaded, vocab_size)
    store = _allocate(loaded, runtime, reference)
    return ModelRunner(
        loaded.model,
        store,
        PagePool(store.num_pages, store.page_size),
        vocab_size=vocab_size,
        context_length=loaded.context_length,
    )


def _allocate(loaded: LoadedModel, runtime: RuntimeConfig, reference: Reference) -> KVStore:
    num_pages = runtime.kv_tokens // runtime.page_size
    device = loaded.model.device
    needed = bytes_needed(reference.shapes, num_pages * runtime.page_size)
    # The system promises more memory than it has and would kill the process later.
    fits = device.type != "cpu" or needed <= psutil.virtual_memory().available
    try:
        if fits:
            return KVStore(
                reference.shapes,
                num_pages=num_pages,
                page_size=runtime.page_size,
                device=device,
            )
    except RuntimeError:  # torch's out of memory, on any device
        pass
    raise ModelLoadError(
        f"runtime.kv_tokens: {runtime.kv_tokens} tokens need {needed / 2**20:.0f} MiB of KV cache,"
        f" which {loaded.device} does not have free"
    )


def _checked_reference(loaded: LoadedModel, vocab_size: int) -> Reference:
    """Make the model ready to be a runner's, and see whether it still says what it said before."""
    model = loaded.model
    name = type(model).__name__
    tolerance = _QUANTIZED_TOLERANCE.get(loaded.quantization, _TOLERANCE[loaded.dtype])
    shared = SharedInputs()
    try:
        with quiet_transformers():
            with shared.watching(model):
                reference = take_reference(model, vocab_size)
            if not reference.shapes:
                raise UnsupportedAttentionError("it caches no keys and values")
            use_ragged_attention(model)
            found = _kept_deviation(
                partial(merge, model, shared.take()), model, reference, tolerance
            )
            if found <= tolerance:
                found = _kept_deviation(partial(pack, model), model, reference, tolerance)
            if model.device.type == "cuda":
                torch.cuda.empty_cache()  # of the layers that were; other processes may want it
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(f"{loaded.device} is out of memory: {error}") from error
    except Exception as error:  # whatever a model does with pages it does not expect
        raise ModelLoadError(
            f"{name}: architecture not supported by ragged attention: {error}"
        ) from error
    if not found <= tolerance:  # NaN too
        raise ModelLoadError(
            f"{name}: architecture not supported by ragged attention: logits deviate by"
            f" {found:.3g} from the model's own, {tolerance} is allowed"
        )
    return reference


def _kept_deviation(
    change: Callable[[], Callable[[], None]],
    model: PreTrainedModel,
    reference: Reference,
    tolerance: float,
) -> float:
    """The deviation after a change of the model's layers, which returns how to undo it; that
    without it, if it was not right: a model may do more with a layer than have it compute, or with
    what that gives."""
    undo: Callable[[], None] | None = None
    try:
        undo = change()
        found = deviation(model, reference)
        if found <= tolerance:
            return found
    except Exception as error:  # without the change it may do
        _log.debug("linear layers stay as they were: %s", error)
    if undo is not None:
        undo()
    return deviation(model, reference)


def use_ragged_attention(model: PreTrainedModel) -> None:
    """Make the model call `ragged_attention`. Raises `UnsupportedAttentionError` if it cannot."""
    if not model._can_set_attn_implementation():
        raise UnsupportedAttentionError("its attention is not open to other implementations")
    model.set_attn_implementation(ATTENTION_NAME)
