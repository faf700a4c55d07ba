"""The folder of one model: config.pbtxt, 1/, goldens/, warmup/ and trt-build.json."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform as host
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

import builder
from builder.manifest import ModelSpec
from builder.store import GENERATED, digest, published
from builder.triton import batching, ensemble, goldens, padding, sequences, warmup
from builder.triton.artifact import (
    IO,
    BranchFiles,
    EnsembleArtifact,
    ModelArtifact,
    Ranges,
    SegmentFiles,
)
from builder.triton.config import (
    config,
    config_text,
    module_dtypes,
    read_config,
    served_dtypes,
    sha256,
    tensorrt_version,
)
from builder.triton.dtypes import by_config
from builder.versions import package_version

VERSION = "1"
RUNTIME = "trt_build_runtime"
"""The package of the Python runtime beside its model.py."""
DIGITS = 12
"""The number of hexadecimal digits of the digest in a step's name."""


def write(artifact: ModelArtifact, folder: Path) -> None:
    """Write the model's files into `folder`, which is empty. Nothing outside is changed."""
    message = config(artifact)
    (folder / VERSION).mkdir()
    (folder / "config.pbtxt").write_text(config_text(message))
    _version(artifact, message, folder / VERSION)
    warmup.write(artifact, message, folder)
    platform = message.parameters["trt_build.serve_as"].string_value
    sequences.write(
        artifact, served_dtypes(artifact, platform), message.max_batch_size, folder
    )
    goldens.save(artifact.goldens, folder / goldens.FOLDER)
    _sidecar(folder, sidecar(artifact, message, _hashes(folder)))


def write_ensemble(artifact: EnsembleArtifact, folder: Path) -> None:
    """Write the folder of the ensemble. Its steps' folders are ordinary models."""
    steps = {step.spec.name: config(step) for step in artifact.steps}
    message = ensemble.ensemble_config(artifact, steps)
    (folder / VERSION).mkdir()
    # Triton requires a version folder, and object stores hold no empty ones.
    _json(folder / VERSION / "steps.json", list(steps))
    (folder / "config.pbtxt").write_text(config_text(message))
    goldens.save(artifact.goldens, folder / goldens.FOLDER)
    _sidecar(folder, ensemble_sidecar(artifact, message, steps, _hashes(folder)))


def name_by_content(folder: Path, base: str) -> str:
    """Write the name `<base>.<digest>` into the config and trt-build.json of the step in `folder`,
    and return it.

    Equal steps have equal names. `step` in trt-build.json is `base`.
    """
    record = {**published.read(folder / published.SIDECAR), "name": base, "step": base}
    record.pop(published.SEAL, None)
    name = f"{base}.{digest(record)[:DIGITS]}"
    file = folder / "config.pbtxt"
    message = read_config(file)
    message.name = name
    file.write_text(config_text(message))
    files = {**record["files"], file.name: sha256(file.read_bytes())}
    text = file.read_text(encoding="utf-8")
    published.write(folder, {**record, "name": name, "files": files, GENERATED: text})
    return name


def seal_steps(folder: Path, names: Sequence[str]) -> None:
    """Add the names of the steps beside `folder`, and the SHA-256 of each one's trt-build.json, to
    an ensemble's trt-build.json.
    """
    sidecars = {name: folder.parent / name / published.SIDECAR for name in names}
    seals = {name: sha256(path.read_bytes()) for name, path in sidecars.items()}
    record = published.read(folder / published.SIDECAR)
    published.write(
        folder, {**record, published.STEPS: list(names), published.SEALS: seals}
    )


def ensemble_sidecar(
    artifact: EnsembleArtifact,
    message: pb.ModelConfig,
    steps: Mapping[str, Any],
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """The content of an ensemble's trt-build.json: that of any model, and `steps`."""
    whole = _without_files(artifact)
    facts = next((step.plan_facts for step in artifact.steps if step.plan), {})
    dtypes = module_dtypes(whole)
    served = {
        tensor.name: by_config(pb.DataType.Name(tensor.data_type)).name
        for tensor in (*message.input, *message.output)
    }
    return {
        **_common(artifact.spec, message),
        "serve_as": "ensemble",
        "inputs": [_io(io, dtypes[io.name], served[io.name]) for io in artifact.inputs],
        "outputs": [
            _io(io, dtypes[io.name], served[io.name]) for io in artifact.outputs
        ],
        "profiles": [_spans(ranges) for ranges in whole.ranges()],
        "batching": {
            "max_batch_size": message.max_batch_size,
            "reason": _batching_of_steps(steps),
        },
        "versions": versions(facts),
        "notes": dict(artifact.notes),
        published.STEPS: list(steps),
        "files": dict(hashes),
    }


def _batching_of_steps(steps: Mapping[str, pb.ModelConfig]) -> str:
    """Why the ensemble batches or not."""
    without = [name for name, step in steps.items() if not step.max_batch_size]
    if without:
        return f"not every step batches: {', '.join(without)}"
    return "every step batches"


def _without_files(artifact: EnsembleArtifact) -> ModelArtifact:
    """The ensemble as a model with the same endpoint."""
    tensors = (artifact.inputs, artifact.outputs, artifact.profiles)
    return ModelArtifact(artifact.spec, *tensors, None, {}, b"", artifact.goldens)


def sidecar(
    artifact: ModelArtifact, message: pb.ModelConfig, hashes: Mapping[str, str]
) -> dict[str, Any]:
    """The content of trt-build.json: the facts for verify, and the provenance."""
    served = message.parameters["trt_build.serve_as"].string_value
    wire_dtypes = served_dtypes(artifact, served)
    return {
        **_common(artifact.spec, message),
        "serve_as": served,
        **_endpoint(artifact, wire_dtypes),
        "state": sequences.described(artifact, wire_dtypes, message.max_batch_size),
        "profiles": [_spans(ranges) for ranges in artifact.ranges()],
        "batching": {
            "max_batch_size": message.max_batch_size,
            "reason": batching.choose(artifact).reason,
        },
        "versions": versions(artifact.plan_facts),
        "notes": dict(artifact.notes),
        "segments": [segment.kind for segment in artifact.segments],
        "step_of": artifact.step_of,
        "internal": artifact.step_of is not None,
        "files": dict(hashes),
    }


def _endpoint(
    artifact: ModelArtifact, wire_dtypes: Mapping[str, str]
) -> dict[str, Any]:
    """The inputs and outputs that clients see."""
    module_types = module_dtypes(artifact)
    return {
        "inputs": [
            {
                **_io(io, module_types[io.name], wire_dtypes[io.name]),
                **_default(artifact, io),
            }
            for io in artifact.client_inputs()
        ],
        "outputs": [
            {
                **_io(io, module_types[io.name], wire_dtypes[io.name]),
                **_optional(artifact, io),
            }
            for io in artifact.client_outputs()
        ],
    }


def _common(spec: ModelSpec, message: pb.ModelConfig) -> dict[str, Any]:
    return {
        "format": published.FORMAT,
        "name": spec.name,
        "precision": spec.precision,
        "tolerance": {
            "rtol": spec.tolerance.rtol,
            "atol": spec.tolerance.atol,
            "noise": spec.tolerance.noise,
            **_rounded(spec.tolerance.rounded),
        },
        "source": {
            "file": spec.path.name,
            "module": spec.module,
            "sha256": message.parameters["trt_build.source_sha256"].string_value
            or None,
        },
    }


def _rounded(outputs: Mapping[str, str]) -> dict[str, Any]:
    """The outputs that depend on results of 16 bits, if there are any."""
    return {"rounded": dict(outputs)} if outputs else {}


def _version(artifact: ModelArtifact, message: pb.ModelConfig, folder: Path) -> None:
    """Write the version folder. It has only the plan if Triton's TensorRT backend serves it: object
    stores fetch the whole folder on each load.
    """
    facts = {
        **_plan_facts(artifact.plan_facts),
        "serving": _serving(artifact, message.max_batch_size),
    }
    if artifact.step_of:  # a step's runtime leaves its outputs on their device
        facts["step_of"] = artifact.step_of
        # equal steps have equal names, see name_by_content
        facts.pop("build_seconds", None)
    if artifact.segments:
        facts["segments"] = [
            _segment(segment, f"segment_{number}", folder)
            for number, segment in enumerate(artifact.segments)
        ]
    if artifact.spec.libraries and message.backend == "python":
        facts["libraries"] = _libraries(artifact.spec, folder)
    if message.backend == "python":
        facts["runtime"] = dataclasses.asdict(artifact.spec.runtime)
        facts["precision"] = artifact.spec.precision
    if artifact.plan:
        (folder / "model.plan").write_bytes(artifact.plan)
    _json(folder / "plan.json", facts)
    if message.backend == "python":
        _runtime(folder)
    if message.backend == "pytorch":
        (folder / "model.pt").write_bytes(artifact.lowered)
    if message.backend == "python" and not artifact.segments:
        (folder / "lowered.pt").write_bytes(artifact.lowered)


def _plan_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in one order, whether the plan was built or is from the store."""
    return dict(json.loads(json.dumps(facts, sort_keys=True, default=str)))


def _runtime(folder: Path) -> None:
    """Write the Python runtime: model.py and the package beside it."""
    runtime = files("builder") / "templates" / "runtime"
    for source in (runtime, runtime / RUNTIME):
        to = folder if source is runtime else folder / RUNTIME
        to.mkdir(exist_ok=True)
        for file in source.iterdir():
            if file.name.endswith(".py"):
                (to / file.name).write_bytes(file.read_bytes())


def _libraries(spec: ModelSpec, folder: Path) -> list[str]:
    """Copy the libraries of custom operators. Returns their names in load order."""
    (folder / "libraries").mkdir()
    names = [f"{number}_{path.name}" for number, path in enumerate(spec.libraries)]
    for name, path in zip(names, spec.libraries, strict=True):
        (folder / "libraries" / name).write_bytes(path.read_bytes())
    return names


def _segment(
    segment: SegmentFiles | BranchFiles, stem: str, folder: Path
) -> dict[str, Any]:
    """Write the files of one segment. Returns its facts for the runtime."""
    if isinstance(segment, BranchFiles):
        return _branch(segment, stem, folder)
    if not segment.parts:
        (folder / f"{stem}.pt").write_bytes(segment.lowered)
    if segment.plan:
        (folder / f"{stem}.plan").write_bytes(segment.plan)
    return {
        "kind": segment.kind,
        "inputs": [
            {"name": name, "dtype": segment.dtypes.get(name)} for name in segment.inputs
        ],
        "outputs": [
            {"name": name, "dtype": segment.dtypes.get(name)}
            for name in segment.outputs
        ],
        "profiles": [_spans(ranges) for ranges in segment.ranges],
        "plan": _plan_facts(segment.plan_facts),
        "parts": _segments(segment.parts, stem, folder),
    }


def _branch(branch: BranchFiles, stem: str, folder: Path) -> dict[str, Any]:
    (folder / f"{stem}_condition.pt").write_bytes(branch.condition)
    yes, no = branch.blocks
    return {
        "kind": "branch",
        "inputs": [{"name": name} for name in branch.inputs],
        "outputs": [{"name": name} for name in branch.outputs],
        "condition": [{"name": name} for name in branch.reads],
        "blocks": [
            _segments(yes, f"{stem}_yes", folder),
            _segments(no, f"{stem}_no", folder),
        ],
    }


def _segments(
    segments: Sequence[SegmentFiles | BranchFiles], stem: str, folder: Path
) -> list[dict[str, Any]]:
    return [
        _segment(segment, f"{stem}_{number}", folder)
        for number, segment in enumerate(segments)
    ]


def _serving(artifact: ModelArtifact, max_batch: int) -> dict[str, Any]:
    """The `serving` section of plan.json for the Python runtime: the module's tensors, the allowed
    shapes, and the states with their number of sequences.
    """
    dtypes = module_dtypes(artifact)
    states: dict[str, Any] = {}
    described = sequences.described(artifact, dtypes, max_batch)
    if described:
        states["state"] = described
        states["max_sequences"] = artifact.spec.sequences.max
    by_name = {"unknown": artifact.unknown, "too_long": artifact.too_long}
    conditions = {name: dict(values) for name, values in by_name.items() if values}
    return {
        **states,
        **padding.serving(artifact.padding),
        "inputs": [
            {
                **_io(io, dtypes[io.name], dtypes[io.name]),
                "axes": [
                    axis if isinstance(axis, str) else None for axis in spec.shape
                ],
                **_default(artifact, io),
            }
            for io, spec in zip(artifact.inputs, artifact.spec.inputs, strict=True)
        ],
        **conditions,
        "outputs": [
            {**_io(io, dtypes[io.name], dtypes[io.name]), **_flag(artifact, io)}
            for io in artifact.outputs
        ],
        "profiles": [_spans(ranges) for ranges in artifact.ranges()],
    }


def _default(artifact: ModelArtifact, io: IO) -> dict[str, Any]:
    """The value that the runtime uses for an input that a request leaves out."""
    defaults = artifact.spec.defaults
    return (
        {"optional": True, "default": defaults[io.name]} if io.name in defaults else {}
    )


def _optional(artifact: ModelArtifact, io: IO) -> dict[str, bool]:
    """Whether a response may omit an output."""
    if io.name in artifact.flags:
        return {"optional": True}
    return {}


def _flag(artifact: ModelArtifact, io: IO) -> dict[str, str]:
    """The tensor that is true if an output is not None."""
    if io.name in artifact.flags:
        return {"flag": artifact.flags[io.name]}
    return {}


def _io(io: IO, dtype: str, served: str) -> dict[str, Any]:
    return {
        "name": io.name,
        "dtype": dtype,
        "shape": list(io.shape),
        "served_dtype": served,
    }


def _spans(ranges: Ranges) -> dict[str, dict[str, list[int]]]:
    return {
        name: dict(zip(("min", "opt", "max"), map(list, spans), strict=True))
        for name, spans in ranges.items()
    }


def versions(plan_facts: Mapping[str, Any]) -> dict[str, str | None]:
    """The versions of trt-build, Python, torch and TensorRT."""
    return {
        "trt_build": builder.__version__,
        "python": host.python_version(),
        "torch": package_version("torch"),
        "flavor": plan_facts.get("flavor"),
        "tensorrt": tensorrt_version(plan_facts),
    }


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in paths
    }


def _sidecar(folder: Path, record: Mapping[str, Any]) -> None:
    text = (folder / published.CONFIG).read_text(encoding="utf-8")
    published.write(
        folder, {**json.loads(json.dumps(record, default=str)), GENERATED: text}
    )


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, default=str) + "\n")
