"""How Ray places the three services."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from paceline.config.section import Section

MAX_REPLICAS = 64


class PlacementConfig(Section):
    """Where Ray puts one kind of actor, and how many."""

    replicas: int = Field(default=1, ge=0, le=MAX_REPLICAS)
    num_cpus: float = Field(default=0.5, ge=0)
    num_gpus: float = Field(default=0.0, ge=0)
    accelerator_type: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Only on nodes with this accelerator, by the name that Ray gives it, e.g. `H100`."""
    resources: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Custom resources, e.g. `{large_gpu: 1}`."""
    strategy: Literal["pack", "spread"] = "pack"
    """Replicas share a node while it has room, or each goes where the fewest others are."""

    @field_validator("resources")
    @classmethod
    def _custom(cls, resources: dict[str, float]) -> dict[str, float]:
        for name, setting in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
            if name in resources:
                raise ValueError(f"{name} is no custom resource; set {setting}")
        return resources


class ClusterConfig(Section):
    """How `paceline up` uses Ray."""

    ray_address: str | None = None
    """A running cluster; unset joins RAY_ADDRESS or a local one, or starts one."""
    namespace: str = "paceline"
    start_timeout_s: float = Field(default=300.0, gt=0)
    place_timeout_s: float = Field(default=5.0, gt=0, le=86_400)
    """How long start-up waits for room: more than seconds only where nodes are still joining."""
    drain_grace_s: float = Field(default=10.0, ge=0, le=3600)
    """How long sessions on a replica that is scaled away may go on there before they are moved."""
    drafter: PlacementConfig = PlacementConfig()
    verifier: PlacementConfig = PlacementConfig()
    orchestrator: PlacementConfig = PlacementConfig()
