"""Where a model's files are found, and what is said when they are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from paceline.errors import ModelLoadError
from paceline.runtime.model_source import ModelSource, check_reachable, resolve_source


def test_a_directory_is_itself(tmp_path: Path) -> None:
    source = resolve_source(str(tmp_path))
    assert source == ModelSource(str(tmp_path), None, None)
    assert (source.label, source.is_local, source.pretrained_arguments()) == (
        str(tmp_path),
        True,
        {},
    )


def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_source("~/model").name == str(tmp_path / "model")


def test_a_gguf_file_is_a_directory_and_a_name(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.touch()
    source = resolve_source(str(file))
    assert source == ModelSource(str(tmp_path), "tiny.gguf", None)
    assert source.label == str(file)
    assert source.pretrained_arguments() == {"gguf_file": "tiny.gguf"}


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(ModelLoadError, match="a file must be GGUF"):
        resolve_source(str(file))


@pytest.mark.parametrize(
    "path", ["/no/such/place", "./here", "../there", "~/nowhere", "a/b/c", "weights.gguf"]
)
def test_a_path_that_does_not_exist_is_no_hub_id(path: str) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        resolve_source(path)


@pytest.mark.parametrize("name", ["gpt2", "HuggingFaceTB/SmolLM2-135M"])
def test_anything_else_is_a_hub_id_of_a_revision(name: str) -> None:
    source = resolve_source(name, "v2")
    assert source == ModelSource(name, None, "v2")
    assert not source.is_local
    assert source.pretrained_arguments() == {"revision": "v2"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package without files."""
    place = tmp_path / "shipped_model"
    place.mkdir()
    (place / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield place
    sys.modules.pop("shipped_model", None)  # finding what is in it imports it


def test_a_package_ships_one_gguf_file(package: Path) -> None:
    (package / "tiny.gguf").touch()
    source = resolve_source("package:shipped_model")
    assert source == ModelSource(str(package), "tiny.gguf", None)
    assert "shipped_model" not in sys.modules, "finding it does not import it"


def test_a_package_ships_a_checkpoint_and_may_be_in_another(package: Path) -> None:
    inner = package / "inner"
    inner.mkdir()
    (inner / "config.json").touch()
    assert resolve_source("package:shipped_model.inner") == ModelSource(str(inner), None, None)
    with pytest.raises(ModelLoadError, match=r"package:shipped_model\.other: no such Python"):
        resolve_source("package:shipped_model.other")


@pytest.mark.parametrize("num_files", [0, 2])
def test_a_package_without_one_gguf_file_is_refused(package: Path, num_files: int) -> None:
    for index in range(num_files):
        (package / f"{index}.gguf").touch()
    with pytest.raises(ModelLoadError, match=f"one GGUF file, found {num_files}"):
        resolve_source("package:shipped_model")


@pytest.mark.parametrize("name", ["no_such_package", "", "a-b", "a.b"])
def test_a_package_that_is_not_installed_is_named(name: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"package:{name}: no such Python package"):
        resolve_source(f"package:{name}")


def test_local_files_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", None)
    check_reachable(resolve_source(str(tmp_path)))


def test_a_cached_model_needs_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *a, **k: "config.json")
    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    check_reachable(ModelSource("some/model", None, None))


def test_a_hub_that_does_not_answer_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        def model_info(self, name: str, *, revision: str | None, timeout: float) -> None:
            assert (name, revision) == ("some/model", "v1")
            assert timeout <= 10
            raise ConnectionError("no route to host\nwith many\nmore lines")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    with pytest.raises(ModelLoadError) as caught:
        check_reachable(ModelSource("some/model", None, "v1"))
    assert str(caught.value).startswith("model.path: some/model is no directory here")
    assert str(caught.value).endswith("no route to host")
