"""Loading what drafts: whole models, and checkpoints of a reduced vocabulary with their file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.byte_tokenizer import build_byte_tokenizer
from support.reduced_models import save_reduced_model
from support.tiny_models import save_tiny_model

from paceline.config import ModelConfig, RuntimeConfig
from paceline.errors import ConfigError, ModelLoadError
from paceline.runtime.draft_model import DraftModel, load_draft_model
from paceline.runtime.draft_vocabulary import FILE_NAME
from paceline.runtime.model_source import ModelSource, find_beside
from paceline.runtime.quantization import bitsandbytes_config
from paceline.runtime.runner import Chunk
from paceline.runtime.tokenizer import Tokenizer
from paceline.runtime.worker_model import load_worker_model

MakeDir = Callable[..., Path]

RUNTIME = RuntimeConfig(kv_tokens=256)
SOME_IDS = range(1, 258, 2)


def config(path: Path, **fields: Any) -> ModelConfig:
    return ModelConfig(path=str(path), **{"dtype": "float32", "device": "cpu", **fields})


@pytest.fixture
def reduced(tiny_dir: MakeDir, tmp_path: Path) -> Path:
    return save_reduced_model(tmp_path / "reduced", tiny_dir(), SOME_IDS)


def logits_after(loaded: DraftModel, token_ids: list[int]) -> torch.Tensor:
    table = loaded.runner.pool.open_table(len(token_ids))
    logits = loaded.runner.forward([Chunk(table, token_ids, 1)])[0]
    table.free()
    return logits


def test_a_reduced_model_says_what_the_whole_one_says_of_its_ids(
    reduced: Path, tiny_dir: MakeDir
) -> None:
    ours = load_draft_model("model", config(reduced), RUNTIME)
    whole = load_draft_model("model", config(tiny_dir()), RUNTIME)
    assert ours.columns is not None
    assert ours.tokenizer is whole.columns is None
    assert ours.columns.token_ids.tolist() == list(SOME_IDS)
    text = [1, 3, 5, 255]
    assert torch.allclose(logits_after(ours, text), logits_after(whole, text)[SOME_IDS], atol=1e-5)
    assert not torch.allclose(logits_after(ours, [1, 3]), logits_after(ours, [1, 5]), atol=1e-2)
    assert torch.equal(logits_after(ours, [1, 4]), logits_after(ours, [1, 3])), "4 is read as 3"


def test_it_describes_itself_by_the_target_that_it_was_made_for(
    reduced: Path, tiny_dir: MakeDir
) -> None:
    info = load_draft_model("model", config(reduced), RUNTIME).info
    tokenizer = Tokenizer.load(str(tiny_dir()))
    assert info.tokenizer_fingerprint == tokenizer.fingerprint
    assert info.vocab_size == tokenizer.vocab_size == 258
    assert info.model == f"{reduced}, made for {tiny_dir()}"


def test_it_can_be_cut_to_some_of_its_layers(reduced: Path) -> None:
    loaded = load_draft_model("model", config(reduced, layers=[0, 2]), RUNTIME)
    assert loaded.info.model.startswith(f"{reduced}, layers 0, 2, made for")
    assert len(logits_after(loaded, [1, 2])) == len(SOME_IDS)
    with pytest.raises(ModelLoadError, match=r"layer 3 .* has only 3 layers"):
        load_draft_model("model", config(reduced, layers=[3]), RUNTIME)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_checkpoint_that_is_stored_quantized_needs_no_setting(kind: str, tmp_path: Path) -> None:
    """The settings may name what it is; another kind or dtype is refused."""
    target = save_tiny_model(
        tmp_path / "target",
        tokenizer=build_byte_tokenizer(),
        hidden_size=64,
        intermediate_size=128,
    )
    stored_as = bitsandbytes_config(kind)
    folder = save_reduced_model(tmp_path / kind, target, SOME_IDS, quantization=stored_as)
    stored = json.loads((folder / "config.json").read_text())
    assert "quantization_config" in stored
    named = {"dtype": "bfloat16", "quantization": kind, "layers": [0, 2]}
    for fields in ({"dtype": "auto"}, named):
        loaded = load_draft_model("model", config(folder, **fields), RUNTIME)
        assert (loaded.info.quantization, loaded.info.dtype) == (kind, "bfloat16")
        assert logits_after(loaded, [1, 2]).isfinite().all()
    with pytest.raises(ModelLoadError, match=r"^model\.dtype: float32 .* computes in bfloat16"):
        load_draft_model("model", config(folder), RUNTIME)
    other = "nf4" if kind == "int8" else "int8"
    with pytest.raises(
        ModelLoadError, match=rf"model\.quantization: {other} .* already, as {kind}"
    ):
        load_draft_model("model", config(folder, quantization=other), RUNTIME)


def test_a_verifier_does_not_take_one(reduced: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^model\.path: .* no verifier's"):
        load_worker_model("verifier", config(reduced), RUNTIME)


def test_a_file_of_other_ids_than_the_model_has_is_refused(
    reduced: Path, tiny_dir: MakeDir, tmp_path: Path
) -> None:
    other = save_reduced_model(tmp_path / "other", tiny_dir(), range(100))
    shutil.copy(other / FILE_NAME, reduced / FILE_NAME)
    with pytest.raises(ModelLoadError, match=r"has 129 ids and its .* names 100"):
        load_draft_model("model", config(reduced), RUNTIME)
    (reduced / FILE_NAME).write_text("{}")
    with pytest.raises(ConfigError, match=FILE_NAME):
        load_draft_model("model", config(reduced), RUNTIME)


def test_one_in_the_hubs_cache_is_found(
    reduced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id, without the hub."""
    place = tmp_path / "hub" / "models--me--drafter"
    shutil.copytree(reduced, place / "snapshots" / ("1" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("1" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(
        "transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path / "hub"), raising=False
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = load_draft_model("model", ModelConfig(path="me/drafter", dtype="float32"), RUNTIME)
    assert loaded.columns is not None


def test_a_hub_that_refuses_a_file_is_left_to_say_so_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("gated")

    monkeypatch.setattr("paceline.runtime.model_source.check_reachable", lambda source: None)
    monkeypatch.setattr("transformers.utils.cached_file", refuse)
    assert find_beside(ModelSource("me/drafter", None, None), FILE_NAME) is None
