"""Reads one model or a folder of models into ModelSpecs.

All mistakes of all manifests are raised together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.errors import ManifestError, Mistake, UsageError
from builder.manifest import document, editing, folder, meaning, schema
from builder.manifest.inputs import merged_profile, specs_from_sample
from builder.manifest.spec import (
    GOLDENS,
    Batching,
    Calibration,
    Fallback,
    Limits,
    ModelSpec,
    Profile,
    Runtime,
    Sequences,
    State,
    TensorSpec,
    Tolerance,
    Versions,
)
from builder.manifest.suggest import did_you_mean

ZEROS = "zeros"
AUTO = "auto"
"""The value of keep_fp32 for the layers whose values float16 cannot represent."""
_COPIED = (
    "module",
    "precision",
    "io",
    "instances",
    "layout",
    "pad",
    "unroll_limit",
    "build",
    "constants",
    "max_lengths",
    "triton",
)
"""Keys whose value is copied to the spec unchanged."""


def load(
    path: Path | str,
    *,
    only: Sequence[str] = (),
    inputs: Sequence[TensorSpec] | None = None,
    sample: Path | None = None,
    precision: str | None = None,
    state: str | None = None,
    without: dict[str, ManifestError] | None = None,
) -> list[ModelSpec]:
    """The models at `path`, by name: a folder, a model's own folder, a model file, or a manifest.

    `only` selects models by name. `inputs`, or a `sample` .npz, describe models without a manifest;
    the sample is also the golden input. If `inputs` is None, errors suggest neither. `precision`
    and `state` ("implicit", "explicit") override every manifest. If another model has a manifest,
    models without one are left out, and added to `without` if given. Raises ManifestError with
    every mistake, UsageError if there is no model, and PermissionError for an unreadable manifest.
    """
    models = _chosen(folder.find_models(Path(path)), only)
    if without is not None and not (inputs or sample):
        models = _with_manifest(models, without, inputs)
    if (inputs or sample) and all(files.manifest for files in models):
        raise _unread(models[0])
    mistakes = list(folder.mistakes(models))
    specs = [
        _spec(files, inputs, sample, mistakes)
        for files in models
        if files.model is not None
    ]
    if mistakes:
        raise ManifestError(
            sorted(mistakes, key=lambda mistake: (mistake.file, mistake.line))
        )
    ready = [spec for spec in specs if spec is not None]
    return [_overridden(spec, precision, state) for spec in ready]


def _with_manifest(
    models: list[folder.ModelFiles],
    without: dict[str, ManifestError],
    inputs: Sequence[TensorSpec] | None,
) -> list[folder.ModelFiles]:
    """The models with a manifest, and the errors of the others. If no model has a manifest, all
    models.
    """
    described = [files for files in models if files.manifest]
    if described:
        without |= {
            files.name: ManifestError([_no_manifest(files, inputs)])
            for files in models
            if not files.manifest
        }
    return described or models


def _unread(files: folder.ModelFiles) -> UsageError:
    message = "--input and --sample are for models without a manifest, and every model has one"
    return UsageError(
        message,
        where=str(files.manifest),
        fix="remove the option, or edit the manifest",
    )


def _overridden(spec: ModelSpec, precision: str | None, state: str | None) -> ModelSpec:
    if state and spec.state:
        spec = replace(spec, sequences=replace(spec.sequences, mode=state))
    return replace(spec, precision=precision) if precision else spec


def variant(spec: ModelSpec, values: Mapping[str, Any]) -> ModelSpec:
    """The model with the manifest that `editing.edit` would write with these values. No file is
    written.

    Raises UsageError as `edit` does, and ManifestError if the values are invalid.
    """
    assert spec.manifest is not None
    read = document.parsed(editing.preview(spec.manifest, values), str(spec.manifest))
    _check(read, spec.manifest)
    if read.mistakes:
        raise ManifestError(read.mistakes)
    return from_data(folder.ModelFiles(spec.name, spec.path, spec.manifest), read.data)


def manifest_location(spec: ModelSpec, *route: str | int) -> str:
    """`models/vad.yaml:7`: file and line of the value at `route` in the spec's manifest.

    The path of the model file, if there is no manifest.
    """
    if spec.manifest is None:
        return str(spec.path)
    return f"{spec.manifest}:{document.read(spec.manifest).line(route)}"


def _chosen(
    models: list[folder.ModelFiles], only: Sequence[str]
) -> list[folder.ModelFiles]:
    names = [files.name for files in models]
    for name in only:
        if name not in names:
            raise UsageError(
                f"no model has the name {name!r}", fix=did_you_mean(name, names)
            )
    return [files for files in models if not only or files.name in only]


def _spec(
    files: folder.ModelFiles,
    inputs: Sequence[TensorSpec] | None,
    sample: Path | None,
    mistakes: list[Mistake],
) -> ModelSpec | None:
    if files.manifest is not None:
        read = read_manifest(files.manifest)
        mistakes.extend(read.mistakes)
        if read.mistakes:
            return None
        return from_data(files, read.data)
    if inputs or sample:
        return from_inputs(
            files, inputs or specs_from_sample(Path(str(sample))), sample
        )
    mistakes.append(_no_manifest(files, inputs))
    return None


def _no_manifest(
    files: folder.ModelFiles, inputs: Sequence[TensorSpec] | None
) -> Mistake:
    assert files.model is not None
    if broken := folder.broken_link(files.model):
        return broken
    fix = f"run trt-build init {files.model}"
    if inputs is not None:
        fix += (
            ", or pass --input image:float32:batch(1,8,32)x3x224x224"
            " or --sample inputs.npz"
        )
    return Mistake(
        str(files.model), 1, "the model has no manifest, so its inputs are unknown", fix
    )


def read_manifest(path: Path) -> document.Document:
    """Read a manifest. `mistakes` has every error of syntax, schema and consistency."""
    read = document.read(path)
    _check(read, path)
    return read


def _check(read: document.Document, path: Path) -> None:
    if read.data is not None or not read.mistakes:
        schema.check(read)
        meaning.check(read, path.parent)


def from_inputs(
    files: folder.ModelFiles, inputs: Sequence[TensorSpec], sample: Path | None
) -> ModelSpec:
    """The spec of a model without a manifest."""
    assert files.model is not None
    return ModelSpec(
        files.name,
        files.model,
        tuple(inputs),
        profiles=(merged_profile(inputs),),
        goldens=sample,
    )


def from_data(files: folder.ModelFiles, data: Mapping[str, Any]) -> ModelSpec:
    """The spec for the validated data of a manifest."""
    assert files.model is not None and files.manifest is not None
    written = _profiles(data)
    batch_sizes = _batch_sizes(data, written[0])
    folder_of_manifest = files.manifest.parent
    return ModelSpec(
        name=files.name,
        path=files.model,
        inputs=tuple(_tensor(item, written) for item in data["inputs"]),
        profiles=(*_static_profiles(data, written[0], batch_sizes), *written),
        batch_sizes=batch_sizes,
        defaults={
            item["name"]: item["default"]
            for item in data["inputs"]
            if "default" in item
        },
        tolerance=Tolerance(**data.get("tolerance", {})),
        batching=Batching(**_tuples(data.get("batching", {}))),
        fallback=_fallback(data.get("fallback", {})),
        manifest=files.manifest,
        state=tuple(_state(item, folder_of_manifest) for item in data.get("state", ())),
        runtime=Runtime(**data.get("runtime", {})),
        limits=Limits(**data.get("limits", {})),
        versions=Versions(**data.get("versions", {})),
        sequences=Sequences(**data.get("sequences", {})),
        **_values(data, folder_of_manifest),
    )


def _values(data: Mapping[str, Any], folder_of_manifest: Path) -> dict[str, Any]:
    """The fields of a spec for optional keys: the value of the manifest, or a list or path of it,
    or the calibration.
    """
    values = {key: data[key] for key in _COPIED if key in data}
    for key in ("outputs", "targets"):
        if key in data:
            values[key] = tuple(data[key])
    if "keep_fp32" in data:
        names = data["keep_fp32"]
        if isinstance(names, str):
            names = [names]
        values["keep_fp32"] = tuple(pattern for pattern in names if pattern != AUTO)
        values["keep_fp32_auto"] = AUTO in names
    if "calibration" in data:
        values["calibration"] = _calibration(data["calibration"], folder_of_manifest)
    if "goldens" in data:
        values["goldens"] = folder_of_manifest / data["goldens"]
    if "libraries" in data:
        values["libraries"] = tuple(
            folder_of_manifest / name for name in data["libraries"]
        )
    return values


def _calibration(section: Mapping[str, Any], folder: Path) -> Calibration:
    files = tuple(
        name if name == GOLDENS else folder / name for name in section["data"]
    )
    return Calibration(**{**_tuples(section), "data": files})


def _state(item: Mapping[str, Any], folder: Path) -> State:
    initial = item.get("initial", ZEROS)
    return State(
        item["input"], item["output"], None if initial == ZEROS else folder / initial
    )


def _fallback(section: Mapping[str, Any]) -> Fallback:
    return Fallback(
        **{**_tuples(section), "ranges": _ranges(section.get("ranges", {}))}
    )


def _tuples(section: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in section.items()
    }


def _profiles(data: Mapping[str, Any]) -> tuple[Profile, ...]:
    written = data.get("profiles", [data.get("dims", {})])
    return tuple(map(_ranges, written))


def _batch_sizes(data: Mapping[str, Any], dims: Profile) -> tuple[int, ...]:
    written = data.get("batch_sizes", ())
    sizes = written
    if written == AUTO:
        sizes = dims[_batch_axis(data)]
    return tuple(sorted(set(sizes)))


def _static_profiles(
    data: Mapping[str, Any], dims: Profile, sizes: Sequence[int]
) -> Iterator[Profile]:
    """A profile of one batch for each size, those nearest to the usual batch first. The profile of
    `dims` is not repeated.

    They precede the profile of `dims`: where two profiles have the same distance to a request,
    Triton's TensorRT backend takes the first.
    """
    if not sizes:
        return
    axis = _batch_axis(data)
    usual = dims[axis][1]
    for size in sorted(sizes, key=lambda size: (abs(size - usual), size)):
        if dims[axis] != (size, size, size):
            yield {**dims, axis: (size, size, size)}


def _batch_axis(data: Mapping[str, Any]) -> str:
    return str(data["inputs"][0]["shape"][0])


def _ranges(written: Mapping[str, Mapping[str, int]]) -> Profile:
    return {
        axis: (span["min"], span["opt"], span["max"]) for axis, span in written.items()
    }


def _tensor(item: Mapping[str, Any], profiles: tuple[Profile, ...]) -> TensorSpec:
    """The input, with a range for each axis that includes all profiles; opt is the first's."""
    dims = {}
    for axis in (axis for axis in item["shape"] if isinstance(axis, str)):
        lows, opts, highs = zip(*(profile[axis] for profile in profiles), strict=True)
        dims[axis] = (min(lows), opts[0], max(highs))
    return TensorSpec(item["dtype"], tuple(item["shape"]), dims=dims, name=item["name"])
