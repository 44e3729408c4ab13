"""Nodes of a simulated Ray cluster."""

from __future__ import annotations

from typing import Any

import pytest
from ray.cluster_utils import Cluster as SimulatedCluster

STORE_BYTES = 100 * 1024 * 1024
ACCELERATORS = {"small_gpu": "L4", "large_gpu": "H100"}


def add_node(simulated: SimulatedCluster, resource: str) -> Any:
    """A node with a small or a large GPU, which is a custom resource and an accelerator type.

    From any thread: Ray would set a handler of SIGTERM, which the main thread alone may.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray._private.utils.set_sigterm_handler", lambda handler: None)
        return simulated.add_node(
            num_cpus=1,
            resources={resource: 1, f"accelerator_type:{ACCELERATORS[resource]}": 1},
            object_store_memory=STORE_BYTES,
        )
