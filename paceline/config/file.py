"""The one YAML file that names every setting, validated on load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from paceline.config.cluster import ClusterConfig
from paceline.config.models import MODEL_KINDS
from paceline.config.orchestrator import OrchestratorConfig
from paceline.config.section import Section
from paceline.config.telemetry import TelemetryConfig
from paceline.config.transport import GrpcConfig, SecurityConfig
from paceline.config.workers import DrafterConfig, VerifierConfig
from paceline.config.yaml_file import read_yaml
from paceline.drafters import shipped_drafter
from paceline.errors import ConfigError

_WHAT_DRAFTS = {"kind", "model", "ngram", "tree"}
"""Settings of a drafter by which a file says what drafts."""


class Config(Section):
    """The whole file. Every setting has a default: an empty file is the demo on one machine."""

    drafter: DrafterConfig = DrafterConfig()
    verifier: VerifierConfig = VerifierConfig()
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    cluster: ClusterConfig = ClusterConfig()
    security: SecurityConfig = SecurityConfig()
    grpc: GrpcConfig = GrpcConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @model_validator(mode="before")
    @classmethod
    def _shipped_drafter(cls, data: Any) -> Any:
        """Where nothing says what drafts, the drafter that ships for the target does, if any."""
        if not isinstance(data, dict):
            return data
        drafter, verifier = data.get("drafter", {}), data.get("verifier", {})
        if not isinstance(drafter, dict) or not drafter.keys().isdisjoint(_WHAT_DRAFTS):
            return data
        path = shipped_drafter(_target_of(verifier))
        if path is None:
            return data
        return {**data, "drafter": {"kind": "cascade", "model": {"path": path}, **drafter}}


def load_config(path: Path | None) -> Config:
    """Read and validate a YAML file; None gives the defaults.

    Raises `ConfigError` naming the key of each wrong setting.
    """
    if path is None:
        return Config()
    data = read_yaml(path)
    return parse_config({} if data is None else data, source=str(path))


def parse_config(data: Any, source: str) -> Config:
    """Validate a loaded document. Raises `ConfigError` naming the key of each wrong setting."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping of settings, found {type(data).__name__}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(
            _problem(item["loc"], item["type"], item["msg"]) for item in error.errors()
        )
        raise ConfigError(f"{source}: {problems}") from error


def with_listen(config: Config, section: str, address: str) -> Config:
    """The same configuration with another `listen` address of one service.

    Raises `ConfigError` naming the key.
    """
    data = config.model_dump()
    data[section]["listen"] = address
    return parse_config(data, source="--listen")


def _target_of(verifier: Any) -> str | None:
    """The path of a verifier's section before it is validated; None where nobody can tell."""
    if isinstance(verifier, dict):
        verifier = verifier.get("model", VerifierConfig().model)
    if isinstance(verifier, dict):
        path = verifier.get("path")
    else:
        path = getattr(getattr(verifier, "model", verifier), "path", None)
    return path if isinstance(path, str) else None


def _problem(location: tuple[int | str, ...], kind: str, message: str) -> str:
    # pydantic names the chosen kind of a model like a key
    key = ".".join(str(part) for part in location if part not in MODEL_KINDS) or "top level"
    if kind == "extra_forbidden":
        return f"{key}: unknown key"
    return f"{key}: {message.removeprefix('Value error, ')}"
