"""Check that the repository can be written, and report target GPUs without a plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from builder.engine import BuildOptions, gpu
from builder.errors import EnvironmentProblem, UsageError
from builder.pipeline import serves, target_name
from builder.store import CONFIG, staging


def check(out: Path) -> None:
    """Check that the repository's path can be written.

    Raises UsageError if the path is a file, a broken link, `/` or in a published model, and
    EnvironmentProblem if the path or its parent is not writable. Raises PublishBlocked if no folder
    can be created beside it or it is a mount point, because models are staged beside the repository
    and moved into it.
    """
    _refuse_broken_link(out)
    root = out.resolve()
    if root == root.parent:
        raise UsageError(
            f"{root} cannot be the repository, because models are staged beside it",
            fix=f"use a folder in {root}",
        )
    _refuse_published_model(out, root)
    for folder in (root, root.parent):
        _refuse_unwritable(out, folder)
    staging.probe(root)
    if root.is_mount():
        staging.refuse_mount(root, beside=root.parent)


def refuse_nested(source: Path, target: Path) -> None:
    """Raise UsageError if one repository is inside the other: Triton takes each folder of a
    repository for a model.
    """
    # os.path, because Path.resolve raises RuntimeError for a loop of links
    source_path = Path(os.path.realpath(source))
    target_path = Path(os.path.realpath(target))
    if source_path in target_path.parents or target_path in source_path.parents:
        raise UsageError(
            f"{target} and {source} are inside each other, and Triton takes each folder of a"
            " repository for a model",
            fix="use a folder outside of the other repository",
        )


# These functions use os.path, because the methods of Path raise OSError for a long name.


def _refuse_broken_link(out: Path) -> None:
    for path in (out, *out.parents):
        if os.path.islink(path) and not os.path.exists(path):
            raise UsageError(
                f"{path} is a link to {path.readlink()}, which does not exist",
                fix="use another folder",
            )


def _refuse_published_model(out: Path, root: Path) -> None:
    """Refuse a path in a published model. `root` is `out` without links."""
    for folder in (root, *root.parents):
        if os.path.isfile(folder / CONFIG):
            raise UsageError(
                f"{out} cannot be the repository, because it is in the model {folder},"
                f" which has a {CONFIG}",
                fix=f"use the model's repository {folder.parent}, or another folder",
            )


def _refuse_unwritable(out: Path, folder: Path) -> None:
    """Refuse `out` if its `folder` is not writable, or cannot be created."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not os.path.isdir(nearest):
        raise UsageError(
            f"{nearest} is not a folder, so {out} cannot be the repository",
            fix="use another folder",
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise EnvironmentProblem(
            f"the folder {nearest} is not writable",
            where=str(out),
            fix="use a writable folder",
        )


def missing(
    options: BuildOptions, flavor: str, models: Path | str, out: Path | str
) -> Iterator[str]:
    """For each target without a plan from this host, the commands that build one."""
    device = gpu.current()
    if flavor == "tensorrt-rtx" or device is None:
        return
    for target in options.compute_capabilities:
        if not serves(options, device.capability, target):
            name = target_name(target)
            yield (
                f"no plan for {name} yet: on a host with such a GPU `trt-build repo {models} --out"
                f" {name} --target {name}`, then `trt-build merge {out} {name} --out MERGED`"
            )


def check_served(serve_as: str, flavor: str) -> None:
    """Raise UsageError if Triton's TensorRT backend cannot load the plans."""
    if serve_as == "tensorrt_plan" and flavor == "tensorrt-rtx":
        raise UsageError(
            "Triton's TensorRT backend cannot load plans of TensorRT for RTX",
            fix=(
                "remove --serve-as to use the Python runtime, or build with --flavor tensorrt on "
                "a GPU host"
            ),
        )
