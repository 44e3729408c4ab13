"""From how many replicas are wanted and which there are to what has to be done. Knows nothing of
Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster_members import Member, Role, member_of, placement_of
from paceline.config import MAX_REPLICAS, Config
from paceline.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Changes:
    """What takes a deployment from how it is to how it is to be. Additions come first."""

    add: tuple[Member, ...]
    remove: tuple[Member, ...]


def changes(config: Config, desired: Mapping[Role, int], actual: Iterable[Member]) -> Changes:
    """The fewest members to add, at the lowest free indexes, and to remove, the highest first.

    Roles that `desired` does not name stay as they are. So replica 0, whose address people know,
    is the last to go, and a replica keeps its name as long as it lives.
    """
    members = list(actual)
    add: list[Member] = []
    remove: list[Member] = []
    for role in (role for role in Role if role in desired):
        present = sorted((m for m in members if m.role is role), key=lambda m: m.index)
        taken = {member.index for member in present}
        free = (index for index in range(MAX_REPLICAS) if index not in taken)
        surplus = len(present) - desired[role]
        add += [member_of(config, role, next(free)) for _ in range(-surplus)]
        remove += reversed(present[desired[role] :])
    return Changes(tuple(add), tuple(remove))


def check_replicas(config: Config, desired: Mapping[Role, int]) -> None:
    """Raise `InvalidArgumentError` that names the role and its limits."""
    for role, replicas in desired.items():
        has_others = role is Role.VERIFIER and config.orchestrator.verifiers
        least = 0 if role is Role.DRAFTER or has_others else 1
        if not least <= replicas <= MAX_REPLICAS:
            raise InvalidArgumentError(
                f"cluster.{role.value}.replicas", f"{replicas} is outside {least} to {MAX_REPLICAS}"
            )


def replicas_of(config: Config) -> dict[Role, int]:
    """How many of each role a configuration asks for."""
    return {role: placement_of(config, role).replicas for role in Role}


def other_differences(running: Config, wanted: Config) -> tuple[str, ...]:
    """The keys, numbers of replicas apart, that differ: a reload does not apply them."""
    numbers = {f"cluster.{role.value}.replicas" for role in Role}
    found = _differences(running.model_dump(), wanted.model_dump(), "")
    return tuple(sorted(set(found) - numbers))


def _differences(one: Any, other: Any, key: str) -> list[str]:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [key]
    return [
        difference
        for name in {**one, **other}
        for difference in _differences(
            one.get(name), other.get(name), f"{key}.{name}" if key else name
        )
    ]
