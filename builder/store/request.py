"""What a model is to be built from, known without torch: the key of what is published.

It covers more than the plan's key, for it also decides goldens, config and runtime, and it is
coarser: a version of all of our code, the file's bytes instead of the graph in it. Equal requests
publish equal models; where they differ, the plan's own key may still be found.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.engine import BuildOptions, caches, flavour, gpu
from builder.manifest import ModelSpec
from builder.store import sources
from builder.store.canonical import digest, plain
from builder.store.hashes import Hashes

ELSEWHERE = ("name", "path", "manifest", "goldens", "libraries", "limits", "targets")
"""Fields of a spec that say where something is, which is covered by hash, or that decide nothing of
the result.
"""

PACKAGES = ("torch", "polygraphy", "tritonclient", "numpy")

SERVED = ("serve_as", "layout", "torch_steps", "options", "flavour", "tensorrt", "gpu")
"""Parts of a request that decide what is built and how it is served, but not the goldens."""


def request(
    spec: ModelSpec,
    hashes: Hashes,
    *,
    serve_as: str = "auto",
    layout: str = "auto",
    torch_steps: str = "auto",
    options: BuildOptions | None = None,
    plugins: Sequence[str] = (),
) -> dict[str, Any]:
    """The parts, JSON-able: file, manifest, options, versions, flavor and GPU. Raises OSError for
    a missing file.
    """
    parts = {
        **shared_request(spec, hashes, plugins),
        "serve_as": serve_as,
        "layout": layout,
        "torch_steps": torch_steps,
        "options": _options(options or BuildOptions()),
        **machine(),
    }
    found: dict[str, Any] = plain(parts)
    return found


def shared_request(spec: ModelSpec, hashes: Hashes, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """The parts of the request that no target decides, and the manifest's own ones. Raises OSError
    for a missing file.
    """
    fields = dataclasses.asdict(spec).items()
    said = {name: value for name, value in fields if name not in ELSEWHERE}
    parts = {
        "source": hashes.sha256(spec.path),
        **said,
        "goldens": hashes.sha256(spec.goldens) if spec.goldens else None,
        "libraries": [hashes.sha256(path) for path in spec.libraries],
        "state": _states(spec, hashes),
        "calibration": _calibration(spec, hashes),
        "plugins": {plugin: _plugin(plugin, hashes) for plugin in plugins},
        "platform": _platform(),
        "trt_build": sources.everything(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }
    found: dict[str, Any] = plain(parts)
    return found


def goldens_key(name: str, parts: Mapping[str, Any]) -> str:
    """The key of the goldens of the model `name` with this request: of all that the original
    module's answers depend on. Targets that differ in GPU, TensorRT or its options share it.
    """
    kept = {part: value for part, value in parts.items() if part not in SERVED}
    return digest({"goldens of": name, "request": kept})


def _states(spec: ModelSpec, hashes: Hashes) -> list[tuple[str, str, str | None]]:
    """Each state's input and output, and the hash of its initial value."""
    return [
        (one.input, one.output, hashes.sha256(one.initial) if one.initial else None)
        for one in spec.state
    ]


def _options(options: BuildOptions) -> dict[str, Any]:
    """All of them; the timing cache by its content where tactics must come from it, else by its
    place.
    """
    said = dataclasses.asdict(options)
    if options.error_on_timing_cache_miss:
        said["timing_cache"] = caches.digest(caches.timing_cache(options.timing_cache))
    return said


def _calibration(spec: ModelSpec, hashes: Hashes) -> dict[str, Any] | None:
    """How ranges are taken, and the files' bytes in place of their names."""
    if spec.calibration is None:
        return None
    data = [
        hashes.sha256(item) if isinstance(item, Path) else item for item in spec.calibration.data
    ]
    return {**dataclasses.asdict(spec.calibration), "data": data}


def machine() -> dict[str, Any]:
    """The parts that this machine decides: the flavor, its TensorRT, and the GPU that a plan is
    built for.
    """
    name = flavour.chosen()
    return {
        "flavour": name,
        "tensorrt": flavour.installed_version(name),
        "gpu": gpu.identity() if name == "tensorrt" else None,
        "platform": _platform(),
    }


def _platform() -> str:
    return f"{platform.system()}-{platform.machine()}".lower()


def _plugin(plugin: str, hashes: Hashes) -> str:
    """A file's hash; of a module, the name alone: its version is its owner's to change."""
    return hashes.sha256(Path(plugin)) if Path(plugin).is_file() else plugin
