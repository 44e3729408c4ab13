"""Writes a tiny Llama as a quantized GGUF file, laid out as llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel

_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTER_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def save_tiny_gguf(path: Path, model: PreTrainedModel) -> Path:
    """Write `model`, a Llama, with matrices in blocks of Q8_0. Widths must be multiples of 32."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(config.eos_token_id)
    for name, parameter in model.named_parameters():
        weight = parameter.detach().numpy()
        if "q_proj" in name:
            weight = _interleave_halves(weight, config.num_attention_heads)
        if "k_proj" in name:
            weight = _interleave_halves(weight, config.num_key_value_heads)
        if weight.ndim == 1:
            writer.add_tensor(_gguf_name(name), weight)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.weight"


def _interleave_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF rotates neighbouring rows where Hugging Face rotates the two halves of a head."""
    rows = weight.shape[0] // heads // 2
    halves = weight.reshape(heads, 2, rows, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
