"""The check at load time notices when ragged passes and plain ones part ways."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_loaded
from torch import Tensor

from paceline.config import RuntimeConfig
from paceline.errors import ModelLoadError
from paceline.runtime.kv_store import LayerPages
from paceline.runtime.ragged_step import Group
from paceline.runtime.runner_factory import build_runner

RUNTIME = RuntimeConfig(kv_tokens=64)


def test_tokens_written_to_wrong_slots_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    write = LayerPages.write

    def misplaced(self: LayerPages, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        write(self, slots.flip(0), keys, values)

    monkeypatch.setattr(LayerPages, "write", misplaced)

    with pytest.raises(ModelLoadError, match=r"LlamaForCausalLM: .* logits deviate by"):
        build_runner(tiny_loaded(), RUNTIME)


def test_a_mask_that_shows_the_future_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Group._mask

    def all_visible(self: Group, *arguments: object) -> Tensor:
        return torch.zeros_like(mask(self, *arguments))

    monkeypatch.setattr(Group, "_mask", all_visible)

    with pytest.raises(ModelLoadError, match="logits deviate by"):
        build_runner(tiny_loaded(), RUNTIME)


def test_a_model_that_answers_nan_is_refused() -> None:
    loaded = tiny_loaded()
    with torch.no_grad():
        loaded.model.lm_head.weight[7, 7] = float("nan")

    with pytest.raises(ModelLoadError, match="deviate by nan"):
        build_runner(loaded, RUNTIME)
