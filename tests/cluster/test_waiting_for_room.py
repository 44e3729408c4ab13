"""A deployment whose nodes are still joining: it waits as long as it is told, and says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from ray.util.placement_group import placement_group, remove_placement_group
from support.fake_services import FAKES

import orchestrator.cluster_reservation
from orchestrator.cluster import Cluster
from paceline.config import Config
from paceline.errors import PlacementError

Deployment = Callable[..., Config]
ON_LARGE = {"resources": {"large_gpu": 1}}


async def test_it_starts_when_the_room_is_there(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrator.cluster_reservation, "QUIET_WAIT_S", 0.0)
    taken = placement_group([{"large_gpu": 1}])
    assert taken.wait(30)
    told: asyncio.Queue[str] = asyncio.Queue()
    cluster = Cluster(
        deployment(verifier=ON_LARGE, place_timeout_s=120),
        entry_points=FAKES,
        report=told.put_nowait,
    )
    starting = asyncio.create_task(cluster.start())
    try:
        while not (line := await asyncio.wait_for(told.get(), 30)).startswith("waiting for room"):
            pass
        assert line.startswith("waiting for room, up to 120 s in all: ")
        assert "large_gpu 0 of 1" in line
        assert not starting.done()
        remove_placement_group(taken)
        await asyncio.wait_for(starting, 60)
        assert len(cluster.placed) == 3
        assert [told.get_nowait() for _ in range(told.qsize())].count(line) == 0
    finally:
        starting.cancel()
        await cluster.stop()


async def test_it_gives_up_in_time_and_at_a_signal_at_once(deployment: Deployment) -> None:
    never = {"resources": {"large_gpu": 2}}
    cluster = Cluster(deployment(verifier=never, place_timeout_s=2), entry_points=FAKES)
    with pytest.raises(PlacementError, match="large_gpu 2"):
        await asyncio.wait_for(cluster.start(), 30)
    cluster = Cluster(deployment(verifier=never, place_timeout_s=3600), entry_points=FAKES)
    starting = asyncio.create_task(cluster.start())
    await asyncio.wait({starting}, timeout=3)
    began = time.monotonic()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await cluster.stop()
    assert time.monotonic() - began < 30
