"""Attention over pages against the formula, and what it refuses to compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.runtime.kv_store import KVStore, LayerShape
from paceline.runtime.page_pool import PagePool
from paceline.runtime.ragged_attention import (
    PagedKeys,
    UnsupportedAttentionError,
    ragged_attention,
)
from paceline.runtime.ragged_step import RaggedStep, Span

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 8, 5
SHAPES = [(5, 1), (0, 7), (11, 3)]  # (cached, new) of each session


class Case:
    """Random sessions in pages, and the same in plain tensors."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        pool = PagePool(16, 4)
        shape = LayerShape(KV_HEADS, DIM, VALUE_DIM, dtype)
        store = KVStore({0: shape}, num_pages=16, page_size=4, device=torch.device("cpu"))
        self.layer = store.layers[0]
        spans = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for cached, new in SHAPES:
            table = pool.open_table(cached + new)
            table.grow(cached + new)
            slots = torch.tensor([table.slot(p) for p in range(cached + new)])
            keys = torch.randn(1, KV_HEADS, cached + new, DIM, generator=generator).to(dtype)
            values = torch.randn(1, KV_HEADS, cached + new, VALUE_DIM, generator=generator)
            self.layer.write(slots, keys, values.to(dtype))
            self.keys.append(keys[0])
            self.values.append(values[0].to(dtype))
            spans.append(Span(table, cached, cached + new))
        self.step = RaggedStep(spans, 4, torch.device("cpu"))
        self.query = torch.randn(1, HEADS, self.step.num_rows, DIM, generator=generator).to(dtype)

    def run(self, **arguments: Any) -> Tensor:
        config = SimpleNamespace(sliding_window=None, max_position_embeddings=64)
        module = nn.Module()
        module.config, module.layer_idx = config, 0
        keys = PagedKeys(self.layer.keys, self.step)
        arguments.setdefault("attention_mask", None)
        output, weights = ragged_attention(module, self.query, keys, self.layer.values, **arguments)
        assert weights is None
        return output

    def formula(
        self, scale: float, window: int | None, softcap: float | None, sinks: Tensor | None
    ) -> Tensor:
        """Row by row and head by head."""
        rows: list[Tensor] = []
        row = 0
        for index in self.step.order:
            cached, new = SHAPES[index]
            for position in range(cached, cached + new):
                oldest = 0 if window is None else max(0, position - window + 1)
                heads = []
                for head in range(HEADS):
                    group = head // (HEADS // KV_HEADS)
                    keys = self.keys[index][group, oldest : position + 1]
                    scores = keys @ self.query[0, head, row] * scale
                    if softcap is not None:
                        scores = softcap * torch.tanh(scores / softcap)
                    weights = scores.exp()
                    total = weights.sum() + (0 if sinks is None else sinks[head].exp())
                    values = self.values[index][group, oldest : position + 1]
                    heads.append((weights / total) @ values)
                rows.append(torch.stack(heads))
                row += 1
        return torch.stack(rows)[None]


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_results_equal_the_formula(
    window: int | None, softcap: float | None, with_sinks: bool
) -> None:
    case = Case()
    sinks = torch.linspace(-1, 2, HEADS) if with_sinks else None

    got = case.run(scaling=0.7, sliding_window=window, softcap=softcap, s_aux=sinks)

    torch.testing.assert_close(got, case.formula(0.7, window, softcap, sinks), atol=1e-5, rtol=1e-5)


def test_scaling_defaults_to_the_root_of_the_width() -> None:
    case = Case()

    torch.testing.assert_close(
        case.run(), case.formula(DIM**-0.5, None, None, None), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position_bias": torch.zeros(1)}, "'position_bias'"),
        ({"attention_mask": torch.zeros(1)}, "mask of its own"),
        ({"indices": 3}, "'indices'"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "not causal"),
    ],
)
def test_what_would_change_the_result_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedAttentionError, match=message):
        Case().run(**arguments)


def test_what_does_not_change_the_result_passes() -> None:
    case = Case()

    got = case.run(position_ids=torch.zeros(1), use_cache=True, position_bias=None, is_causal=True)

    torch.testing.assert_close(got, case.run())


def test_keys_from_elsewhere_are_refused() -> None:
    case = Case()

    with pytest.raises(UnsupportedAttentionError, match="cross attention"):
        ragged_attention(nn.Module(), case.query, case.query, case.layer.values, None)


def test_a_window_that_only_a_mask_would_know_is_refused() -> None:
    case = Case()
    module = nn.Module()
    module.layer_idx = 1
    module.config = SimpleNamespace(
        sliding_window=8,
        max_position_embeddings=64,
        layer_types=["full_attention", "sliding_attention"],
    )
    keys = PagedKeys(case.layer.keys, case.step)

    with pytest.raises(UnsupportedAttentionError, match="window of 8 tokens"):
        ragged_attention(module, case.query, keys, case.layer.values, None)

    module.layer_idx = 0
    ragged_attention(module, case.query, keys, case.layer.values, None)
    module.layer_idx = 1
    module.config.max_position_embeddings = 8
    ragged_attention(module, case.query, keys, case.layer.values, None)
