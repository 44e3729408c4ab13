"""Changing the numbers of replicas of a deployment of fake services: from within, by `paceline
scale` from another program, and by SIGHUP.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_services import FAKES, ask, told
from support.reports import Reports
from support.up_process import Up, free_ports
from test_cluster_on_ray import nothing_is_taken, settled

from orchestrator.cluster import Cluster
from orchestrator.cluster_members import Role, members_of
from orchestrator.cluster_ray import live_nodes
from orchestrator.cluster_reservation import Room, reserve
from paceline.config import Config
from paceline.errors import InvalidArgumentError, PlacementError

Deployment = Callable[..., Config]
WAIT_S = 120
SMALL = {"num_cpus": 0.25, "resources": {"small_gpu": 0.5}}


def paceline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from paceline.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


async def test_what_does_not_fit_or_does_not_start_leaves_everything_as_it_was(
    deployment: Deployment,
) -> None:
    config = deployment(drafter={"replicas": 0, **SMALL})
    fakes = {**FAKES, Role.DRAFTER: "support.fake_services:refuse"}
    async with Cluster(config, entry_points=fakes) as cluster:
        before, taken = cluster.placed, [node.available for node in live_nodes()]
        with pytest.raises(PlacementError, match=r"drafter 2: CPU 0.25, small_gpu 0.5\."):
            await cluster.scale({Role.DRAFTER: 3})
        with pytest.raises(InvalidArgumentError, match="model: has 7 legs"):
            await cluster.scale({Role.DRAFTER: 1})
        assert cluster.placed == before
        assert cluster.replicas == {Role.VERIFIER: 1, Role.DRAFTER: 0, Role.ORCHESTRATOR: 1}
        await settled(lambda: [node.available for node in live_nodes()] == taken)


async def test_two_that_want_the_same_room_at_once_do_not_halve_it(
    deployment: Deployment, ray_address: str
) -> None:
    """Each holds what the other lacks for a moment; one gets all, the other nothing."""
    config = deployment(
        drafter={"resources": {"small_gpu": 1}}, verifier={"resources": {"large_gpu": 1}}
    )
    members = members_of(config)

    async def take() -> dict[Any, Room]:
        return await reserve(members, beside={}, is_usable=lambda node: True, patience_s=3.0)

    outcomes = await asyncio.gather(take(), take(), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["PlacementError", "dict"]
    for outcome in outcomes:
        for room in outcome.values() if isinstance(outcome, dict) else ():
            room.release()
    await settled(nothing_is_taken)


async def test_spread_replicas_are_on_different_nodes_and_packed_ones_on_one(
    deployment: Deployment,
) -> None:
    light = {"replicas": 2, "num_cpus": 0.1}
    config = deployment(verifier={**light, "strategy": "spread"}, drafter=light)
    async with Cluster(config, entry_points=FAKES) as cluster:
        rooms = {k.member.label: k.room for k in cluster._keepers}
        nodes = {label: room.node.node_id for label, room in rooms.items() if room is not None}
        assert nodes["verifier 0"] != nodes["verifier 1"]
        assert nodes["drafter 0"] == nodes["drafter 1"]


async def test_another_program_scales_it_and_hears_what_was_done_and_what_the_limits_are(
    up: Callable[..., Up], ray_address: str, tmp_path: Path
) -> None:
    cluster = {"ray_address": ray_address, "namespace": "scaled", "drain_grace_s": 0.1}
    running = up(free_ports({"cluster": {**cluster, "drafter": SMALL}}))
    address = running.line_with("ready at").split()[2].rstrip(":")
    config = json.dumps({"cluster": {"ray_address": ray_address, "namespace": "scaled"}})
    file = tmp_path / "paceline.yaml"
    file.write_text(config)

    done = await asyncio.to_thread(paceline, "scale", "drafter", "2", "-c", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("started drafter 1\nreplicas: verifier 1, drafter 2, orchestrator 1\n")
    assert len((await ask(address))["drafters"]) == 2
    limited = await asyncio.to_thread(paceline, "scale", "orchestrator", "0", "-c", str(file))
    assert limited.returncode == 1
    assert limited.stderr == (
        "paceline: error: INVALID_ARGUMENT: cluster.orchestrator.replicas: 0 is outside 1 to 64\n"
    )
    applied = await asyncio.to_thread(paceline, "scale", "-c", str(file))
    assert applied.stdout.startswith("stopped drafter 1\n"), applied.stderr
    elsewhere = json.dumps({"cluster": {"ray_address": ray_address, "namespace": "nobody's"}})
    file.write_text(elsewhere)
    nobody = await asyncio.to_thread(paceline, "scale", "drafter", "2", "-c", str(file))
    assert nobody.returncode == 1
    assert 'no deployment runs in namespace "nobody\'s"' in nobody.stderr
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0


async def test_sighup_applies_the_numbers_in_the_file_and_a_wrong_file_changes_nothing(
    up: Callable[..., Up], ray_address: str, tmp_path: Path
) -> None:
    cluster = {"ray_address": ray_address, "namespace": "reloaded", "drain_grace_s": 0.1}
    document = free_ports({"cluster": {**cluster, "drafter": SMALL}})
    file = tmp_path / "paceline.json"

    def wish(document: dict[str, Any]) -> None:
        file.write_text(json.dumps(document))

    wish(document)
    running = up(file)
    address = running.line_with("ready at").split()[2].rstrip(":")
    (drafter,) = (await ask(address))["drafters"]

    wish({**document, "cluster": {**cluster, "drafter": {**SMALL, "replicas": "two"}}})
    running.process.send_signal(signal.SIGHUP)
    assert "cluster.drafter.replicas" in running.line_with("reload: ")
    wanted = {**cluster, "drafter": {**SMALL, "replicas": 2}, "drain_grace_s": 7}
    wish({**document, "cluster": wanted})
    running.process.send_signal(signal.SIGHUP)
    line = running.line_with("reloaded: ")
    assert line == (
        "reloaded: started drafter 1; not applied until a restart: cluster.drain_grace_s"
    )
    assert (await ask(address))["drafters"][0] == drafter
    wish({**document, "cluster": {**cluster, "drafter": {**SMALL, "replicas": 0}}})
    running.process.send_signal(signal.SIGHUP)
    assert running.line_with("reloaded: ") == "reloaded: stopped drafter 1, drafter 0"
    await asyncio.wait_for(told(address, drafters=[]), WAIT_S)
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0


async def test_a_member_that_dies_while_another_is_added_is_back_too(
    deployment: Deployment,
) -> None:
    reports = Reports()
    config = deployment(drafter={"replicas": 1, **SMALL})
    async with Cluster(config, entry_points=FAKES, report=reports) as cluster:
        pid = next(one.pid for one in cluster.placed if one.member.role is Role.DRAFTER)
        os.kill(pid, signal.SIGKILL)
        assert await cluster.scale({Role.DRAFTER: 2}) == "started drafter 1"
        await reports.until("drafter 0 is back")
        addresses = [p.address for p in cluster.placed if p.member.role is Role.DRAFTER]
        following = told(cluster.orchestrator_address, drafters=addresses)
        await asyncio.wait_for(following, WAIT_S)


async def test_a_local_ray_that_up_started_is_scaled_by_its_address(up: Callable[..., Up]) -> None:
    """It asks for this user's Ray token."""
    running = up(free_ports({"cluster": {"ray_address": "local"}}))
    address = running.line_with("started a local Ray").split()[-1]
    running.line_with("ready at")
    done = await asyncio.to_thread(paceline, "scale", "drafter", "2", "--ray-address", address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("replicas: verifier 1, drafter 2, orchestrator 1\n")
    assert done.stderr == ""
