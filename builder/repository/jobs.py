"""The number of parallel builds, their GPUs, and the folders that each worker may write to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from builder import frontends, processes
from builder.engine import CACHE_VARIABLE, cache_folder, flavor, gpu
from builder.manifest import Limits
from builder.pipeline import Ended, Order
from builder.store import urls

MODULES = (
    "builder.conversion",
    "builder.engine.tensorrt8.evaluation",
    "builder.engine.tensorrt8.infinities",
    "builder.engine.tensorrt8.network",
    "builder.engine.tensorrt8.parallel",
    "builder.lowering.endpoints",
    "builder.lowering.rounding",
    "builder.partition.branches",
    "builder.partition.drawing",
    "builder.triton.edits",
    "builder.triton.environment",
    "builder.triton.interface",
    "builder.triton.publish",
    "builder.torchscript.loading",
    "builder.reference.evaluate",
    "builder.frontends.loading",
    "builder.parity.plan_check",
    "builder.parity.recordings",
    "builder.store.plans",
    "builder.store.preloaded",
    "builder.pipeline.artifacts",
    "builder.pipeline.batching_safety",
    "builder.pipeline.layouts",
    "builder.pipeline.libtorch",
    "builder.pipeline.run",
    "builder.repository.build",
    "builder.processes.pool",
    "fsspec.implementations.chained",
    "fsspec.implementations.local",
    "google.protobuf.descriptor_pb2",
    "torch._dynamo",  # the first call of a meta kernel imports it, in about half a second
)
"""Modules that the fork server imports: all that every worker needs, except TensorRT and
Polygraphy.
"""


def modules(files: Iterable[Path]) -> tuple[str, ...]:
    """MODULES, and the modules that loading these model files needs. TensorRT and Polygraphy are
    included if no worker can choose another flavor.
    """
    needed = (*MODULES, *frontends.preloaded(files))
    if flavor.is_only_rtx():
        return (*needed, "builder.engine.preloaded")
    return needed


def default_jobs() -> int:
    """Two for each GPU that plans are timed on, so that one model is converted while another is
    built; else by cores.
    """
    if flavor.chosen() == "tensorrt":
        return 2 * max(1, len(same_kind()))
    return max(1, (os.cpu_count() or 1) // 4)


def environments() -> list[dict[str, str]]:
    """Environment variables that pin a worker to a GPU by uuid.

    There is one set for each GPU of the same model as the first, because a plan is for one GPU
    model. A worker also receives the current cache folder, the only one that it may write to. It
    would otherwise have that of the fork server, whose environment it inherits.
    """
    if flavor.chosen() != "tensorrt":
        return [{}]
    cache = (
        {CACHE_VARIABLE: os.environ[CACHE_VARIABLE]}
        if CACHE_VARIABLE in os.environ
        else {}
    )
    return [
        {"CUDA_VISIBLE_DEVICES": device.uuid, **cache} for device in same_kind()
    ] or [cache]


def same_kind() -> list[gpu.Device]:
    """The GPUs of the same model as CUDA's first GPU, which is part of the keys."""
    devices = gpu.devices()
    return [
        device
        for device in devices
        if (device.name, device.capability) == (devices[0].name, devices[0].capability)
    ]


def limits(model_limits: Limits) -> processes.Limits:
    """The limits of the worker for a model with these limits in its manifest."""
    memory = model_limits.memory_mib
    return processes.Limits(
        stage_seconds=model_limits.stage_seconds,
        memory_bytes=None if memory is None else memory << 20,
    )


def sandbox(order: Order, publishes: bool = True) -> processes.Sandbox:
    """The sandbox of the order's worker. It may write to its staging folder, the repository, the
    store, the caches, and `graphs`; without `publishes` only to the store and the caches. Only a
    remote store needs the network.
    """
    folders = []
    if publishes and order.stage:
        folders = [order.out.resolve(), order.stage]
    folders.append(cache_folder())
    if publishes and order.graphs:
        folders.append(order.graphs)
    store = urls.local_folder(order.store) if order.store else None
    remote = order.store is not None and store is None
    if store:
        folders.append(store)
    if order.options.timing_cache:
        folders.append(order.options.timing_cache.parent)
    for folder in folders:
        with contextlib.suppress(OSError):  # the worker reports what it cannot write
            folder.mkdir(parents=True, exist_ok=True)
    writable = tuple(folder.resolve() for folder in folders)
    return processes.Sandbox(writable, network=remote, gpu=True)


_TENSORRT_STAGES = ("convert", "reference", "build")
"""A model that torch serves does not have these stages."""


def after_crash(order: Order, error: object) -> Order | None:
    """The order to retry with torch only, if a native library crashed the first worker, or
    TensorRT's part of the work did not end. None for other errors, and if the manifest requires one
    engine.
    """
    if order.ended or order.spec.fallback.require_full:
        return None
    if isinstance(error, processes.Crashed) and error.is_fault:
        ended = Ended(error.message, "`trt-build repo --no-isolate` shows the location")
    elif (
        isinstance(error, processes.TimedOut)
        and error.stage.rpartition(" ")[2] in _TENSORRT_STAGES
    ):
        ended = Ended(error.message, "raise limits.stage_seconds in the manifest")
    else:
        return None
    return replace(order, ended=ended)


def crashed(orders: Sequence[Order], errors: Sequence[object]) -> dict[int, Order]:
    """By index, the orders to try once more: see after_crash."""
    return {
        index: again
        for index, (order, error) in enumerate(zip(orders, errors, strict=True))
        if (again := after_crash(order, error)) is not None
    }


def caches_only(more: tuple[Path, ...]) -> processes.Sandbox:
    """The sandbox of a worker that does not publish.

    It may write to the caches and the folders `more`.
    """
    return processes.Sandbox((cache_folder(), *more), gpu=True)
