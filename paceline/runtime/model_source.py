"""Where a model's files are: a directory, a GGUF file, a Python package that ships one, or a hub id."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ModelLoadError

PACKAGE_PREFIX = "package:"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What `from_pretrained` of transformers takes: a name or directory, and a GGUF file in it."""

    name: str
    gguf_file: str | None
    revision: str | None

    def pretrained_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `from_pretrained`, besides the name."""
        arguments: dict[str, Any] = {}
        if self.gguf_file is not None:
            arguments["gguf_file"] = self.gguf_file
        if self.revision is not None:
            arguments["revision"] = self.revision
        return arguments


def resolve_source(path: str, revision: str | None = None) -> ModelSource:
    """Find a model's files. Raises `ModelLoadError` when a path or package does not exist."""
    if path.startswith(PACKAGE_PREFIX):
        return _in_package(path.removeprefix(PACKAGE_PREFIX))
    place = Path(path).expanduser()
    if place.is_file():
        if place.suffix != ".gguf":
            raise ModelLoadError(f"model path {path}: a file must be GGUF (*.gguf)")
        return ModelSource(str(place.parent), place.name, None)
    if place.is_dir():
        return ModelSource(str(place), None, None)
    looks_like_path = path.startswith(("/", "./", "../", "~")) or path.count("/") > 1
    if looks_like_path or path.endswith(".gguf"):
        raise ModelLoadError(f"model path {path} does not exist")
    return ModelSource(path, None, revision)


def _in_package(package: str) -> ModelSource:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelLoadError(f"model path package:{package}: no such Python package is installed")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ModelLoadError(f"model path package:{package}: expected one GGUF file, found {len(files)}")
    return ModelSource(str(files[0].parent), files[0].name, None)
