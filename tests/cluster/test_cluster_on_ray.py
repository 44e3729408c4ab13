"""A deployment of fake services on a real Ray: placement, refusal, restart, take-down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable

import pytest
import ray
from ray._private import state as ray_state
from support.fake_services import FAKES, ask, told
from support.reports import Reports

from orchestrator.cluster import Cluster
from orchestrator.cluster_members import CONTROL_ACTOR, Role
from orchestrator.cluster_ray import live_nodes
from paceline.config import Config
from paceline.errors import (
    InvalidArgumentError,
    PacelineError,
    PlacementError,
    StartupError,
)

Deployment = Callable[..., Config]
WAIT_S = 60


def node_with(resource: str) -> str:
    """The id of the node that has a custom resource."""
    (found,) = [n["NodeID"] for n in ray.nodes() if n["Alive"] and resource in n["Resources"]]
    return str(found)


def living_actors(namespace: str) -> dict[str, str]:
    """Names and node ids of the actors of a namespace."""
    names = [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == namespace
    ]
    names = [name for name in names if name != CONTROL_ACTOR]  # it comes and goes in its own time
    handles = {name: ray.get_actor(name, namespace=namespace) for name in names}
    return {
        name: ray_state.actors(handle._actor_id.hex())["Address"]["NodeID"]
        for name, handle in handles.items()
    }


async def settled(condition: Callable[[], bool]) -> None:
    """Ray gives resources back in the background."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("Ray's books did not settle")


def nothing_is_taken() -> bool:
    return all(node.available == node.total for node in live_nodes())


async def start_fails(config: Config, **entry_points: str) -> PacelineError:
    """Start a deployment that must fail and must leave nothing; returns the error."""
    cluster = Cluster(
        config, entry_points={**FAKES, **{Role(k): v for k, v in entry_points.items()}}
    )
    with pytest.raises(PacelineError) as caught:
        await asyncio.wait_for(cluster.start(), WAIT_S)
    assert living_actors(config.cluster.namespace) == {}
    await settled(nothing_is_taken)
    return caught.value


async def test_each_service_runs_in_a_process_of_its_own_and_the_orchestrator_knows_the_workers(
    deployment: Deployment,
) -> None:
    config = deployment(drafter={"replicas": 2, "num_cpus": 0.5})
    async with Cluster(config, entry_points=FAKES) as cluster:
        placed = {one.member.label: one for one in cluster.placed}
        answers = {label: await ask(one.address) for label, one in placed.items()}
        assert sorted(answers) == ["drafter 0", "drafter 1", "orchestrator 0", "verifier 0"]
        assert len({answer["pid"] for answer in answers.values()} | {os.getpid()}) == 5
        told = answers["orchestrator 0"]
        assert told["verifiers"] == [placed["verifier 0"].address]
        assert told["drafters"] == [placed["drafter 0"].address, placed["drafter 1"].address]
        assert cluster.orchestrator_address == placed["orchestrator 0"].address
    assert living_actors(config.cluster.namespace) == {}
    with pytest.raises(OSError):
        await ask(placed["verifier 0"].address)


async def test_a_process_sees_what_it_reserved_and_a_share_of_a_cpu_cuts_no_threads(
    deployment: Deployment,
) -> None:
    async with Cluster(deployment(), entry_points=FAKES) as cluster:
        told = await ask(cluster.orchestrator_address)
        assert told["threads"] is None
        assert told["gpus"] == "", "none was reserved, none is seen (H05)"


async def test_whole_cpus_stay_the_limit_of_threads(deployment: Deployment) -> None:
    config = deployment(orchestrator={"num_cpus": 2})
    async with Cluster(config, entry_points=FAKES) as cluster:
        assert (await ask(cluster.orchestrator_address))["threads"] == "2"


async def test_custom_resources_decide_the_nodes(deployment: Deployment) -> None:
    config = deployment(
        drafter={"resources": {"small_gpu": 1}}, verifier={"resources": {"large_gpu": 1}}
    )
    async with Cluster(config, entry_points=FAKES):
        nodes = living_actors(config.cluster.namespace)
        assert nodes["paceline-drafter-0"] == node_with("small_gpu")
        assert nodes["paceline-verifier-0"] == node_with("large_gpu")


async def test_too_few_resources_are_refused_in_seconds_with_the_numbers(
    deployment: Deployment,
) -> None:
    started = asyncio.get_running_loop().time()
    error = await start_fails(
        deployment(verifier={"replicas": 2, "num_cpus": 1, "resources": {"large_gpu": 1}})
    )
    assert asyncio.get_running_loop().time() - started < 15
    assert isinstance(error, PlacementError)
    assert "verifier 1: CPU 1, large_gpu 1" in str(error)
    assert "CPU 1 of 1, large_gpu 1 of 1" in str(error)


async def test_resources_of_two_nodes_do_not_make_one(deployment: Deployment) -> None:
    error = await start_fails(deployment(verifier={"resources": {"small_gpu": 1, "large_gpu": 1}}))
    assert isinstance(error, PlacementError)


async def test_a_gpu_on_machines_without_one_is_refused_with_the_numbers(
    deployment: Deployment,
) -> None:
    """H05."""
    error = await start_fails(deployment(verifier={"num_gpus": 1}))
    assert isinstance(error, PlacementError)
    assert "GPU 1" in str(error)


async def test_a_services_own_error_comes_back_as_it_is(deployment: Deployment) -> None:
    error = await start_fails(deployment(), drafter="support.fake_services:refuse")
    assert type(error) is InvalidArgumentError
    assert str(error) == "model: has 7 legs"
    assert error.field == "model"


async def test_an_unexpected_error_comes_back_with_its_trace(deployment: Deployment) -> None:
    error = await start_fails(deployment(), verifier="support.fake_services:crash")
    assert str(error) == "ZeroDivisionError: a fault of ours"
    assert "fake_services.py" in str(error.__cause__)


async def test_a_process_that_dies_while_starting_is_an_error(deployment: Deployment) -> None:
    error = await start_fails(deployment(), orchestrator="support.fake_services:die")
    assert isinstance(error, StartupError)
    assert str(error).startswith("orchestrator 0 died while starting")


async def test_a_service_that_never_starts_ends_with_the_time_limit(
    deployment: Deployment,
) -> None:
    """E06: the actor's event loop is free meanwhile, so it ends at once."""
    error = await start_fails(deployment(start_timeout_s=1), verifier="support.fake_services:never")
    assert "verifier 0 did not start within 1 s" in str(error)


async def test_a_failing_drafter_is_left_out_loudly_where_the_configuration_allows(
    deployment: Deployment,
) -> None:
    """H08."""
    reports = Reports()
    cluster = Cluster(
        deployment(orchestrator_section={"require_drafter": False}),
        entry_points={**FAKES, Role.DRAFTER: "support.fake_services:refuse"},
        report=reports,
    )
    async with cluster:
        assert "model: has 7 legs" in await reports.until("drafter 0 is left out")
        assert (await ask(cluster.orchestrator_address))["drafters"] == []


async def test_no_drafters_by_configuration_need_no_drafter(deployment: Deployment) -> None:
    async with Cluster(deployment(drafter={"replicas": 0}), entry_points=FAKES) as cluster:
        told = await ask(cluster.orchestrator_address)
        assert (told["drafters"], told["require_drafter"]) == ([], False)


async def test_a_killed_worker_is_back_at_its_address_and_the_orchestrator_lives_on(
    deployment: Deployment,
) -> None:
    """H02."""
    reports = Reports()
    async with Cluster(deployment(), entry_points=FAKES, report=reports) as cluster:
        before = {one.member.role: one for one in cluster.placed}
        os.kill(before[Role.DRAFTER].pid, signal.SIGKILL)
        await reports.until("drafter 0 is gone")
        await reports.until("drafter 0 is back")
        after = {one.member.role: one for one in cluster.placed}
        assert after[Role.DRAFTER].address == before[Role.DRAFTER].address
        assert after[Role.DRAFTER].pid != before[Role.DRAFTER].pid
        assert (await ask(after[Role.DRAFTER].address))["pid"] == after[Role.DRAFTER].pid
        assert (await ask(cluster.orchestrator_address))["pid"] == before[Role.ORCHESTRATOR].pid


async def test_the_orchestrator_follows_a_worker_to_another_address_without_a_restart(
    deployment: Deployment,
) -> None:
    reports = Reports()
    async with Cluster(deployment(), entry_points=FAKES, report=reports) as cluster:
        before = await ask(cluster.orchestrator_address)
        verifier = next(one for one in cluster.placed if one.member.role is Role.VERIFIER)
        host, _, port = verifier.address.rpartition(":")
        os.kill(verifier.pid, signal.SIGKILL)
        thief = None
        while thief is None:
            with contextlib.suppress(OSError):
                thief = socket.create_server((host, int(port)))
        with thief:
            await reports.until("verifier 0 is back")
        (moved,) = [one for one in cluster.placed if one.member.role is Role.VERIFIER]
        assert moved.address != verifier.address

        following = told(cluster.orchestrator_address, verifiers=[moved.address])
        after = await asyncio.wait_for(following, WAIT_S)
        assert after["pid"] == before["pid"]


async def test_a_killed_orchestrator_is_back_at_its_address(deployment: Deployment) -> None:
    """H03: sessions of the old one are lost, new ones work."""
    reports = Reports()
    async with Cluster(deployment(), entry_points=FAKES, report=reports) as cluster:
        address = cluster.orchestrator_address
        pid = (await ask(address))["pid"]
        os.kill(pid, signal.SIGKILL)
        await reports.until("orchestrator 0 is back")
        assert cluster.orchestrator_address == address
        assert (await ask(address))["pid"] != pid


async def test_two_deployments_need_two_namespaces(deployment: Deployment) -> None:
    """H06."""
    config = deployment()
    async with Cluster(config, entry_points=FAKES) as first:
        with pytest.raises(StartupError, match=rf"pid {os.getpid()} .*cluster\.namespace"):
            await Cluster(config, entry_points=FAKES).start()
        async with Cluster(deployment(), entry_points=FAKES) as second:
            assert second.orchestrator_address != first.orchestrator_address
            await ask(first.orchestrator_address)


LEAVE_AN_ACTOR = """
import sys, ray
from orchestrator.cluster_actors import ServiceHost
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
options = dict(name="paceline-verifier-0", namespace=sys.argv[2], lifetime="detached", num_cpus=0)
actor = ray.remote(ServiceHost).options(**options).remote()
ray.get(actor.stop.remote(0))
"""


async def test_a_leftover_actor_of_a_program_that_ended_is_replaced(
    deployment: Deployment, ray_address: str
) -> None:
    """H06."""
    config = deployment()
    namespace = config.cluster.namespace
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEAVE_AN_ACTOR, ray_address, namespace
    )
    assert await asyncio.wait_for(program.wait(), WAIT_S) == 0
    assert list(living_actors(namespace)) == ["paceline-verifier-0"]
    async with Cluster(config, entry_points=FAKES) as cluster:
        assert (await ask(cluster.placed[0].address))["role"] == "verifier"
        assert len(living_actors(namespace)) == 3
    assert living_actors(namespace) == {}
