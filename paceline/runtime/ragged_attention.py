"""Attention over pages, under transformers' `AttentionInterface`: stateless, one call a group.

The cache's `update` hands the pages of its layer on as `key` and `value`, together with the step;
models pass both through untouched. The name has no mask function, so transformers builds no mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from paceline.runtime.ragged_step import Group, Layout, RaggedStep

ATTENTION_NAME = "paceline_ragged"

# Arguments that models pass along and that do not change what attention computes.
_NEUTRAL = frozenset(
    {
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


class UnsupportedAttentionError(Exception):
    """The model wants something of attention that the ragged path does not compute."""


@dataclass(frozen=True, slots=True)
class PagedKeys:
    """One layer's keys, `[num_pages, page_size, kv_heads, key_dim]`, and who reads what of them."""

    pages: Tensor
    step: RaggedStep

    def __getattr__(self, name: str) -> NoReturn:
        raise UnsupportedAttentionError(
            f"the model reads {name!r} of the cached keys on their way to attention, as"
            " multi-head latent attention does"
        )


def ragged_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, num_rows, key_dim]
    key: PagedKeys,
    value: Tensor,  # [num_pages, page_size, kv_heads, value_dim]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend each session's new tokens to its own pages. Returns `[1, num_rows, heads, value_dim]`.

    `softcap` bounds the scores to `softcap * tanh(scores / softcap)`; `s_aux` `[heads]` are
    attention sinks, logits that take part in the softmax and contribute nothing. Raises
    `UnsupportedAttentionError` for anything else that would change the result.
    """
    if not isinstance(key, PagedKeys):
        raise UnsupportedAttentionError("keys do not come from the cache (cross attention?)")
    _refuse_unknown(query, attention_mask, dropout, is_causal, kwargs)
    if sliding_window is None:
        _refuse_hidden_window(module)
    heads, kv_heads = query.shape[1], value.shape[2]
    heads_per_kv_head = heads // kv_heads
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = query[0].transpose(0, 1)  # [num_rows, heads, key_dim]
    step = key.step
    outputs = []
    for group in step.groups:
        layout = group.layout(sliding_window, heads_per_kv_head, query.dtype)
        # Queries of the heads that share a KV head are folded into one long query: no K or V is
        # repeated, which is far faster than `enable_gqa` for short queries.
        folded = _fold(rows, group, kv_heads)
        keys = _gather(key.pages, group, layout)
        values = _gather(value, group, layout)
        if softcap is None and s_aux is None:
            attended = scaled_dot_product_attention(
                folded, keys, values, attn_mask=layout.mask, scale=scale
            )
        else:
            sinks = None if s_aux is None else s_aux.view(1, kv_heads, -1, 1)
            attended = _attend(
                folded, keys, values, mask=layout.mask, scale=scale, softcap=softcap, sinks=sinks
            )
        outputs.append(_unfold(attended, group, heads))
    result = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return result[None], None


def _gather(pages: Tensor, group: Group, layout: Layout) -> Tensor:
    """Copy what a group reads: `[num_sessions, kv_heads, num_slots, dim]`."""
    slots = pages.index_select(0, layout.pages).view(group.num_sessions, -1, *pages.shape[2:])
    return slots[:, : layout.num_slots].transpose(1, 2)


def _fold(rows: Tensor, group: Group, kv_heads: int) -> Tensor:
    """Pick a group's queries: `[num_sessions, kv_heads, heads_per_kv_head * num_queries, dim]`."""
    if group.num_rows != len(rows):
        rows = rows[group.first_row : group.first_row + group.num_rows]
    if group.padded_rows is not None:
        rows = rows.index_select(0, group.padded_rows)
    sessions, queries, dim = group.num_sessions, group.num_queries, rows.shape[-1]
    if queries == 1:
        return rows.reshape(sessions, kv_heads, -1, dim)
    by_head = rows.reshape(sessions, queries, kv_heads, -1, dim).permute(0, 2, 3, 1, 4)
    return by_head.reshape(sessions, kv_heads, -1, dim)


def _unfold(attended: Tensor, group: Group, heads: int) -> Tensor:
    """The inverse of `_fold` for results: `[num_rows, heads, value_dim]`."""
    sessions, queries, dim = group.num_sessions, group.num_queries, attended.shape[-1]
    if queries == 1:
        return attended.reshape(sessions, heads, dim)
    by_query = attended.reshape(sessions, heads, queries, dim).transpose(1, 2)
    rows = by_query.reshape(sessions * queries, heads, dim)
    if group.kept_rows is not None:
        rows = rows.index_select(0, group.kept_rows)
    return rows


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,  # [1, kv_heads, heads_per_kv_head, 1]
) -> Tensor:
    """Attention written out, for what the fused call lacks."""
    scores = torch.matmul(queries, keys.transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    scores = scores.float()
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        num_queries = scores.shape[2] // sinks.shape[2]
        sink = sinks.float().repeat_interleave(num_queries, dim=2).expand(len(scores), -1, -1, -1)
        weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    return torch.matmul(weights.to(values.dtype), values)


def _refuse_unknown(
    query: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    is_causal: bool | None,
    kwargs: dict[str, Any],
) -> None:
    """Raise for every argument that would change the result and is not computed here."""
    if attention_mask is not None:
        raise UnsupportedAttentionError("the model builds an attention mask of its own")
    if dropout:
        raise UnsupportedAttentionError("dropout is on")
    if is_causal is False and query.shape[2] > 1:
        raise UnsupportedAttentionError("attention is not causal")
    for name, argument in kwargs.items():
        if argument is not None and argument is not False and name not in _NEUTRAL:
            raise UnsupportedAttentionError(f"attention takes {name!r}")


def _refuse_hidden_window(module: Any) -> None:
    """Raise if the layer's window is known only to the mask that transformers would have built."""
    config = module.config
    window = getattr(config, "sliding_window", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and layer_types[module.layer_idx] != "sliding_attention":
        return
    if window < config.max_position_embeddings:
        raise UnsupportedAttentionError(
            f"a sliding window of {window} tokens is configured and not passed to attention"
        )


AttentionInterface.register(ATTENTION_NAME, ragged_attention)
