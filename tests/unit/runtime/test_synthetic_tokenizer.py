"""The tokenizer of synthetic models: a character an id, any size, no file."""

from __future__ import annotations

import pytest

from paceline.config import RuntimeConfig, SyntheticModelConfig
from paceline.errors import ConfigError
from paceline.runtime.emulated import EmulatedRunner
from paceline.runtime.synthetic import SyntheticRunner
from paceline.runtime.synthetic_tokenizer import vocab_size_of
from paceline.runtime.tokenizer import Tokenizer, first_difference
from paceline.runtime.worker_model import load_worker_model


@pytest.mark.parametrize("vocab_size", [64, 128, 1000])
def test_ids_are_characters_and_text_comes_back(vocab_size: int) -> None:
    tokenizer = Tokenizer.load(f"synthetic:{vocab_size}:7")
    assert tokenizer.vocab_size == vocab_size
    assert tokenizer.special_token_ids == {
        "unk": vocab_size - 3,
        "bos": vocab_size - 2,
        "eos": vocab_size - 1,
    }
    ids = list(range(vocab_size - 3))
    text = tokenizer.decode(ids)
    assert len(text) == len(set(text)) == len(ids)
    assert tokenizer.encode(text) == ids
    assert tokenizer.encode(" A  9 ") == [0, 33, 0, 0, 25, 0]
    assert tokenizer.decode([33, 0, 0, 25]) == "A  9"


def test_a_character_without_an_id_is_unknown() -> None:
    tokenizer = Tokenizer.load("synthetic:64:0")
    assert tokenizer.encode("Az\n") == [33, 61, 61]


def test_a_conversation_has_a_template() -> None:
    tokenizer = Tokenizer.load("synthetic:128:0")
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert "".join(tokenizer.token_text(i) for i in ids) == "user: hi<unk>assistant: "


def test_only_the_size_makes_the_vocabulary() -> None:
    one, other = Tokenizer.load("synthetic:128:0"), Tokenizer.load("synthetic:128:5")
    assert one.fingerprint == other.fingerprint
    wider = Tokenizer.load("synthetic:129:0")
    assert first_difference(one.vocabulary(), wider.vocabulary()) is not None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("synthetic:128:3", 128),
        ("synthetic:128", 128),
        ("synthetic:", None),
        ("synthetic:x:1", None),
        ("synthetic:128:x", None),
        ("128", None),
        ("gpt2", None),
    ],
)
def test_names_of_synthetic_models(name: str, size: int | None) -> None:
    assert vocab_size_of(name) == size


def test_a_synthetic_model_is_loaded_from_its_section_alone() -> None:
    section = SyntheticModelConfig(kind="synthetic", vocab_size=100, seed=4, context_length=50)
    loaded = load_worker_model("verifier", section, RuntimeConfig(kv_tokens=64, page_size=4))
    assert isinstance(loaded.runner, SyntheticRunner)
    assert (loaded.runner.pool.num_pages, loaded.runner.pool.page_size) == (16, 4)
    info = loaded.info
    assert (info.kind, info.model, info.vocab_size) == ("verifier", "synthetic:100:4", 100)
    assert (info.context_length, info.eos_token_ids) == (50, (99,))
    assert info.tokenizer_fingerprint == loaded.tokenizer.fingerprint
    assert Tokenizer.load(info.model).fingerprint == info.tokenizer_fingerprint


def test_a_cost_makes_the_device_an_emulated_one() -> None:
    section = SyntheticModelConfig(kind="synthetic", per_token_ms=0.5)
    assert isinstance(load_worker_model("model", section, RuntimeConfig()).runner, EmulatedRunner)


def test_a_pool_without_a_page_is_refused() -> None:
    section = SyntheticModelConfig(kind="synthetic")
    with pytest.raises(ConfigError, match=r"runtime.kv_tokens: 16 is less than one page"):
        load_worker_model("model", section, RuntimeConfig(kv_tokens=16, page_size=32))


def test_a_rate_that_no_pair_has_is_refused_by_its_key() -> None:
    section = SyntheticModelConfig(kind="synthetic", acceptance=0.01)
    with pytest.raises(ConfigError, match=r"model.acceptance: 0.01 is neither"):
        load_worker_model("model", section, RuntimeConfig())
