"""Whether a build can fit, asked before it starts: TensorRT runs for minutes before it says so itself, or is killed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from builder.engine import flavour, gpu
from builder.errors import EngineError

HOST_COPIES = 3
"""Of the weights at once on the host: the lowered graph's, the network's own, and the serialized plan."""


def check(conversion: Any) -> None:
    """Raise EngineError where host or GPU memory is less than the build needs at the very least.

    The least: the weights' copies on the host; on the GPU the weights and the endpoints at their greatest shapes.
    """
    weights = weights_bytes(conversion.lowered.graph)
    _room("host", HOST_COPIES * weights - weights, host_available())  # one copy, the graph's, is there already
    if flavour.name() == "tensorrt":
        _room("GPU", weights + endpoint_bytes(conversion), gpu.free_memory())


def _room(where: str, needed: int, free: int | None) -> None:
    if free is not None and needed > free:
        raise EngineError(
            f"the build needs at least {needed / 2**20:.0f} MiB of {where} memory, and {free / 2**20:.0f} MiB are free",
            fix="free some, or lower the greatest sizes in the manifest, or precision: fp16",
        )


def weights_bytes(graph: Any) -> int:
    """The bytes of every weight of a lowered graph."""
    values = (node.output().toIValue() for node in graph.findAllNodes("prim::Constant", True))
    return sum(v.numel() * v.element_size() for v in values if hasattr(v, "element_size"))


def endpoint_bytes(conversion: Any) -> int:
    """The bytes of all inputs at the greatest shape of any profile, float32 assumed."""
    shapes = ([spec.at(profile, 2) for spec in conversion.inputs] for profile in conversion.profiles)
    return max((sum(4 * math.prod(shape) for shape in one) for one in shapes), default=0)


def host_available(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: MemAvailable, or what its cgroup leaves where that is less."""
    limits = [_meminfo(root / "proc/meminfo"), _cgroup(root / "sys/fs/cgroup")]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup(folder: Path) -> int | None:
    """memory.max less memory.current of cgroup v2; `max` means no limit. The page cache counts as used there, so it is
    given back."""
    try:
        most, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
        cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines()).get("file", "0")
    except (OSError, ValueError):
        return None
    return int(most) - used + int(cached) if most.isdigit() else None
