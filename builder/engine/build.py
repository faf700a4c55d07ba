"""Build a plan from a network, through Polygraphy."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.engine import caches, config, flavor, gpu, memory, progress
from builder.engine.flavor import trt
from builder.engine.interfaces import ITensor
from builder.engine.network import MESSAGES
from builder.engine.options import BuildOptions
from builder.engine.tensorrt8 import refused
from builder.errors import EngineError

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.manifest import Profile


__all__ = [
    "BuildOptions",
    "Plan",
    "build",
    "build_engine",
    "plan_facts",
    "polygraphy_silenced",
]

DEFAULT = BuildOptions()


@dataclass(frozen=True)
class Plan:
    """A serialized engine: `data`, and the `facts` that are written beside it as plan.json."""

    data: bytes
    facts: dict[str, Any] = field(default_factory=dict)


def build(
    conversion: Conversion,
    options: BuildOptions = DEFAULT,
    report: progress.Report | None = None,
) -> Plan:
    """Build a plan from a Conversion. `report` receives TensorRT's progress.

    Raises EngineError, with TensorRT's message, if TensorRT refuses the network or there is not
    enough memory. Raises UsageError for options that the flavor lacks, and BuildCanceled (a
    KeyboardInterrupt) if progress.CANCEL was set.
    """
    monitor = progress.monitor(report)  # must outlive the build
    config.check(options)
    settings = config.create(conversion, options, monitor)
    memory.check(conversion)
    started = time.monotonic()
    MESSAGES.clear()
    with polygraphy_silenced(), _build_lock(), progress.building():
        data = _compile(conversion, settings, options)
    facts = plan_facts(conversion, options, data, time.monotonic() - started)
    return Plan(data, facts)


def _compile(conversion: Conversion, settings: Any, options: BuildOptions) -> bytes:
    from polygraphy.backend.trt import EngineBytesFromNetwork

    network = (conversion.builder, conversion.network)
    timing_cache = config.timing_cache(options)
    save = str(timing_cache) if timing_cache else None
    try:
        return bytes(
            EngineBytesFromNetwork(network, config=settings, save_timing_cache=save)()
        )
    except Exception as refusal:
        reason = _reason(refusal)
        raise EngineError(reason, fix=_fix(reason, options)) from refusal


@contextmanager
def _build_lock() -> Any:
    """A lock with which one process of the machine at a time builds on a GPU: concurrent builds
    would disturb each other's tactic timings. RTX does not time tactics and takes no lock.
    """
    if flavor.name() == "tensorrt-rtx":
        yield
        return
    from filelock import FileLock

    with FileLock(caches.with_folder(caches.gpu_lock())):
        yield


def build_engine(conversion: Conversion, options: BuildOptions = DEFAULT) -> bytes:
    """The bytes of a plan for the Conversion; see build()."""
    return build(conversion, options).data


@contextmanager
def polygraphy_silenced() -> Any:
    """Silence Polygraphy's log, including critical errors: Polygraphy also raises them, and
    trt-build's error has the relevant part.
    """
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):
        yield


def _reason(refusal: Exception) -> str:
    reports = [
        message
        for message in MESSAGES
        if not any(words in message for words in refused.HARMLESS)
    ]
    words = "; ".join(reports[-3:]) or str(refusal)
    return f"TensorRT could not build the network: {words}"


SCARCE = re.compile(r"workspace|ShmemSize|shared memory|out of memory", re.IGNORECASE)
"""TensorRT's messages if a memory limit leaves no way to compute a layer, or an assertion about the
limit fails.
"""


def _fix(reason: str, options: BuildOptions) -> str:
    if refused.UNCOMPILED.search(reason):
        return (
            "give each dynamic axis one size (min = opt = max), or build with another"
            " version of TensorRT"
        )
    if not SCARCE.search(reason):
        return "`trt-build inspect` shows the network's layers"
    limits = ", ".join(
        f"{pool} {limit} bytes" for pool, limit in options.limits().items()
    )
    if limits:
        return (
            f"allow more memory than {limits} (--workspace, --pool, or the manifest's build), or"
            " leave the limit out"
        )
    return (
        "reduce the maximum sizes in the manifest, or build on a GPU with more memory"
    )


def plan_facts(
    conversion: Conversion, options: BuildOptions, data: bytes, seconds: float
) -> dict[str, Any]:
    """The content of a plan's plan.json: its options, targets, endpoints and hash."""
    network = conversion.network
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    return {
        "flavor": flavor.name(),
        "tensorrt": trt.__version__,
        "compute_capabilities": [
            f"{major}.{minor}" for major, minor in _targets(options)
        ],
        "options": {
            name: str(value) if name == "timing_cache" else value
            for name, value in options.set().items()
        },
        "precision": conversion.precision,
        "inputs": [_endpoint(tensor) for tensor in inputs],
        "outputs": [_endpoint(tensor) for tensor in outputs],
        "profiles": [_shapes(conversion, profile) for profile in conversion.profiles],
        "layers": network.num_layers,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "build_seconds": round(seconds, 3),
    }


def _targets(options: BuildOptions) -> list[tuple[int, int]]:
    """The compute capabilities that the plan is for: the requested ones, or that of the GPU on
    which it was built.
    """
    device = None
    if flavor.name() != "tensorrt-rtx":
        device = gpu.current()
    return [device.capability] if device else list(options.compute_capabilities)


def _shapes(conversion: Conversion, profile: Profile) -> dict[Any, list[list[int]]]:
    return {
        spec.name: [list(spec.at(profile, which)) for which in range(3)]
        for spec in conversion.inputs
    }


def _endpoint(tensor: ITensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
    }
