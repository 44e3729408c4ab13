"""How Ray places the three services."""

from __future__ import annotations

from pydantic import Field

from paceline.config.section import Section


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
    place_timeout_s: float = Field(default=5.0, gt=0, le=86_400)
    """How long start-up waits for room: more than seconds only where nodes are still joining."""
    drafter: PlacementConfig = PlacementConfig()
    verifier: PlacementConfig = PlacementConfig()
    orchestrator: PlacementConfig = PlacementConfig()
