"""The folder of one model: config.pbtxt, 1/, goldens/, warmup/ and trt-build.json."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform as host
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import builder
from builder.triton import batching, goldens, warmup
from builder.triton.artifact import IO, ModelArtifact
from builder.triton.config import config, config_text, module_dtypes, served_dtypes, tensorrt_version

VERSION = "1"
SIDECAR = "trt-build.json"
FORMAT = 1


def write(artifact: ModelArtifact, folder: Path, *, base: Path | None = None) -> None:
    """Write the model's files into `folder`, which is empty; nothing outside it is touched."""
    message = config(artifact, base=base)
    (folder / VERSION).mkdir()
    (folder / "config.pbtxt").write_text(config_text(message))
    _version(artifact, message, folder / VERSION)
    warmup.write(artifact, message, folder)
    goldens.save(artifact.goldens, folder / goldens.FOLDER)
    _json(folder / SIDECAR, sidecar(artifact, message, _hashes(folder)))


def sidecar(artifact: ModelArtifact, message: Any, hashes: Mapping[str, str]) -> dict[str, Any]:
    """What trt-build.json says: what verify needs, and where everything came from."""
    served = message.parameters["trt_build.serve_as"].string_value
    own, dtypes = module_dtypes(artifact), served_dtypes(artifact, served)
    spec = artifact.spec
    return {
        "format": FORMAT,
        "name": spec.name,
        "serve_as": served,
        "precision": spec.precision,
        "tolerance": {"rtol": spec.tolerance.rtol, "atol": spec.tolerance.atol},
        "inputs": [_io(io, own[io.name], dtypes[io.name]) for io in artifact.inputs],
        "outputs": [_io(io, own[io.name], dtypes[io.name]) for io in artifact.outputs],
        "profiles": [_spans(ranges) for ranges in artifact.ranges()],
        "batching": {"max_batch_size": message.max_batch_size, "reason": batching.choose(artifact).reason},
        "source": {
            "file": spec.path.name,
            "module": spec.module,
            "sha256": message.parameters["trt_build.source_sha256"].string_value or None,
        },
        "versions": _versions(artifact),
        "notes": dict(artifact.notes),
        "files": dict(hashes),
    }


def _version(artifact: ModelArtifact, message: Any, folder: Path) -> None:
    """A plan alone where Triton's TensorRT backend serves it: object stores fetch the whole folder on each load."""
    if artifact.plan:
        (folder / "model.plan").write_bytes(artifact.plan)
    _json(folder / "plan.json", {**artifact.plan_facts, "serving": _serving(artifact)})
    if message.backend == "python":
        (folder / "lowered.pt").write_bytes(artifact.lowered)
        (folder / "model.py").write_bytes((files("builder") / "templates" / "runtime" / "model.py").read_bytes())


def _serving(artifact: ModelArtifact) -> dict[str, Any]:
    """What the Python runtime reads of plan.json: the module's own tensors, and the shapes it may be given."""
    own = module_dtypes(artifact)
    return {
        "inputs": [_io(io, own[io.name], own[io.name]) for io in artifact.inputs],
        "outputs": [_io(io, own[io.name], own[io.name]) for io in artifact.outputs],
        "profiles": [_spans(ranges) for ranges in artifact.ranges()],
    }


def _io(io: IO, own: str, served: str) -> dict[str, Any]:
    return {"name": io.name, "dtype": own, "shape": list(io.shape), "served_dtype": served}


def _spans(ranges: Mapping[str, Any]) -> dict[str, dict[str, list[int]]]:
    return {name: dict(zip(("min", "opt", "max"), map(list, spans), strict=True)) for name, spans in ranges.items()}


def _versions(artifact: ModelArtifact) -> dict[str, str | None]:
    return {
        "trt_build": builder.__version__,
        "python": host.python_version(),
        "torch": importlib.metadata.version("torch"),
        "flavour": artifact.plan_facts.get("flavour"),
        "tensorrt": tensorrt_version(artifact.plan_facts),
    }


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, default=str) + "\n")
