"""Pools of real services on two small and two large simulated nodes, under load.

The models are synthetic and the sampling is coupled, so every stream's output is a function of its
request alone: whatever happens to the workers meanwhile, it must be what it was without drafts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.cluster_utils import Cluster as SimulatedCluster
from support.reports import Reports
from support.services import collect, until
from support.simulated_nodes import add_node

from orchestrator.cluster import Cluster
from orchestrator.cluster_members import Role
from paceline.client import Client
from paceline.config import Config, parse_config
from paceline.errors import InvalidArgumentError, PlacementError, UnavailableError
from paceline.generation import WorkerStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_STREAMS = 16
TOKENS = 60
SYNTHETIC = {"kind": "synthetic", "vocab_size": 128, "seed": 3, "base_ms": 4.0}
LISTEN = "127.0.0.1:0"


def request(number: int) -> dict[str, Any]:
    return {
        "token_ids": [5, 6, 7 + number],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "acceptance": "coupled",
        "seed": number,
    }


def config_of(ray_address: str, namespace: str) -> Config:
    return parse_config(
        {
            "verifier": {"listen": LISTEN, "model": SYNTHETIC, "runtime": {"kv_tokens": 8192}},
            "drafter": {
                "listen": LISTEN,
                "kind": "model",
                "model": {**SYNTHETIC, "acceptance": 0.9, "base_ms": 1.0},
                "runtime": {"kv_tokens": 8192},
            },
            "orchestrator": {
                "listen": LISTEN,
                "load_refresh_s": 0.2,
                "failover_timeout_s": 20.0,
                "speculation": {"adaptive": False},
            },
            "cluster": {
                "ray_address": ray_address,
                "namespace": namespace,
                "start_timeout_s": 200,
                "drain_grace_s": 0.2,
                "drafter": {"replicas": 2, "num_cpus": 0.25, "resources": {"small_gpu": 0.5}}
                | {"strategy": "spread"},
                "verifier": {"replicas": 2, "resources": {"large_gpu": 1}}
                | {"accelerator_type": "H100"},
                "orchestrator": {"replicas": 2},
            },
        },
        source="test",
    )


@pytest.fixture(scope="module")
def small_and_large(simulated: SimulatedCluster) -> Iterator[list[Any]]:
    """Two nodes more; those that are in the list at the end are removed again."""
    nodes = [add_node(simulated, "small_gpu"), add_node(simulated, "large_gpu")]
    yield nodes
    for node in nodes:
        simulated.remove_node(node)


class Deployment:
    """A running deployment, its reports, and a client of each orchestrator."""

    def __init__(self, cluster: Cluster, reports: Reports, clients: list[Client]) -> None:
        self.cluster = cluster
        self.reports = reports
        self.clients = clients
        self.expected: list[list[int]] = []

    def nodes(self) -> dict[str, set[str]]:
        """Ids of the nodes on which each role runs."""
        found: dict[str, set[str]] = {role.value: set() for role in Role}
        for keeper in self.cluster._keepers:
            if keeper.room is not None:
                found[keeper.member.role.value].add(keeper.room.node.node_id)
        return found

    async def workers(self, role: str) -> dict[str, WorkerStatus]:
        """What the first orchestrator says of its workers of a role, by address."""
        status = await self.clients[0].status()
        return {w.address: w for w in status.workers if w.role == role}

    async def serves(self, role: str, num: int) -> bool:
        """Whether so many workers, and no others, are connected, and each has judged or drafted."""
        workers = (await self.workers(role)).values()
        return len(workers) == num and all(
            w.is_connected and w.info is not None and sum(w.info.counters.values()) > 0
            for w in workers
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(ray_address: str, small_and_large: list[Any]) -> AsyncIterator[Deployment]:
    reports = Reports()
    cluster = Cluster(config_of(ray_address, "pools"), report=reports)
    async with cluster:
        addresses = [p.address for p in cluster.placed if p.member.role is Role.ORCHESTRATOR]
        async with Client(addresses[0]) as one, Client(addresses[1]) as other:
            deployment = Deployment(cluster, reports, [one, other])
            alone = [
                collect(one, **request(number), speculation=False) for number in range(NUM_STREAMS)
            ]
            deployment.expected = [r.token_ids for r in await asyncio.gather(*alone)]
            yield deployment


class Load:
    """Streams that follow each other without a pause, half of them at each orchestrator."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._rounds = [0] * NUM_STREAMS
        self._changed = asyncio.Event()
        self._is_over = False

    async def stream(self, number: int) -> None:
        """One after the other; each must be right."""
        client = self._deployment.clients[number % 2]
        while not self._is_over:
            result = await collect(client, **request(number))
            assert result.token_ids == self._deployment.expected[number]
            self._rounds[number] += 1
            self._changed.set()

    async def rounds(self, num: int) -> None:
        """Until every stream has ended so many times more."""
        wanted = [rounds + num for rounds in self._rounds]
        while any(now < then for now, then in zip(self._rounds, wanted, strict=True)):
            self._changed.clear()
            await self._changed.wait()

    def end(self) -> None:
        self._is_over = True


@asynccontextmanager
async def load(deployment: Deployment) -> AsyncIterator[Load]:
    """16 coupled streams at any time; fails with the first of them that does."""
    running = Load(deployment)
    streams = asyncio.gather(*(running.stream(number) for number in range(NUM_STREAMS)))
    test = asyncio.current_task()
    assert test is not None
    streams.add_done_callback(lambda done: None if running._is_over else test.cancel())
    try:
        yield running
    finally:
        running.end()
        await asyncio.wait_for(streams, 120)


async def test_each_role_is_where_it_belongs_and_each_orchestrator_serves(
    deployment: Deployment,
) -> None:
    resources = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    nodes = deployment.nodes()
    assert len(nodes["drafter"]) == len(nodes["verifier"]) == 2
    assert all("small_gpu" in resources[node] for node in nodes["drafter"])
    assert all("accelerator_type:H100" in resources[node] for node in nodes["verifier"])
    assert not any("_gpu" in name for node in nodes["orchestrator"] for name in resources[node])
    for client in deployment.clients:
        result = await collect(client, **request(1))
        assert result.token_ids == deployment.expected[1]
        assert result.stats.accepted > 0
        status = await client.status()
        assert sorted(w.role for w in status.workers if w.is_connected) == [
            *["drafter"] * 2,
            *["verifier"] * 2,
        ]


async def test_asking_for_what_is_not_there_fails_in_seconds_with_the_numbers(
    deployment: Deployment,
) -> None:
    before = deployment.cluster.replicas
    started = time.monotonic()
    with pytest.raises(PlacementError) as caught:
        await deployment.cluster.scale({Role.VERIFIER: 3})
    assert time.monotonic() - started < 30
    assert "Needed: verifier 2: CPU 0.5, large_gpu 1, accelerator_type H100." in str(caught.value)
    assert "large_gpu 0 of 1, accelerator_type H100" in str(caught.value)
    with pytest.raises(InvalidArgumentError, match=r"cluster.verifier.replicas: 65 is .* 1 to 64"):
        await deployment.cluster.scale({Role.VERIFIER: 65})
    assert deployment.cluster.replicas == before
    assert len(deployment.nodes()["verifier"]) == 2


async def test_replicas_come_and_go_under_load_and_no_stream_notices(
    deployment: Deployment,
) -> None:
    """Streams on a replica that goes are moved; those that come get sessions."""
    cluster = deployment.cluster
    async with load(deployment) as streams:
        await streams.rounds(1)
        assert await cluster.scale({Role.VERIFIER: 1, Role.DRAFTER: 3}) == (
            "started drafter 2; stopped verifier 1"
        )
        assert len(await deployment.workers("verifier")) == 1
        await until(lambda: deployment.serves("drafter", 3))
        await streams.rounds(1)
        assert await cluster.scale({Role.VERIFIER: 2, Role.DRAFTER: 0}) == (
            "started verifier 1; stopped drafter 2, drafter 1, drafter 0"
        )
        await until(lambda: deployment.serves("verifier", 2))
        await streams.rounds(1)
        assert await cluster.scale({Role.DRAFTER: 1}) == "started drafter 0"
        await until(lambda: deployment.serves("drafter", 1))
        await streams.rounds(1)


async def test_a_node_is_removed_and_another_added_under_load_and_its_worker_follows(
    deployment: Deployment, simulated: SimulatedCluster, small_and_large: list[Any]
) -> None:
    """H01 on Ray: nothing is restarted by hand, and the orchestrators stay as they are."""
    cluster, reports = deployment.cluster, deployment.reports
    lost = small_and_large[1]
    (victim,) = [
        keeper
        for keeper in cluster._keepers
        if keeper.member.role is Role.VERIFIER
        and keeper.room is not None
        and keeper.room.node.node_id == lost.node_id
    ]
    label = victim.member.label
    orchestrators = [p for p in cluster.placed if p.member.role is Role.ORCHESTRATOR]
    async with load(deployment) as streams:
        await streams.rounds(1)
        await asyncio.to_thread(simulated.remove_node, lost)
        small_and_large.remove(lost)
        await reports.until(f"{label} has lost its node")
        line = await reports.until(f"{label} waits for room")
        assert "Needed: " + label + ": CPU 0.5, large_gpu 1" in line
        await until(lambda: deployment.serves("verifier", 1))
        await streams.rounds(1)
        small_and_large.append(await asyncio.to_thread(add_node, simulated, "large_gpu"))
        await reports.until(f"{label} is back")
        await until(lambda: deployment.serves("verifier", 2))
        await streams.rounds(1)
    assert victim.room is not None
    assert victim.room.node.node_id == small_and_large[-1].node_id
    assert [p for p in cluster.placed if p.member.role is Role.ORCHESTRATOR] == orchestrators


async def test_a_killed_orchestrator_costs_its_sessions_and_no_others(
    deployment: Deployment,
) -> None:
    """H03: an error for those, never a wrong text; the next ones work, at the same address."""
    one, other = deployment.clients
    long = {**request(1), "max_tokens": 2000}
    lost, kept = other.generate(**long), one.generate(**long)
    chunks = [await anext(lost), await anext(kept)]
    pid = [p.pid for p in deployment.cluster.placed if p.member.role is Role.ORCHESTRATOR][1]
    os.kill(pid, signal.SIGKILL)
    ids = [token.id for token in chunks[0].tokens]
    with pytest.raises(UnavailableError):
        async for chunk in lost:
            ids += [token.id for token in chunk.tokens]
    assert len(ids) < 2000
    rest = [token.id for token in chunks[1].tokens]
    async for chunk in kept:
        rest += [token.id for token in chunk.tokens]
    assert len(rest) == 2000
    assert rest[: len(ids)] == ids
    await deployment.reports.until("orchestrator 1 is back")
    assert (await collect(other, **request(4))).token_ids == deployment.expected[4]


async def test_orchestrators_come_and_go_too(deployment: Deployment) -> None:
    cluster = deployment.cluster
    assert await cluster.scale({Role.ORCHESTRATOR: 3}) == "started orchestrator 2"
    async with Client(cluster.placed[-1].address) as third:
        result = await collect(third, **request(2))
        assert result.token_ids == deployment.expected[2]
    assert await cluster.scale({Role.ORCHESTRATOR: 2}) == "stopped orchestrator 2"
    for client in deployment.clients:
        assert (await collect(client, **request(3))).token_ids == deployment.expected[3]
