"""What a deployment consists of: one actor a replica, its demands, and what to say when a cluster
cannot meet them. Knows nothing of Ray.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.config import AnyModelConfig, Config, PlacementConfig
from paceline.errors import ConfigError

MARK = "accelerator_type:"
"""How Ray marks a node's kind of accelerator: a resource of which every user takes a tiny share."""
MARK_SHARE = 0.001


ACTOR_PREFIX = "paceline-"
CONTROL_ACTOR = f"{ACTOR_PREFIX}control"


def is_actor_name(name: str) -> bool:
    """Whether a deployment may name an actor so."""
    return name == CONTROL_ACTOR or any(
        name.startswith(f"{ACTOR_PREFIX}{role.value}-") for role in Role
    )


def is_mark(resource: str) -> bool:
    """Whether a resource says what a node has, and not how much."""
    return resource.startswith(MARK)


class Role(enum.Enum):
    """Which service an actor hosts; also the name of its configuration section."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"
    ORCHESTRATOR = "orchestrator"


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of one service."""

    role: Role
    index: int
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    accelerator_type: str | None = None
    strategy: str = "pack"

    @property
    def label(self) -> str:
        """What people read."""
        return f"{self.role.value} {self.index}"

    @property
    def actor_name(self) -> str:
        """The Ray actor's name, unique in the namespace."""
        return f"{ACTOR_PREFIX}{self.role.value}-{self.index}"

    @property
    def demand(self) -> dict[str, float]:
        """Resources as Ray names them, without zeros; empty when the member fits anywhere."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        if self.accelerator_type is not None:
            wanted[f"{MARK}{self.accelerator_type}"] = MARK_SHARE
        return {name: amount for name, amount in wanted.items() if amount > 0}


@dataclass(frozen=True, slots=True)
class Node:
    """A live machine of the cluster and its resources, without Ray's internal ones."""

    address: str
    total: Mapping[str, float]
    available: Mapping[str, float]
    node_id: str = ""


def members_of(config: Config) -> tuple[Member, ...]:
    """The replicas that the configuration asks for, verifiers first.

    Raises `ConfigError` when they could not work together wherever they were placed.
    """
    if config.cluster.verifier.replicas == 0 and not config.orchestrator.verifiers:
        raise ConfigError(
            "cluster.verifier.replicas: 0, and orchestrator.verifiers names no running one"
        )
    if config.cluster.orchestrator.replicas == 0:
        raise ConfigError("cluster.orchestrator.replicas: must be at least 1")
    _check_device(Role.VERIFIER, config.verifier.model, config.cluster.verifier)
    _check_device(Role.DRAFTER, _drafter_model(config), config.cluster.drafter)
    return tuple(
        member_of(config, role, index)
        for role in Role
        for index in range(placement_of(config, role).replicas)
    )


def member_of(config: Config, role: Role, index: int) -> Member:
    """One replica, with the placement of its role."""
    placement = placement_of(config, role)
    return Member(
        role=role,
        index=index,
        num_cpus=placement.num_cpus,
        num_gpus=placement.num_gpus,
        resources=placement.resources,
        accelerator_type=placement.accelerator_type,
        strategy=placement.strategy,
    )


def placement_of(config: Config, role: Role) -> PlacementConfig:
    """The placement section of a role."""
    placement: PlacementConfig = getattr(config.cluster, role.value)
    return placement


def _drafter_model(config: Config) -> AnyModelConfig | None:
    return config.drafter.model if config.drafter.has_model else None


def _check_device(role: Role, model: AnyModelConfig | None, placement: PlacementConfig) -> None:
    if model is None or placement.replicas == 0 or not model.device.startswith("cuda"):
        return
    if placement.num_gpus == 0:
        raise ConfigError(
            f"{role.value}.model.device: {model.device} needs a GPU, but "
            f"cluster.{role.value}.num_gpus is 0; ask Ray for one, or for a fraction of one"
        )


def unused_gpus(config: Config, nodes: Iterable[Node]) -> str | None:
    """What to tell when a model runs on the CPU of a cluster that has GPUs; None otherwise."""
    gpus = sum(node.total.get("GPU", 0) for node in nodes)
    models = {Role.VERIFIER: config.verifier.model, Role.DRAFTER: _drafter_model(config)}
    on_cpu = [
        role.value
        for role, model in models.items()
        if model is not None and model.device == "auto" and not placement_of(config, role).num_gpus
    ]
    if not gpus or not on_cpu:
        return None
    settings = " and ".join(f"cluster.{role}.num_gpus" for role in on_cpu)
    return f"the cluster has {gpus:g} GPUs, but {settings} ask for none: running on the CPU"


def describe_shortage(members: Iterable[Member], nodes: Iterable[Node]) -> str:
    """One message with what is needed and what is available, for `PlacementError`."""
    needed = "; ".join(f"{member.label}: {_amounts(member.demand)}" for member in members)
    available = "; ".join(
        f"node {node.address}: {_amounts(node.available, of=node.total)}" for node in nodes
    )
    return (
        "the cluster cannot place every actor (each must fit on one node). "
        f"Needed: {needed}. Available: {available or 'no node'}"
    )


def _amounts(amounts: Mapping[str, float], of: Mapping[str, float] | None = None) -> str:
    names = sorted(amounts if of is None else of, key=is_mark)
    shown = [
        name.replace(":", " ") if is_mark(name) else _amount(name, amounts.get(name, 0.0), of)
        for name in names
    ]
    return ", ".join(shown) or "nothing"


def _amount(name: str, amount: float, of: Mapping[str, float] | None) -> str:
    return f"{name} {amount:g}" if of is None else f"{name} {amount:g} of {of[name]:g}"
