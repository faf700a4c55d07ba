"""Merges several repositories into one for GPUs of several kinds. Each model has a plan for each
kind, in cc_model_filenames.

Triton looks up the compute capability of an instance there. If it is missing, Triton silently loads
the default file, which must not be a plan for another GPU. The default is therefore a file that
does not exist, and its name explains the error in Triton's log. Triton never compares the plans
with each other; this module merges only plans with one interface. A plan of `hardware_compatible:
ampere_plus` is for GPUs of many kinds, which cannot be listed. It is then the default file, and
TensorRT itself rejects GPUs older than Ampere.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import PublishError, UsageError
from builder.store import GENERATED, SIDECAR, Hashes, edits, published, retired
from builder.torchscript import sha256
from builder.triton import copying, versions
from builder.triton.config import config_text, parse_config
from builder.triton.damage import damaged
from builder.triton.environment import image_lines
from builder.triton.layout import VERSION
from builder.triton.publish import Writer, publish_parts

NO_PLAN = "no-plan-for-this-gpu.plan"
AMPERE_PLUS = "ampere_plus"
"""Used as the compute capability of a plan for every GPU since Ampere without a more
specific plan.
"""
OWN = ("plan_sha256", "version", "torch_version")
"""Provenance that may differ between the build hosts."""


@dataclass(frozen=True)
class Variant:
    """One model of one repository: its folder with the identity (see copying), its config, and the
    plan's file and facts by compute capability ("9.0") or AMPERE_PLUS.
    """

    folder: Path
    identity: tuple[int, int]
    config: Any
    plans: dict[str, tuple[Path, dict[str, Any]]]


def merge(repositories: Sequence[Path], out: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Write every model of the repositories into `out`.

    Returns each name with the compute capabilities of its plans, possibly AMPERE_PLUS. They are
    empty if Triton loads no plan of the model; it is then copied, from the last repository that has
    it. If two plans are for the same capability, that of the later repository is used. Raises
    UsageError if a folder is not a repository, PublishError if two models of one name cannot be
    merged.
    """
    folders_by_model: dict[str, list[Path]] = {}
    for repository in repositories:
        for folder in _models(repository):
            folders_by_model.setdefault(folder.name, []).append(folder)
    ready = {}
    # everything is checked before anything is written
    for name, folders in folders_by_model.items():
        _refuse_loss(out / name, folders)
        with published.shaped(folders[0]):
            ready[name] = _fitting_variants(folders), _fitting_steps(folders)
    return [
        line
        for name, (whole, steps) in ready.items()
        for line in _publish(name, whole, steps, out)
    ]


def _refuse_loss(target: Path, folders: Sequence[Path]) -> None:
    """Raise UsageError if the merged model of `folders` would replace versions or changes of the
    user in `target`. Edits of a `target` that is itself merged are in the result.
    """
    versions.refuse_kept(target)
    is_merged = target.resolve() in [folder.resolve() for folder in folders]
    if is_merged and not edits.additions(target):
        return
    with Hashes() as hashes:
        edits.refuse_any(target, hashes)


def _models(repository: Path) -> list[Path]:
    """Return the folders of the models, without the steps of ensembles.

    Raises UsageError for a repository without models, PublishError for a model without a record,
    PermissionError for a model that this user cannot read.
    """
    folders = []
    if repository.is_dir():
        folders = published.recorded_folders(repository)
    for config in sorted(repository.glob("*/config.pbtxt")):
        if folders and config.parent not in folders:
            raise PublishError(
                f"{config.parent.name!r} has no {SIDECAR}, so it cannot be merged",
                where=str(config.parent),
                fix="build the model again, or move the folder out of the repository",
            )
    if not folders:
        raise UsageError(
            f"{repository} contains no model that trt-build published",
            fix="name folders that `trt-build repo` wrote",
        )
    owners = {folder: retired.step_of(folder) for folder in folders}
    return [
        folder
        for folder, owner in owners.items()
        if repository / str(owner) not in owners
    ]


def _steps(folder: Path) -> dict[str, Path]:
    """The folders of an ensemble's steps by base name, in execution order."""
    names = (published.sidecar(folder) or {}).get(published.STEPS) or ()
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise PublishError(
            f"the steps of {folder.name!r} have no names", where=str(folder)
        )
    steps = [folder.parent / name for name in names]
    return {
        published.read(step / SIDECAR).get("step") or step.name: step for step in steps
    }


def _fitting_steps(folders: Sequence[Path]) -> dict[str, list[Variant]]:
    """The variants of each step of the ensembles in `folders`; empty for other models."""
    steps_of_folders = [_steps(folder) for folder in folders]
    if any(list(steps) != list(steps_of_folders[0]) for steps in steps_of_folders):
        raise PublishError(
            f"model {folders[0].name!r} has different steps in each repository:"
            f" {' and '.join(', '.join(steps) or 'none' for steps in steps_of_folders)}",
            where=" and ".join(map(str, folders)),
            fix="build both from the same file, manifest and TensorRT",
        )
    return {
        base: _fitting_variants([steps[base] for steps in steps_of_folders])
        for base in steps_of_folders[0]
    }


def _fitting_variants(folders: Sequence[Path]) -> list[Variant]:
    variants = [_variant(folder) for folder in folders]
    for variant in variants[1:]:
        _must_fit(variants[0], variant)
    return variants


def _variant(folder: Path) -> Variant:
    identity = copying.identity(folder)
    versions.require_plain(folder)
    _must_be_whole(folder)
    if published.current(folder) != VERSION or len(published.versions(folder)) > 1:
        raise PublishError(
            f"{folder.name!r} has kept versions, and a merged model has one",
            where=str(folder),
            fix="build the repositories that are merged without `versions:`",
        )
    config = folder / "config.pbtxt"
    message = parse_config(_text(config), str(config))
    if len(message.ensemble_scheduling.step) != len(_steps(folder)):
        raise PublishError(
            f"the config of {folder.name!r} does not have the steps of its record",
            where=str(config),
            fix="build the model again",
        )
    if message.backend != "tensorrt" and message.platform != "tensorrt_plan":
        return Variant(folder, identity, message, {})
    return Variant(folder, identity, message, _plans_of(folder, message))


def _plans_of(folder: Path, message: pb.ModelConfig) -> dict[str, Any]:
    """The file and the facts of each plan by compute capability."""
    facts = _json(folder / VERSION / "plan.json")
    image_lines([facts])  # raises if the facts lack values for the .env
    plans = facts.get("plans")
    if not isinstance(plans, dict):
        return {_serves(folder, facts): (folder / VERSION / "model.plan", facts)}
    default = message.default_model_filename
    files = {**message.cc_model_filenames, AMPERE_PLUS: default}
    return {
        cc: (_plan_file(folder, cc, files), plan_facts)
        for cc, plan_facts in plans.items()
    }


def _must_be_whole(folder: Path) -> None:
    """Raise PublishError if a file differs from its published state: merging would compute a new
    hash for it. The config may have been edited.
    """
    record = _json(folder / SIDECAR)
    if published.sidecar(folder) is None or not published.is_sealed(record):
        raise PublishError(
            f"{SIDECAR} of {folder.name!r} is damaged: it has changed since publication",
            where=str(folder),
            fix="build the model again",
        )
    for name, is_there in damaged(folder, record.get("files") or {}):
        damage = (
            "damaged: it is not the file that was published" if is_there else "missing"
        )
        raise PublishError(
            f"{name} of {folder.name!r} is {damage}",
            where=str(folder),
            fix="build the model again",
        )


def _plan_file(folder: Path, capability: str, files: Mapping[str, str]) -> Path:
    """The plan that the config names for a compute capability.

    Raises PublishError if it names none, or one outside the model's version folder.
    """
    name = files.get(capability, "")
    file = folder / VERSION / name
    if Path(name).name != name or not file.is_file():
        raise PublishError(
            f"the config of {folder.name!r} names {name!r} as the plan for {capability}, which is"
            " no file of its version folder",
            where=str(folder / "config.pbtxt"),
            fix="build the model again",
        )
    return file


def _serves(folder: Path, facts: dict[str, Any]) -> str:
    """The compute capability of a plan. Raises PublishError if it is not recorded."""
    if (facts.get("options") or {}).get("hardware_compatible") == AMPERE_PLUS:
        return AMPERE_PLUS
    capabilities = facts.get("compute_capabilities") or []
    if len(capabilities) != 1:
        raise PublishError(
            f"the plan of {folder.name!r} does not name its GPU",
            where=str(folder),
            fix="build it again: plan.json then has its compute capability",
        )
    return str(capabilities[0])


def _must_fit(left: Variant, right: Variant) -> None:
    """Raise PublishError with the differences if the two cannot be served as one model."""
    where = f"{left.folder} and {right.folder}"
    triton_loads_both = left.plans and right.plans
    if not triton_loads_both and (_has_plan(left) or _has_plan(right)):
        raise PublishError(
            f"model {left.folder.name!r} is in two repositories, and Triton does not load its"
            " plan itself",
            where=where,
            fix=_ONE_RTX_PLAN if _flavor(left) == "tensorrt-rtx" else _NO_RUNTIME,
        )
    first = _comparable(left.config)
    second = _comparable(right.config)
    for field in sorted({*first, *second}):
        left_value = first.get(field)
        right_value = second.get(field)
        if left_value != right_value:
            raise PublishError(
                f"model {left.folder.name!r} differs in the repositories: {field} is {left_value}"
                f" and {right_value}",
                where=where,
                fix="build both from the same file, manifest and TensorRT",
            )


_NO_RUNTIME = "build it with --serve-as tensorrt_plan: the Python runtime has one plan"
_ONE_RTX_PLAN = (
    "build it once with --target for each GPU: one RTX plan supports several"
)


def _has_plan(variant: Variant) -> bool:
    return any((variant.folder / VERSION).glob("*.plan"))


def _flavor(variant: Variant) -> str | None:
    return published.flavor_of(_json(variant.folder / VERSION / "plan.json"))


def _comparable(message: pb.ModelConfig) -> dict[str, str]:
    """The config's fields as text, without those that may differ between hosts. Each provenance
    parameter is separate.
    """
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    copy.ClearField("cc_model_filenames")
    copy.ClearField("default_model_filename")
    # the folders agree; a step's name ends with a digest of its plan
    copy.ClearField("name")
    for step in copy.ensemble_scheduling.step:
        step.model_name = ""
    parameters = {
        key.removeprefix("trt_build."): value.string_value
        for key, value in copy.parameters.items()
    }
    copy.ClearField("parameters")
    fields = {
        field.name: str(value).strip().replace("\n", " ")
        for field, value in copy.ListFields()
    }
    return {
        **fields,
        **{key: value for key, value in parameters.items() if key not in OWN},
    }


def _publish(
    name: str,
    whole: Sequence[Variant],
    steps: Mapping[str, Sequence[Variant]],
    out: Path,
) -> list[tuple[str, tuple[str, ...]]]:
    """Publish one model with its steps. Returns each name and its compute capabilities."""

    def write(folder: Path, names: Mapping[str, str]) -> None:
        _writer(whole)(folder)
        if names:
            _name_steps(folder, list(names.values()))

    publish_parts(
        name, {base: _writer(step) for base, step in steps.items()}, write, out
    )
    return [
        (model, tuple(sorted(_plans(variants))))
        for model, variants in ((name, whole), *steps.items())
    ]


def _plans(variants: Sequence[Variant]) -> dict[str, tuple[Path, dict[str, Any]]]:
    return {cc: plan for variant in variants for cc, plan in variant.plans.items()}


def _writer(variants: Sequence[Variant]) -> Writer:
    """Return a function that writes the folder of the merged model."""
    plans = _plans(variants)

    def write(folder: Path) -> None:
        # torch runs it on any GPU, it is an ensemble of others, or one plan is for all GPUs
        if plans.keys() <= {AMPERE_PLUS}:
            copying.copy(variants[-1].folder, folder)
        else:
            _write(variants[0], plans, folder)
        for variant in variants:
            copying.require_same(variant.folder, variant.identity)

    return write


def _name_steps(folder: Path, names: Sequence[str]) -> None:
    """Write the names of the steps into the config of the ensemble in `folder`, in
    execution order.
    """
    file = folder / "config.pbtxt"
    message = parse_config(_text(file), str(file))
    for step, name in zip(message.ensemble_scheduling.step, names, strict=True):
        step.model_name = name
    file.write_text(config_text(message))
    _save(folder / VERSION / "steps.json", list(names))
    _write_record(folder, _json(folder / SIDECAR))


def _write(
    first: Variant, plans: dict[str, tuple[Path, dict[str, Any]]], folder: Path
) -> None:
    """Copy the first variant's folder and add the plans of all variants. The sidecar's record of a
    single build is removed.
    """
    copying.copy(first.folder, folder)
    message = pb.ModelConfig()
    message.CopyFrom(first.config)
    message.default_model_filename = (
        _file(AMPERE_PLUS) if AMPERE_PLUS in plans else NO_PLAN
    )
    message.cc_model_filenames.clear()
    message.parameters.pop("trt_build.plan_sha256", None)
    for old in (folder / VERSION).glob("*.plan"):
        old.unlink()
    for capability, (path, _) in sorted(plans.items()):
        shutil.copyfile(path, folder / VERSION / _file(capability))
        if capability != AMPERE_PLUS:
            message.cc_model_filenames[capability] = _file(capability)
    (folder / "config.pbtxt").write_text(config_text(message))
    facts = {capability: facts for capability, (_, facts) in sorted(plans.items())}
    known = sorted(message.cc_model_filenames)
    base = {
        **_json(folder / VERSION / "plan.json"),
        "compute_capabilities": known,
        "plans": facts,
    }
    _save(folder / VERSION / "plan.json", base)
    record = _json(folder / SIDECAR)
    _write_record(
        folder, {key: record[key] for key in record if key not in ("request", "plans")}
    )


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write trt-build.json of a folder with the digests of its present files."""
    files = {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SIDECAR
    }
    text = _text(folder / "config.pbtxt")
    published.write(folder, {**record, "files": files, GENERATED: text})


def _file(capability: str) -> str:
    if capability == AMPERE_PLUS:
        return f"model_{capability}.plan"
    return f"model_sm{capability.replace('.', '')}.plan"


def _json(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return read if isinstance(read, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> PublishError:
    return PublishError(
        f"{path.name} cannot be read: {error}",
        where=str(path),
        fix="build the model again",
    )


def _save(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
