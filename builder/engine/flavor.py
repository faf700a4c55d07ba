"""The TensorRT flavor of this process. All differences between the flavors are in this file.

`trt` is the selected module: `tensorrt` (8, 10, 11) or `tensorrt_rtx` (1.x). One process uses one
flavor, which is fixed when `trt` is first used. Every other file of trt-build uses `from
builder.engine.flavor import trt`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from builder.choices import FLAVORS
from builder.errors import EnvironmentProblem, UsageError

MODULES = {flavor: flavor.replace("-", "_") for flavor in FLAVORS}
ENVIRONMENT_VARIABLE = "TRT_BUILD_FLAVOR"
_FORMER_VARIABLE = "TRT_BUILD_FLAVOUR"

_loaded: ModuleType | None = None
_selected: str | None = None


def installed() -> list[str]:
    """The flavors whose Python package is installed. Nothing is imported."""
    return [
        name for name, module in MODULES.items() if importlib.util.find_spec(module)
    ]


def select(name: str = "auto") -> str:
    """Select and return the flavor of this process: `auto`, `tensorrt` or `tensorrt-rtx`.

    Raises UsageError if another flavor is already loaded, EnvironmentProblem if none is installed.
    """
    global _selected
    chosen = resolve(name)
    if _loaded is not None and _loaded.__name__ != MODULES[chosen]:
        raise UsageError(
            f"this process already uses {_loaded.__name__}, and a process can use only"
            " one flavor"
        )
    _selected = chosen
    return chosen


def resolve(name: str = "auto") -> str:
    """The flavor that `name` selects here. `auto` selects `tensorrt` if it can be imported and a
    GPU responds, otherwise RTX.
    """
    if name == "auto":
        name = _from_environment()
    here = installed()
    if name == "auto":
        usable = [flavor for flavor in here if flavor == "tensorrt-rtx" or has_gpu()]
        if not usable:
            raise EnvironmentProblem(
                "no TensorRT that can build here is installed",
                fix="pip install 'trt-build[rtx]' (needs no GPU)",
            )
        return usable[0]
    if name not in MODULES:
        raise UsageError(
            f"unknown flavor {name!r}", fix=f"use one of auto, {', '.join(MODULES)}"
        )
    if name not in here:
        extra = "rtx" if name == "tensorrt-rtx" else "tensorrt"
        raise EnvironmentProblem(
            f"{MODULES[name]} is not installed", fix=f"pip install 'trt-build[{extra}]'"
        )
    return name


def _from_environment() -> str:
    former = os.environ.get(_FORMER_VARIABLE, "auto")
    return os.environ.get(ENVIRONMENT_VARIABLE, former)


def because(requested: str = "auto") -> str:
    """The reason for the choice of `resolve`, as text."""
    if requested != "auto":
        return "as requested"
    if _from_environment() != "auto":
        return f"${ENVIRONMENT_VARIABLE} is set to it"
    if resolve() == "tensorrt":
        return "a CUDA device was found"
    if "tensorrt" not in installed():
        return "tensorrt is not installed here"
    return "no CUDA device found"


def has_gpu() -> bool:
    """Whether the CUDA driver reports at least one device. Calls the driver directly, so torch is
    not imported.
    """
    from builder.engine import gpu

    return gpu.driver() is not None


def chosen() -> str:
    """The flavor that this process uses or would use, without loading it."""
    return _selected or resolve()


def needs_no_gpu() -> bool:
    """Whether this process's flavor builds plans on a machine without a GPU."""
    return chosen() == "tensorrt-rtx"


def is_only_rtx() -> bool:
    """Whether every process on this machine uses TensorRT for RTX without a GPU. It may then be
    loaded before a fork. With a GPU it may not, because a CUDA context does not survive a fork.
    """
    return installed() == ["tensorrt-rtx"] and not has_gpu()


@cache
def installed_version(name: str) -> str | None:
    """The version of a flavor's package, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(MODULES[name])
    for distribution in (
        MODULES[name],
        *(f"{MODULES[name]}_cu{cuda}" for cuda in (13, 12, 11)),
    ):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    source = None
    if spec and spec.origin:
        source = Path(spec.origin)
    match = re.search(
        r"^__version__ *= *[\"']([^\"']+)",
        source.read_text(encoding="utf-8") if source else "",
        re.MULTILINE,
    )
    return match[1] if match else None  # unpacked without its metadata


def load() -> ModuleType:
    """The selected TensorRT module. Polygraphy then uses it, too."""
    global _loaded
    if _loaded is None:
        name = chosen()
        if name == "tensorrt-rtx":
            os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"
            import polygraphy.config

            polygraphy.config.USE_TENSORRT_RTX = True
        _loaded = importlib.import_module(MODULES[name])
        _set_in_polygraphy(_loaded)
    return _loaded


def _set_in_polygraphy(library: ModuleType) -> None:
    """Replace the library in the modules of Polygraphy that are imported already: each chose one
    for itself when it was imported.
    """
    for path, module in list(sys.modules.items()):
        known = getattr(module, "trt", None) if path.startswith("polygraphy.") else None
        # polygraphy.backend.trt is a package
        if known is not None and not isinstance(known, ModuleType):
            module.trt = library  # type: ignore[attr-defined]


def name() -> str:
    """The flavor of this process: `tensorrt` or `tensorrt-rtx`."""
    return next(
        flavor for flavor, module in MODULES.items() if module == load().__name__
    )


def version() -> tuple[int, ...]:
    """The loaded library's version, e.g. (8, 6, 0) or (1, 7, 1, 116)."""
    return tuple(
        int(part) for part in load().__version__.split(".")[:4] if part.isdigit()
    )


class _Lazy:
    """The selected TensorRT module, imported when an attribute is first read."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(load(), attribute)


trt: Any = _Lazy()
