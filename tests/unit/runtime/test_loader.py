"""Loading: what the result says of the model, and one clear error for each impossible wish."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ragged_harness import plain_logits
from support.tiny_models import UNSUPPORTED_ARCHITECTURES, save_tiny_model, tiny_loaded, tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from paceline.config import ModelConfig, RuntimeConfig
from paceline.errors import ModelLoadError
from paceline.runtime import loader, quantization
from paceline.runtime.loader import context_length, load_model
from paceline.runtime.model_source import ModelSource
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner, create_runner

RUNTIME = RuntimeConfig(kv_tokens=512)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("llama"), eos_token_id=[5, 2])


def _edited(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of a model directory with other fields in its config.json."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


def _config_only(target: Path, model_type: str, **fields: Any) -> Path:
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"model_type": model_type, **fields}))
    return target


def test_a_directory_loads_and_says_what_it_is(model_dir: Path) -> None:
    """B07, the loader's part: all end ids of the generation config."""
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu", dtype="float32"))

    assert (loaded.dtype, loaded.device, loaded.quantization) == ("float32", "cpu", "none")
    assert (loaded.vocab_width, loaded.context_length) == (320, 512)
    assert loaded.eos_token_ids == (2, 5)
    assert loaded.source == ModelSource(str(model_dir), None, None)
    assert not loaded.model.training
    ids = [1, 2, 3]
    expected = plain_logits(tiny_model(), ids)
    torch.testing.assert_close(plain_logits(loaded.model, ids), expected)


def test_the_generation_config_decides_the_end_ids_and_the_config_is_the_fallback(
    model_dir: Path, tmp_path: Path
) -> None:
    """B07"""
    changed = _edited(model_dir, tmp_path / "changed", eos_token_id=9)
    assert load_model(ModelConfig(path=str(changed))).eos_token_ids == (2, 5)

    (changed / "generation_config.json").unlink()
    assert load_model(ModelConfig(path=str(changed))).eos_token_ids == (9,)


def test_end_ids_that_the_model_cannot_produce_are_left_out(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B07: masked before `min_tokens`, -1 would ban the last id and 320 fail the pass."""
    changed = _edited(model_dir, tmp_path / "changed", eos_token_id=[-1, 9, 320])
    (changed / "generation_config.json").unlink()
    assert load_model(ModelConfig(path=str(changed), device="cpu")).eos_token_ids == (9,)
    assert "-1" in caplog.text


def test_auto_is_bfloat16_on_the_cpu(model_dir: Path) -> None:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu"))

    assert loaded.dtype == "bfloat16"
    assert all(p.dtype == torch.bfloat16 for p in loaded.model.parameters())


def test_auto_device_is_cuda_only_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loader.resolve_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loader.resolve_device("auto") == torch.device("cuda:0")
    assert loader.resolve_dtype("auto", torch.device("cuda:0")) == "auto"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_serves_on_the_cpu(model_dir: Path, dtype: str) -> None:
    config = ModelConfig(path=str(model_dir), device="cpu", dtype=dtype)

    runner, loaded = create_runner(config, RUNTIME, vocab_size=300)
    logits = runner.forward([Chunk(runner.pool.open_table(8), [1, 2, 3], 3)])

    assert loaded.dtype == dtype == str(logits.dtype).removeprefix("torch.")
    assert logits.shape == (3, 300)
    assert torch.isfinite(logits).all()


def test_threads_are_set_when_asked_for(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)

    load_model(ModelConfig(path=str(model_dir), threads=3))
    load_model(ModelConfig(path=str(model_dir)))

    assert asked == [3]


def test_cuda_that_is_not_there_is_an_error_of_the_device_setting(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelLoadError, match=r"^model\.device: cuda was asked for"):
        load_model(ModelConfig(path=str(model_dir), device="cuda"))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelLoadError, match=r"^model\.device: cuda:2 .* only 2 CUDA devices"):
        load_model(ModelConfig(path=str(model_dir), device="cuda:2"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/place", "does not exist"),
        ("./nothing.gguf", "does not exist"),
        ("package:no_such_package_here", "no such Python package"),
        ("package:json", "expected a checkpoint or one GGUF file, found 0"),
    ],
)
def test_a_place_without_a_model_is_an_error_of_the_path_setting(path: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"^model\.path: .*{message}"):
        load_model(ModelConfig(path=path))


def test_a_file_that_is_not_gguf_is_refused(model_dir: Path) -> None:
    with pytest.raises(ModelLoadError, match="a file must be GGUF"):
        load_model(ModelConfig(path=str(model_dir / "config.json")))


def test_a_hub_id_out_of_reach_is_one_quick_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    def fail(*_args: object, **_kwargs: object) -> None:
        raise ConnectionError("Name or service not known\nand more")

    monkeypatch.setattr(HfApi, "model_info", fail)

    with pytest.raises(ModelLoadError, match=r"nobody/nothing .* Name or service not known$"):
        load_model(ModelConfig(path="nobody/nothing"))


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        load_model(ModelConfig(path=str(tmp_path)))


def test_an_unknown_architecture_is_an_error(tmp_path: Path) -> None:
    place = _config_only(tmp_path / "m", "made_up_model")

    with pytest.raises(ModelLoadError, match="made_up_model"):
        load_model(ModelConfig(path=str(place)))


def test_an_encoder_decoder_is_an_error(tmp_path: Path) -> None:
    place = _config_only(tmp_path / "m", "t5", is_encoder_decoder=True)

    with pytest.raises(ModelLoadError, match="t5 is an encoder-decoder"):
        load_model(ModelConfig(path=str(place)))


def test_a_model_that_is_no_language_model_is_an_error(tmp_path: Path) -> None:
    place = _config_only(tmp_path / "m", "vit")

    with pytest.raises(ModelLoadError, match="ViTConfig"):
        load_model(ModelConfig(path=str(place)))


def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "mamba", vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises(ModelLoadError, match=r"layers of type linear_attention .* rolled back"):
        load_model(ModelConfig(path=str(tmp_path)))


def test_a_hybrid_with_linear_attention_is_refused_before_its_weights_load(
    tmp_path: Path,
) -> None:
    types = ["linear_attention", "full_attention"]
    place = _config_only(tmp_path / "m", "qwen3_next", layer_types=types, num_hidden_layers=2)

    with pytest.raises(ModelLoadError, match="layers of type linear_attention"):
        load_model(ModelConfig(path=str(place)))


def test_missing_weights_are_an_error(model_dir: Path, tmp_path: Path) -> None:
    place = _edited(model_dir, tmp_path / "m")
    (place / "model.safetensors").unlink()

    with pytest.raises(ModelLoadError, match=str(place)):
        load_model(ModelConfig(path=str(place)))


def test_weights_that_do_not_fit_the_config_are_an_error(model_dir: Path, tmp_path: Path) -> None:
    place = _edited(model_dir, tmp_path / "m", hidden_size=64)

    with pytest.raises(ModelLoadError, match=str(place)):
        load_model(ModelConfig(path=str(place)))


def test_weights_that_miss_a_layer_are_an_error(model_dir: Path, tmp_path: Path) -> None:
    """Random numbers in place of a layer would load without a word otherwise."""
    place = _edited(model_dir, tmp_path / "m", num_hidden_layers=5)

    with pytest.raises(ModelLoadError, match=r"lack 18 weights, .*layers\.3"):
        load_model(ModelConfig(path=str(place)))


def test_quantization_without_bitsandbytes_is_an_error(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization.importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(ModelLoadError, match=r"^model\.quantization: nf4 needs"):
        load_model(ModelConfig(path=str(model_dir), quantization="nf4"))


def test_a_checkpoint_that_is_quantized_already_is_not_quantized_again(
    model_dir: Path, tmp_path: Path
) -> None:
    place = _edited(model_dir, tmp_path / "m", quantization_config={"quant_method": "gptq"})

    with pytest.raises(ModelLoadError, match=r"^model\.quantization: .* quantized already"):
        load_model(ModelConfig(path=str(place), quantization="int8"))


@pytest.mark.parametrize("quantization_name", ["int8", "nf4"])
@pytest.mark.parametrize("arch", ["llama", "gpt_neox"])
def test_quantized_models_run_and_stay_near_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization_name: str, arch: str
) -> None:
    """I01: no NaN, alone or among others, and near-equal rows. I03: one device, nothing moved."""
    save_tiny_model(tmp_path, arch, hidden_size=64, intermediate_size=128)
    maps: list[object] = []
    load = AutoModelForCausalLM.from_pretrained

    def spy(*args: Any, **kwargs: Any) -> Any:
        maps.append(kwargs["device_map"])
        return load(*args, **kwargs)

    def fail(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a quantized model was moved")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", spy)
    monkeypatch.setattr(PreTrainedModel, "to", fail)
    config = ModelConfig(path=str(tmp_path), device="cpu", quantization=quantization_name)

    runner, loaded = create_runner(config, RUNTIME)
    ids = [[7, 8, 9, 10], [11, 12], [13], [14] * 9]
    together = runner.forward([Chunk(runner.pool.open_table(16), i, 1) for i in ids])
    alone = [runner.forward([Chunk(runner.pool.open_table(16), i, 1)])[0] for i in ids]

    assert maps == [{"": torch.device("cpu")}]
    assert (loaded.quantization, loaded.dtype) == (quantization_name, "bfloat16")
    kinds = {type(m).__name__ for m in loaded.model.modules()}
    assert {"int8": "Linear8bitLt", "nf4": "Linear4bit"}[quantization_name] in kinds
    assert torch.isfinite(together).all()
    gap = (together - torch.stack(alone)).float().norm() / torch.stack(alone).float().norm()
    assert gap < 0.1
    plain = tiny_model(arch, hidden_size=64, intermediate_size=128)
    expected = torch.stack([plain_logits(plain, i)[-1] for i in ids])
    assert (together.float() - expected).norm() / expected.norm() < 0.6


@pytest.mark.parametrize("arch", UNSUPPORTED_ARCHITECTURES)
def test_an_attention_that_the_ragged_path_cannot_copy_is_found_out(arch: str) -> None:
    with pytest.raises(ModelLoadError, match="not supported by ragged attention"):
        build_runner(tiny_loaded(arch), RUNTIME)


def test_a_tokenizer_larger_than_the_head_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="400 ids, the model tiny-llama only 320"):
        build_runner(tiny_loaded(), RUNTIME, vocab_size=400)


def test_a_pool_of_less_than_a_page_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"^runtime\.kv_tokens: 16 is less than one page"):
        build_runner(tiny_loaded(), RuntimeConfig(kv_tokens=16, page_size=32))


def test_a_pool_that_memory_cannot_hold_is_refused_with_the_size() -> None:
    tokens = 1_000_000_000  # as many as the configuration allows
    with pytest.raises(ModelLoadError, match=r"^runtime\.kv_tokens: \d+ tokens need \d+ MiB"):
        build_runner(tiny_loaded(), RuntimeConfig(kv_tokens=tokens))


def test_a_longrope_model_is_kept_below_the_length_that_switches_its_frequencies() -> None:
    """Past it one long session would change the positions of all others in the pass."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
        "factor": 8.0,
    }
    model = tiny_model("llama", rope_parameters=rope)

    assert context_length(model.config, ModelSource("m", None, None)) == 64
    assert context_length(tiny_model().config, ModelSource("m", None, None)) == 512
