"""What an earlier deployment left behind, while Ray clears it away."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from orchestrator import cluster_ray
from orchestrator.cluster_members import Member, Role

NAME = Member(Role.VERIFIER, 0, num_cpus=1, num_gpus=0).actor_name


async def test_an_actor_that_ray_is_clearing_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H06: it is listed still, and Ray asserts when it is looked up."""
    listed = [[{"name": NAME, "namespace": "ours"}]] * 2 + [[]]
    looked_up: list[str] = []

    def get_actor(name: str, namespace: str) -> Any:
        looked_up.append(name)
        raise AssertionError("Expected str or bytes, got <class 'NoneType'>")

    monkeypatch.setattr(ray.util, "list_named_actors", lambda **_: listed.pop(0))
    monkeypatch.setattr(ray, "get_actor", get_actor)
    await cluster_ray.clear_leftovers("ours")
    assert (looked_up, listed) == ([NAME, NAME], [])


async def test_one_that_ends_between_two_looks_is_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get_actor(name: str, namespace: str) -> Any:
        raise ValueError("no such actor")

    listed = [[{"name": NAME, "namespace": "ours"}, {"name": NAME, "namespace": "theirs"}]]
    monkeypatch.setattr(ray.util, "list_named_actors", lambda **_: listed.pop(0))
    monkeypatch.setattr(ray, "get_actor", get_actor)
    await cluster_ray.clear_leftovers("ours")
    assert listed == []
