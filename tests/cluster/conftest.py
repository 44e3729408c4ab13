"""Ray clusters for tests. One simulated cluster serves all tests of the process, because starting
Ray takes seconds; each test deploys in a namespace of its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._common.utils import reset_ray_address
from ray.cluster_utils import Cluster as SimulatedCluster
from support.simulated_nodes import STORE_BYTES, add_node
from support.up_process import Up

from paceline.config import Config, parse_config

ROOT = Path(__file__).parents[2]
LOOPBACK_ANY = "127.0.0.1:0"
_namespaces = itertools.count()


@pytest.fixture(scope="session")
def import_path() -> Iterator[None]:
    """Actors and child processes import the fakes from here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="session")
def simulated(import_path: None) -> Iterator[SimulatedCluster]:
    """A running cluster of three simulated nodes: plain, one with a small GPU, one with a large."""
    simulated = SimulatedCluster(
        initialize_head=True,
        head_node_args={"num_cpus": 4, "object_store_memory": STORE_BYTES},
    )
    # It announced itself as this machine's cluster; other programs must not join it.
    reset_ray_address()
    for resource in ("small_gpu", "large_gpu"):
        add_node(simulated, resource)
    simulated.wait_for_nodes()
    ray.init(address=simulated.address, log_to_driver=False, logging_level="ERROR")
    yield simulated
    ray.shutdown()
    simulated.shutdown()


@pytest.fixture(scope="session")
def ray_address(simulated: SimulatedCluster) -> str:
    return str(simulated.address)


@pytest.fixture
def deployment(ray_address: str) -> Callable[..., Config]:
    """Makes a configuration in a fresh namespace: free ports, a joined cluster."""

    def make(**cluster: Any) -> Config:
        return parse_config(
            {
                **{role: {"listen": LOOPBACK_ANY} for role in ("verifier", "drafter")},
                "orchestrator": {"listen": LOOPBACK_ANY, **cluster.pop("orchestrator_section", {})},
                "cluster": {
                    "ray_address": ray_address,
                    "namespace": f"test-{os.getpid()}-{next(_namespaces)}",
                    "start_timeout_s": 60,
                    **cluster,
                },
            },
            source="test",
        )

    return make


@pytest.fixture
def up(import_path: None) -> Iterator[Callable[..., Up]]:
    running: list[Up] = []

    def start(config: dict[str, Any] | Path, *entry_points: str, **environment: str) -> Up:
        running.append(Up(config, *entry_points, **environment))
        return running[-1]

    yield start
    for one in running:
        one.close()
