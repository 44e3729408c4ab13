"""Where a model's files are: a directory, a GGUF file, a Python package with them, or a hub id."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ModelLoadError

PACKAGE_PREFIX = "package:"
HUB_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What `from_pretrained` of transformers takes: a name or directory, and a GGUF file in it."""

    name: str
    gguf_file: str | None
    revision: str | None

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.name if self.gguf_file is None else str(Path(self.name) / self.gguf_file)

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine already, by construction."""
        return Path(self.name).is_dir()

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
            raise ModelLoadError(f"model.path: {path}: a file must be GGUF (*.gguf)")
        return ModelSource(str(place.parent), place.name, None)
    if place.is_dir():
        return ModelSource(str(place), None, None)
    looks_like_path = path.startswith(("/", "./", "../", "~")) or path.count("/") > 1
    if looks_like_path or path.endswith(".gguf"):
        raise ModelLoadError(f"model.path: {path} does not exist")
    return ModelSource(path, None, revision)


def check_reachable(source: ModelSource) -> None:
    """Raise `ModelLoadError` for a hub id that is neither cached here nor found on the hub.

    Asks once with a short timeout, where `from_pretrained` would go on trying for half a minute.
    """
    if source.is_local:
        return
    from huggingface_hub import HfApi, try_to_load_from_cache  # noqa: PLC0415

    try:
        cached = try_to_load_from_cache(source.name, "config.json", revision=source.revision)
        if not isinstance(cached, str):
            HfApi().model_info(source.name, revision=source.revision, timeout=HUB_TIMEOUT_S)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(
            f"model.path: {source.name} is no directory here, not in the local cache, and the hub"
            f" does not give it: {reason}"
        ) from error


def find_beside(source: ModelSource, file_name: str) -> Path | None:
    """The directory where a checkpoint's files lie, if there is such a file among them.

    Of a hub id it is the local cache, to which the file is fetched if the hub has it. Raises
    `ModelLoadError` if the hub cannot be asked and nothing is cached.
    """
    if source.gguf_file is not None:
        return None
    if source.is_local:
        place = Path(source.name) / file_name
        return place.parent if place.is_file() else None
    from transformers.utils import cached_file  # noqa: PLC0415  (slow import)

    check_reachable(source)
    try:
        found = cached_file(
            source.name,
            file_name,
            revision=source.revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:  # a hub that refuses says so once more for the model itself
        return None
    return None if found is None else Path(found).parent


def _in_package(package: str) -> ModelSource:
    place = _directory_of(package)
    if place is None:
        raise ModelLoadError(f"model.path: package:{package}: no such Python package is installed")
    if (place / "config.json").is_file():
        return ModelSource(str(place), None, None)
    files = sorted(place.glob("*.gguf"))
    if len(files) != 1:
        raise ModelLoadError(
            f"model.path: package:{package}: expected a checkpoint or one GGUF file, found"
            f" {len(files)} GGUF files"
        )
    return ModelSource(str(place), files[0].name, None)


def _directory_of(package: str) -> Path | None:
    """A package's folder; one with nothing but a checkpoint in it is a package to Python too."""
    if not all(part.isidentifier() for part in package.split(".")):
        return None
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of a package that it would be in
        return None
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places else None
