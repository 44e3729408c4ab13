"""`paceline up` as a process of its own, with fake services: what a user and a supervisor see."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest
from support.fake_services import FAKES
from support.up_process import Up, free_ports

from orchestrator.cluster import Cluster
from paceline.config import Config

Deployment = Callable[..., Config]
WAIT_S = 60.0


def to_group(process: subprocess.Popen[str]) -> None:
    """Ctrl-C: the terminal signals the whole group."""
    os.killpg(process.pid, signal.SIGINT)


def to_process(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("stop", [to_group, to_process], ids=["ctrl-c", "sigterm"])
def test_a_signal_takes_everything_down_that_it_started(
    up: Callable[..., Up], stop: Callable[[subprocess.Popen[str]], None]
) -> None:
    running = up(free_ports({"cluster": {"ray_address": "local"}}))
    assert "started a local Ray" in running.line_with("Ray")
    running.line_with("verifier 0")
    running.line_with("ready at 127.0.0.1:")
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert any("raylet" in child.name() for child in children)
    assert len([c for c in children if "ServiceHost" in " ".join(c.cmdline())]) == 3

    stop(running.process)
    started = time.monotonic()
    assert running.end() == 0
    assert time.monotonic() - started < 20
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert running.errors() == ""


def test_a_signal_while_it_starts_takes_everything_down(up: Callable[..., Up]) -> None:
    running = up(
        free_ports({"cluster": {"ray_address": "local"}}), "verifier=support.fake_services:never"
    )
    running.line_with("started a local Ray")
    children = psutil.Process(running.process.pid).children(recursive=True)
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_it_joins_a_running_cluster_time_after_time_and_leaves_it_running(
    up: Callable[..., Up], ray_address: str
) -> None:
    """H06."""
    config = free_ports({"cluster": {"namespace": "twice"}})
    for _ in range(2):
        running = up(config, RAY_ADDRESS=ray_address)
        assert "joined a running Ray: 3 nodes" in running.line_with("Ray")
        running.line_with("ready at")
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0


def test_two_of_one_namespace_are_refused_and_two_of_two_run(
    up: Callable[..., Up], deployment: Deployment, ray_address: str
) -> None:
    """H06."""
    first = up(free_ports({"cluster": {"ray_address": ray_address, "namespace": "one"}}))
    first.line_with("ready at")
    second = up(free_ports({"cluster": {"ray_address": ray_address, "namespace": "one"}}))
    assert second.end() == 2
    assert f"pid {first.process.pid} " in second.errors()
    third = up(free_ports({"cluster": {"ray_address": ray_address, "namespace": "two"}}))
    third.line_with("ready at")
    for running in (first, third):
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0


async def test_what_a_crashed_one_left_is_no_obstacle(
    up: Callable[..., Up], deployment: Deployment
) -> None:
    """H06."""
    config = deployment()
    crashed = up(config.model_dump(mode="json"))
    crashed.line_with("ready at")
    crashed.process.kill()
    async with Cluster(config, entry_points=FAKES) as cluster:
        assert len(cluster.placed) == 3


@pytest.mark.parametrize("listens", [True, False], ids=["not ray", "nothing"])
def test_an_address_without_ray_is_an_error_in_seconds(
    up: Callable[..., Up], listens: bool
) -> None:
    """H06."""
    with contextlib.ExitStack() as stack:
        server = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        stack.enter_context(server)
        if not listens:
            server.close()
        running = up({}, RAY_ADDRESS=address)
        # `ray.init` alone waits for more than 80 s; starting Python on a busy machine takes 10
        assert running.process.wait(45) == 2
        assert f"no Ray cluster answers at {address}" in running.errors()


def test_rays_client_protocol_is_refused_by_name(up: Callable[..., Up]) -> None:
    running = up({"cluster": {"ray_address": "ray://127.0.0.1:10001"}})
    assert running.end() == 2
    assert "cluster.ray_address" in running.errors()


def test_a_shortage_is_one_line_and_code_2(up: Callable[..., Up], ray_address: str) -> None:
    cluster = {"ray_address": ray_address, "verifier": {"resources": {"large_gpu": 3}}}
    running = up(free_ports({"cluster": cluster}))
    assert running.end() == 2
    (line,) = running.errors().splitlines()
    assert "Needed: verifier 0: CPU 0.5, large_gpu 3" in line
    assert "large_gpu 1 of 1" in line


def test_a_service_that_does_not_start_is_one_line_and_code_2(
    up: Callable[..., Up], ray_address: str
) -> None:
    """H08."""
    running = up(
        free_ports({"cluster": {"ray_address": ray_address}}),
        "drafter=support.fake_services:refuse",
    )
    assert running.end() == 2
    assert running.errors() == "paceline: error: model: has 7 legs\n"
