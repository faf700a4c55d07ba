"""A Ray cluster on this machine, with nodes that have simulated GPU resources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

STORE_BYTES = 80 << 20
TARGETS = {"ada": "8.9", "ampere": "8.6"}
"""The targets of the tests, each with the compute capability that RTX builds for."""


class Nodes:
    """The cluster: a head that builds nothing, and one node for each target."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        options = {
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        }
        self.cluster = Cluster(initialize_head=True, head_node_args=options)
        self.node_of: dict[str, Any] = {}
        for target in TARGETS:
            self.add(target)

    def add(self, target: str) -> None:
        """Add a node of the target."""
        self.node_of[target] = self.cluster.add_node(
            num_cpus=1, resources={target: 1}, object_store_memory=STORE_BYTES
        )

    def replace(self, target: str) -> None:
        """Remove the node of the target, and add another."""
        self.cluster.remove_node(self.node_of[target])
        self.add(target)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """The cluster, with this process connected to it."""
    ray = pytest.importorskip("ray")
    before = {name: os.environ.get(name) for name in ("RAY_USAGE_STATS_ENABLED", *KEY)}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", **KEY}
    found = Nodes()
    ray.init(address=found.cluster.address, log_to_driver=False)
    try:
        yield found
    finally:
        ray.shutdown()
        found.cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


KEY = {"TRT_BUILD_STORE_KEY": "the key of the tests"}
"""The store's key in the environment of nodes, as in that of tests (tests/conftest.py)."""
