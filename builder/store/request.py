"""The request of a model, known without torch: the key of the published model.

It includes more than a plan's key, because it also decides goldens, config and runtime. It is also
coarser: it has one version of all of trt-build's code, and the file's bytes instead of its graph.
Equal requests publish equal models. If requests differ, the plan's own key may still be found.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.engine import BuildOptions, caches, flavor, gpu
from builder.manifest import ModelSpec
from builder.store import sources
from builder.store.canonical import digest, normalized
from builder.store.hashes import Hashes
from builder.versions import package_version

ELSEWHERE = ("name", "path", "manifest", "goldens", "libraries", "limits", "targets")
"""Fields of a spec that are excluded: locations of files that are included by hash, and fields that
do not affect the result.
"""

PACKAGES = ("torch", "polygraphy", "tritonclient", "numpy")

SERVED = ("serve_as", "layout", "torch_steps", "options", "flavor", "tensorrt", "gpu")
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
    """The parts as JSON data: file, manifest, options, versions, flavor and GPU. Raises OSError if
    a file is missing.
    """
    parts = {
        **shared_request(spec, hashes, plugins),
        "serve_as": serve_as,
        "layout": layout,
        "torch_steps": torch_steps,
        "options": _options(options or BuildOptions()),
        **machine(),
    }
    request_parts: dict[str, Any] = normalized(parts)
    return request_parts


def shared_request(
    spec: ModelSpec, hashes: Hashes, plugins: Sequence[str] = ()
) -> dict[str, Any]:
    """The parts of the request that do not depend on a target, and the manifest's parts. Raises
    OSError if a file is missing.
    """
    fields = dataclasses.asdict(spec).items()
    settings = {name: value for name, value in fields if name not in ELSEWHERE}
    del settings["tolerance"]["rounded"]  # it follows from the model
    parts = {
        "source": hashes.sha256(spec.path),
        **settings,
        "goldens": hashes.sha256(spec.goldens) if spec.goldens else None,
        "libraries": [hashes.sha256(path) for path in spec.libraries],
        "state": _states(spec, hashes),
        "calibration": _calibration(spec, hashes),
        "plugins": {plugin: _plugin(plugin, hashes) for plugin in plugins},
        "platform": _platform(),
        "trt_build": sources.version_of_all(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }
    request_parts: dict[str, Any] = normalized(parts)
    return request_parts


def goldens_key(name: str, parts: Mapping[str, Any]) -> str:
    """The key of the goldens of the model `name` with this request: of all that the original
    module's outputs depend on.

    Targets that differ in GPU, TensorRT or its options share the key.
    """
    goldens_parts = {part: value for part, value in parts.items() if part not in SERVED}
    return digest({"goldens of": name, "request": goldens_parts})


def _states(spec: ModelSpec, hashes: Hashes) -> list[tuple[str, str, str | None]]:
    """Each state's input and output, and the hash of its initial value."""
    return [
        (
            state.input,
            state.output,
            hashes.sha256(state.initial) if state.initial else None,
        )
        for state in spec.state
    ]


def _options(options: BuildOptions) -> dict[str, Any]:
    """All options. The timing cache is included by content if tactics must come from it, else by
    path.
    """
    fields = dataclasses.asdict(options)
    if options.error_on_timing_cache_miss:
        fields["timing_cache"] = caches.digest(
            caches.timing_cache(options.timing_cache)
        )
    return fields


def _calibration(spec: ModelSpec, hashes: Hashes) -> dict[str, Any] | None:
    """The calibration method, and the bytes of the files in place of their names."""
    if spec.calibration is None:
        return None
    data = [
        hashes.sha256(item) if isinstance(item, Path) else item
        for item in spec.calibration.data
    ]
    return {**dataclasses.asdict(spec.calibration), "data": data}


def machine() -> dict[str, Any]:
    """The parts that depend on this machine: the flavor, its TensorRT, and the GPU that a plan is
    built for.
    """
    name = flavor.chosen()
    return {
        "flavor": name,
        "tensorrt": flavor.installed_version(name),
        "gpu": gpu.identity() if name == "tensorrt" else None,
        "platform": _platform(),
    }


def _platform() -> str:
    return f"{platform.system()}-{platform.machine()}".lower()


def _plugin(plugin: str, hashes: Hashes) -> str:
    """The hash of a plugin file. For a module only the name, because its version is the owner's to
    change.
    """
    if Path(plugin).is_file():
        return hashes.sha256(Path(plugin))
    return plugin
