"""The one YAML file that names every setting.

Read once, in a `__main__`, into frozen values; services receive the section they need. There is
one file here a section.
"""

from paceline.config.cluster import (
    MAX_REPLICAS,
    ClusterConfig,
    PlacementConfig,
)
from paceline.config.file import (
    Config,
    load_config,
    parse_config,
    with_listen,
)
from paceline.config.models import (
    MODEL_KINDS,
    AnyModelConfig,
    ModelConfig,
    SyntheticModelConfig,
)
from paceline.config.orchestrator import (
    EmulatedDelayConfig,
    OrchestratorConfig,
    SpeculationConfig,
)
from paceline.config.section import (
    MAX_PORT,
    ListenAddress,
    PeerAddress,
    Section,
    split_address,
)
from paceline.config.telemetry import (
    LogsConfig,
    MetricsConfig,
    TelemetryConfig,
    TracesConfig,
)
from paceline.config.transport import (
    GrpcConfig,
    SecurityConfig,
)
from paceline.config.workers import (
    CascadeConfig,
    DrafterConfig,
    NgramConfig,
    RuntimeConfig,
    TreeConfig,
    VerifierConfig,
)

__all__ = [
    "MAX_PORT",
    "MAX_REPLICAS",
    "MODEL_KINDS",
    "AnyModelConfig",
    "CascadeConfig",
    "ClusterConfig",
    "Config",
    "DrafterConfig",
    "EmulatedDelayConfig",
    "GrpcConfig",
    "ListenAddress",
    "LogsConfig",
    "MetricsConfig",
    "ModelConfig",
    "NgramConfig",
    "OrchestratorConfig",
    "PeerAddress",
    "PlacementConfig",
    "RuntimeConfig",
    "Section",
    "SecurityConfig",
    "SpeculationConfig",
    "SyntheticModelConfig",
    "TelemetryConfig",
    "TracesConfig",
    "TreeConfig",
    "VerifierConfig",
    "load_config",
    "parse_config",
    "split_address",
    "with_listen",
]
