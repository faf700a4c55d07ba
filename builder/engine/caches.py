"""Files that outlive a run on this machine: the cache folder, the GPU's timing cache, and locks."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from builder.engine import flavor, gpu
from builder.errors import EnvironmentProblem

CACHE_VARIABLE = "TRT_BUILD_CACHE"
FIX = (
    f"{CACHE_VARIABLE} names a folder that you may write to: the timing cache and the GPU's lock"
    " are there"
)


def cache_folder() -> Path:
    """The cache folder: TRT_BUILD_CACHE, else trt-build in the user's cache folder (XDG_CACHE_HOME,
    ~/.cache). It may not exist yet.
    """
    configured = os.environ.get(CACHE_VARIABLE)
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "trt-build"


def with_folder(path: Path) -> Path:
    """The path, after its folder was created. Raises EnvironmentProblem if the folder cannot be
    created or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path.parent} cannot be created: {error.strerror}", fix=FIX
        ) from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise EnvironmentProblem(f"the folder {path.parent} is not writable", fix=FIX)
    return path


def timing_cache(requested: Path | None = None) -> Path:
    """The requested timing cache, or that of this GPU, driver and TensorRT. Measurements are only
    valid for one combination of these.
    """
    if requested:
        if requested.is_dir():
            raise EnvironmentProblem(
                f"the timing cache {requested} is a folder",
                fix="pass the path of a file; it is created if missing",
            )
        return requested
    here = gpu.identity() or {"name": "no-gpu"}
    words = [
        *map(str, here.values()),
        "tensorrt",
        flavor.installed_version(flavor.chosen()) or "unknown",
    ]
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-").lower()
    return cache_folder() / "timing" / f"{name}.cache"


def digest(path: Path) -> str | None:
    """SHA-256 of a timing cache in hexadecimal; None if there is none yet."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def gpu_lock() -> Path:
    """The lock file of builds that time tactics on this GPU. Two concurrent builds would distort
    each other's times.
    """
    device = gpu.current()
    return cache_folder() / "locks" / f"gpu-{device.uuid if device else 'none'}.lock"
