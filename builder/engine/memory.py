"""Check before a build that there is enough memory. Otherwise TensorRT fails after minutes, or is
killed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine import flavor, gpu
from builder.errors import EngineError
from builder.graph_types import Graph

if TYPE_CHECKING:
    from builder.conversion import Conversion


HOST_COPIES = 3
"""Copies of the weights on the host at the same time: the lowered graph's, the network's, and the
serialized plan.
"""


def check(conversion: Conversion) -> None:
    """Raise EngineError if host or GPU memory is less than the minimum for the build.

    The minimum is the weights' copies on the host, and on the GPU the weights and the endpoints at
    their largest shapes.
    """
    weights = weights_bytes(conversion.lowered.graph)
    # one copy, the graph's, already exists
    _check_free_memory("host", HOST_COPIES * weights - weights, host_available())
    if flavor.name() == "tensorrt":
        _check_free_memory(
            "GPU", weights + endpoint_bytes(conversion), gpu.free_memory()
        )


def _check_free_memory(where: str, needed: int, free: int | None) -> None:
    if free is not None and needed > free:
        raise EngineError(
            f"the build needs at least {needed / 2**20:.0f} MiB of {where} memory, and"
            f" {free / 2**20:.0f} MiB are free",
            fix=(
                "free some memory, reduce the maximum sizes in the manifest, or use"
                " precision: fp16"
            ),
        )


def weights_bytes(graph: Graph) -> int:
    """The bytes of every weight of a lowered graph."""
    values = (node.output().toIValue() for node in graph.findAllNodes("prim::Constant"))
    return sum(
        value.numel() * value.element_size()
        for value in values
        if hasattr(value, "element_size")
    )


def endpoint_bytes(conversion: Conversion) -> int:
    """The bytes of all inputs at the largest shape of any profile, assuming float32."""
    most = 0
    for profile in conversion.profiles:
        shapes = [spec.at(profile, 2) for spec in conversion.inputs]
        most = max(most, sum(4 * math.prod(shape) for shape in shapes))
    return most


def host_available(root: Path = Path("/")) -> int | None:
    """The number of bytes that this process can still allocate.

    It is the minimum of MemAvailable and the remaining memory of each cgroup of the process. None
    if neither is known.
    """
    limits = [
        _meminfo(root / "proc/meminfo"),
        *(_available(folder, names) for folder, names in _cgroups(root)),
    ]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo(path: Path) -> int | None:
    try:
        lines = _text(path).splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


FILES = {
    "": ("memory.max", "memory.current", "file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
}
"""By the path of cgroups below /sys/fs/cgroup (version 2; version 1): the files of the limit, the
usage, and the name of the page cache in memory.stat.
"""


def _cgroups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The mounted cgroup, which is a container's own, and its descendants that contain this
    process, with their files.
    """
    within = dict(_memory_lines(root / "proc/self/cgroup"))
    for controller, names in FILES.items():
        mounted = root / "sys/fs/cgroup" / controller
        innermost = mounted / within.get(controller, "").lstrip("/")
        yield from (
            (folder, names)
            for folder in (innermost, *innermost.parents)
            if folder.is_relative_to(mounted)
        )


def _memory_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The (controller, cgroup) of each line about memory: `0::/user.slice` in version 2,
    `4:memory:/docker/1f` in version 1.
    """
    if not path.is_file():
        return
    for line in _text(path).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers in FILES:
            yield controllers, group


def _available(folder: Path, names: tuple[str, str, str]) -> int | None:
    """The limit minus the usage; `max` means no limit. The usage includes the page cache, which is
    subtracted because it can be freed.
    """
    limit, use, cache = names
    try:
        most = _text(folder / limit).strip()
        used = int(_text(folder / use))
        lines = _text(folder / "memory.stat").splitlines()
        statistics = dict(line.split() for line in lines)
    except (OSError, ValueError):
        return None
    if most.isdigit():
        return int(most) - used + int(statistics.get(cache, "0"))
    return None


def _text(path: Path) -> str:
    """The file in UTF-8 regardless of the locale, because a cgroup may have any name."""
    return path.read_text(encoding="utf-8", errors="replace")
