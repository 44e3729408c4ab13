"""Random causal LMs of many architectures, small enough to run thousands of passes in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from paceline.runtime.loader import LoadedModel, context_length, eos_token_ids
from paceline.runtime.model_source import ModelSource

DEFAULT_VOCAB_SIZE = 320
DEFAULT_CONTEXT = 512

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
_WINDOW = 8

# Settings per architecture, on top of or instead of the common ones.
_SPECIAL: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"head_dim": 16, "sliding_window": _WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": _WINDOW,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt_neox": {"num_key_value_heads": None},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": _WINDOW},
    "mixtral": {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "phi": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "gpt2": {"num_key_value_heads": None, "intermediate_size": None},
    "opt": {
        "num_key_value_heads": None,
        "intermediate_size": None,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
    },
    "gpt_oss": {
        "head_dim": 16,
        "sliding_window": _WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2_moe": {
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
        "num_experts": 4,
    },
    "deepseek_v3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 3,
    },
    "falcon": {},
    "bert": {"is_decoder": False},
}

ARCHITECTURES = (
    "llama",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "qwen3",
    "mistral",
    "mixtral",
    "phi",
    "gpt2",
    "opt",
)
"""Those that the project promises."""

FURTHER_ARCHITECTURES = ("gpt_oss", "qwen2_moe")
"""Attention sinks; shared experts."""

UNSUPPORTED_ARCHITECTURES = ("deepseek_v3", "falcon", "bert")
"""Latent attention; an attention of its own; attention that is not causal."""


def tiny_model(
    arch: str = "llama",
    seed: int = 0,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    **overrides: Any,
) -> PreTrainedModel:
    """A random float32 model in evaluation mode; `overrides` are fields of its configuration."""
    settings = {
        **_COMMON,
        "vocab_size": vocab_size,
        "max_position_embeddings": DEFAULT_CONTEXT,
        # Far above the usual 0.02, so that argmaxes depend on the prefix.
        "initializer_range": 0.2,
        "init_std": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        **_SPECIAL[arch],
        **overrides,
    }
    config = AutoConfig.for_model(arch, **{k: v for k, v in settings.items() if v is not None})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def save_tiny_model(
    path: Path,
    arch: str = "llama",
    seed: int = 0,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    *,
    tokenizer: Any = None,
    eos_token_id: int | list[int] = 2,
    max_position_embeddings: int = DEFAULT_CONTEXT,
    **overrides: Any,
) -> Path:
    """Write a tiny model, and a tokenizer if given, to a directory that `load_model` takes."""
    model = tiny_model(
        arch,
        seed,
        vocab_size,
        eos_token_id=eos_token_id,
        max_position_embeddings=max_position_embeddings,
        **overrides,
    )
    model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


def tiny_loaded(
    arch: str = "llama",
    seed: int = 0,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    **overrides: Any,
) -> LoadedModel:
    """A tiny model as `load_model` would return it, without files."""
    model = tiny_model(arch, seed, vocab_size, **overrides)
    source = ModelSource(f"tiny-{arch}", None, None)
    return LoadedModel(
        model=model,
        source=source,
        dtype="float32",
        device="cpu",
        quantization="none",
        vocab_width=vocab_size,
        context_length=context_length(model.config, source),
        eos_token_ids=eos_token_ids(model),
    )
