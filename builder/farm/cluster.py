"""Connects to the Ray cluster and finds the nodes that can build for a target."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from builder.errors import EnvironmentProblem
from builder.farm.config import LOCAL, Farm, Target
from builder.repository import jobs

NAMESPACE = "trt-build"
OBJECT_STORE_BYTES = 100 << 20
"""Object store size of a cluster that a command starts. Its tasks return only text."""
MIB = 1 << 20
CONNECT_SECONDS = 10.0
"""Timeout for connecting to the cluster's address. Ray itself tries for two minutes or more."""


def import_ray() -> Any:
    """Return the Ray library. Raises EnvironmentProblem if it is not installed."""
    try:
        import ray as library
    except ImportError as error:
        raise EnvironmentProblem(
            f"a farm needs Ray, which cannot be imported: {error}",
            fix="pip install 'trt-build[farm]'",
        ) from error
    return library


@contextlib.contextmanager
def connected(farm: Farm, *, running: bool = False) -> Iterator[Any]:
    """Connect to the farm's cluster and return Ray. A local cluster is shut down with the block.

    With `running`, connects to the local cluster of another command and starts none.
    Raises EnvironmentProblem if the cluster does not answer.
    """
    library = import_ray()
    if library.is_initialized():  # the calling program or test is already connected
        yield library
        return
    if farm.is_local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    else:
        _require_reachable(farm)
    try:
        library.init(
            **_cluster(farm, running),
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
    except Exception as error:  # of many types: connection, version, protocol
        raise _unusable(farm, error) from error
    try:
        yield library
    finally:
        library.shutdown()


def _cluster(farm: Farm, running: bool) -> dict[str, Any]:
    """The options of ray.init that select or start the cluster."""
    if not farm.is_local:
        return {"address": farm.address}
    if running:
        return {"address": "auto"}
    return {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "num_cpus": local_cpus(farm),
    }


def _require_reachable(farm: Farm) -> None:
    """Raise EnvironmentProblem if nothing listens at an address of the form host:port."""
    host, _, port = farm.address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return  # Ray resolves auto and ray://...
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unusable(farm, error) from error


def _unusable(farm: Farm, error: Exception) -> EnvironmentProblem:
    if farm.is_local:
        return EnvironmentProblem(
            f"the local Ray cluster (`address: {LOCAL}`) cannot be used: {error}",
            where=farm.file or None,
            fix="a local cluster exists only while `trt-build repo --farm` runs on this"
            " machine; for another one, set `address` to its host:port",
        )
    return EnvironmentProblem(
        f"the Ray cluster {farm.address} cannot be used: {error}",
        where=farm.file or None,
        fix="check `address`, and that `ray status` shows the cluster on this machine",
    )


def dashboard(library: Any) -> str:
    """The URL of Ray's dashboard; empty if the cluster runs none."""
    context = library.init(ignore_reinit_error=True, logging_level=logging.ERROR)
    return f"http://{context.dashboard_url}" if context.dashboard_url else ""


def local_cpus(farm: Farm) -> int:
    """The number of cores of a local cluster. Targets that take one core then run as many builds at
    a time as `repo` without a farm.
    """
    return max(
        jobs.default_jobs(), *(math.ceil(target.cpus) for target in farm.targets)
    )


def demand(target: Target) -> dict[str, float]:
    """The resources that a build for the target takes, by Ray's names."""
    amounts = {"CPU": float(target.cpus), "GPU": float(target.gpus), **target.resources}
    if target.memory_mib is not None:
        amounts["memory"] = float(target.memory_mib * MIB)
    return {name: amount for name, amount in amounts.items() if amount}


def ray_options(target: Target, memory_mib: int | None) -> dict[str, Any]:
    """The options of the Ray task that builds for the target. Ray's retries are off: the farm
    restarts lost tasks itself.
    """
    memory = target.memory_mib or memory_mib
    image = {"runtime_env": {"image_uri": target.image}} if target.image else {}
    return {
        **image,
        "num_cpus": target.cpus,
        "num_gpus": target.gpus,
        "resources": dict(target.resources),
        "memory": memory * MIB if memory else None,
        "max_retries": 0,
        "num_returns": "streaming",
    }


def fits(node: Mapping[str, float], required: Mapping[str, float]) -> bool:
    """Whether a node with these total resources satisfies the demand of a build."""
    return all(node.get(name, 0.0) >= amount for name, amount in required.items())


def nodes(library: Any) -> list[dict[str, float]]:
    """The resources of each live node."""
    return [dict(node["Resources"]) for node in library.nodes() if node["Alive"]]
