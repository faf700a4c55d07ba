"""Whether the repository can be written, and which GPUs no plan of this host serves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from builder.engine import BuildOptions, gpu
from builder.errors import EnvironmentProblem, UsageError
from builder.pipeline import serves, target_name
from builder.store import staging


def check(out: Path) -> None:
    """Raise UsageError where a file or a link to nothing stands where the repository would be,
    EnvironmentProblem where nothing may be written there or beside it, PublishBlocked where it is a
    mount: models are staged beside the repository and moved in.
    """
    for place in (out, *out.parents):
        if place.is_symlink() and not place.exists():
            raise UsageError(
                f"{place} is a link to {place.readlink()}, which does not exist",
                fix="use another --out",
            )
    root = out.resolve()
    for folder in (root, root.parent):
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        if not nearest.is_dir():
            raise UsageError(
                f"{nearest} is no folder, so {out} cannot be the repository",
                fix="use another --out",
            )
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise EnvironmentProblem(
                f"the folder {nearest} is not writable",
                where=str(out),
                fix="use an --out in a folder that you can write to",
            )
    if root.is_mount():
        staging.refuse_mount(root, beside=root.parent)


def missing(
    options: BuildOptions, flavour: str, models: Path | str, out: Path | str
) -> Iterator[str]:
    """For each target that no plan of this host serves, how it gets one."""
    device = gpu.current()
    if flavour == "tensorrt-rtx" or device is None:
        return
    for target in options.compute_capabilities:
        if not serves(options, device.capability, target):
            name = target_name(target)
            yield (
                f"no plan for {name} yet: on a host with such a GPU `trt-build repo {models} --out"
                f" {name} --target {name}`, then `trt-build merge {out} {name} --out MERGED`"
            )


def check_served(serve_as: str, flavour: str) -> None:
    """Raise UsageError where Triton's TensorRT backend is to load a plan that it cannot."""
    if serve_as == "tensorrt_plan" and flavour == "tensorrt-rtx":
        raise UsageError(
            "Triton's TensorRT backend loads no plan of TensorRT for RTX",
            fix=(
                "leave --serve-as out, and the Python runtime runs it, or build with --flavour"
                " tensorrt on a GPU host"
            ),
        )
