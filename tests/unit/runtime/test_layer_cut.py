"""Some layers of a model as a model of its own, for every architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_gguf import save_tiny_gguf
from support.tiny_models import (
    ARCHITECTURES,
    FURTHER_ARCHITECTURES,
    save_tiny_model,
    tiny_model,
)
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from paceline.config import ModelConfig, RuntimeConfig
from paceline.errors import ModelLoadError
from paceline.runtime.loader import load_model
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner

NUM_LAYERS = 5
TYPES = ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]


def save(folder: Path, arch: str = "llama", **overrides: Any) -> Path:
    if arch in ("gemma3_text", "gpt_oss"):
        overrides["layer_types"] = TYPES
    return save_tiny_model(folder, arch, num_hidden_layers=NUM_LAYERS, **overrides)


def config(path: Path, layers: Any) -> ModelConfig:
    return ModelConfig(path=str(path), dtype="float32", device="cpu", layers=layers)


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    return next(child for child in model.modules() if isinstance(child, nn.ModuleList))


def skipping(path: Path, kept: tuple[int, ...]) -> PreTrainedModel:
    """REF: the whole model, whose other layers hand on what they are given."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    for index, layer in enumerate(layers_of(model)):
        if index not in kept:
            layer.forward = lambda hidden_states, *args, **kwargs: hidden_states
    return model


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *FURTHER_ARCHITECTURES])
def test_chosen_layers_say_what_the_whole_model_says_without_the_others(
    arch: str, tmp_path: Path
) -> None:
    """Sliding windows included: the text is longer than they are. Through the paged runner."""
    save(tmp_path, arch)
    token_ids = [3 + 7 * i % 90 for i in range(40)]
    for layers, kept in ((2, (0, 1)), ((0, 2, 3), (0, 2, 3)), ((4,), (4,))):
        loaded = load_model(config(tmp_path, layers))
        assert len(layers_of(loaded.model)) == len(kept)
        assert loaded.model.config.num_hidden_layers == len(kept)
        runner = build_runner(loaded, RuntimeConfig(kv_tokens=256))
        table = runner.pool.open_table(64)
        logits = runner.forward([Chunk(table, token_ids, num_logits=len(token_ids))])
        with torch.inference_mode():
            expected = skipping(tmp_path, kept)(torch.tensor([token_ids]), use_cache=False).logits
        torch.testing.assert_close(logits, expected[0], atol=2e-5, rtol=1e-4)


def test_only_the_chosen_layers_weights_are_read(tmp_path: Path) -> None:
    """A checkpoint that lacks the others will do, and no more parameters are held."""
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {
        name: weight
        for name, weight in load_file(file).items()
        if ".layers." not in name or ".layers.0." in name or ".layers.3." in name
    }
    save_file(kept, file, metadata={"format": "pt"})
    loaded = load_model(config(tmp_path, [0, 3]))
    held = sum(parameter.numel() for parameter in loaded.model.parameters())
    assert held == sum(weight.numel() for weight in kept.values())
    with pytest.raises(ModelLoadError, match="lack 9 weights"):
        load_model(config(tmp_path, [0, 1, 3]))


def test_layers_of_a_gguf_file_are_cut_alike(tmp_path: Path) -> None:
    model = tiny_model(num_hidden_layers=NUM_LAYERS, intermediate_size=64, head_dim=16)
    path = save_tiny_gguf(tmp_path / "tiny.gguf", model)
    whole, cut = load_model(config(path, None)), load_model(config(path, [1, 4]))
    for index, origin in enumerate((1, 4)):
        ours = layers_of(cut.model)[index].state_dict()
        theirs = layers_of(whole.model)[origin].state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert len(layers_of(cut.model)) == 2


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        (6, r"model\.layers: 6 layers were asked for and .* has only 5"),
        ([0, 5], r"model\.layers: layer 5 was asked for and .* has only 5 layers, 0 to 4"),
    ],
)
def test_layers_that_the_model_has_not_got_are_refused(
    tmp_path: Path, layers: Any, problem: str
) -> None:
    save(tmp_path)
    with pytest.raises(ModelLoadError, match=problem):
        load_model(config(tmp_path, layers))
