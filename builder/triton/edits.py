"""Preserves manual edits of a published config: copies them into the next config, or into the
manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import PublishError, UsageError
from builder.manifest import ModelSpec, editing
from builder.store import GENERATED, Hashes, edits, published
from builder.triton import section, versions
from builder.triton.config import config_text, parse_config, read_config

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor


KEYS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "dynamic_batching": {
        "preferred_batch_size": ("batching", "preferred"),
        "max_queue_delay_microseconds": ("batching", "max_queue_delay_us"),
    }
}
"""Parts of fields that have their own keys in the manifest."""


def carry_over(former: Path, folder: Path) -> None:
    """Apply the manual edits of the config of `former` to the new config in `folder`, field by
    field.

    Raises PublishError if both changed a field, UsageError if the edited file is not a config.
    """
    before = _generated(former)
    edited = former / published.CONFIG
    if before is None or not edited.is_file():
        return
    file = folder / published.CONFIG
    old = parse_config(before, str(former))
    by_hand = read_config(edited)
    new = read_config(file)
    for field in pb.ModelConfig.DESCRIPTOR.fields:
        if field.name == "parameters":
            _parameters(old, by_hand, new)
        elif _with_only_field(old, field) != _with_only_field(by_hand, field):
            _field(field, old, by_hand, new, edited)
    file.write_text(config_text(new))


def _generated(folder: Path) -> str | None:
    """The generated config of the model in `folder`; None if it is not recorded."""
    before = published.read(folder / published.SIDECAR).get(GENERATED)
    return before if isinstance(before, str) else None


def adopt_edits(folder: Path, spec: ModelSpec) -> dict[str, Any]:
    """Write the manual config edits of the model published in `folder` into the manifest of `spec`.

    Comments in the manifest stay. Returns the values by manifest key, [] for a removed key, and {}
    if nothing was edited.

    Raises UsageError for an edit that a manifest cannot express, or a manifest that cannot be
    changed; nothing is written then.
    """
    if spec.manifest is None:
        raise UsageError(
            f"model {spec.name!r} has no manifest to write the edit to",
            where=str(spec.path),
            fix=f"write one with `trt-build init {spec.path}`",
        )
    versions.require_plain(folder)
    with published.shaped(folder):
        _only_own(folder)
        values = manifest_entries(folder, spec)
    if values:
        editing.edit(spec.manifest, values)
    return values


def edits_adopted(folder: Path, spec: ModelSpec) -> bool:
    """Whether the manifest of `spec` contains the manual edits of the published config."""
    try:
        _only_own(folder)
        values = manifest_entries(folder, spec)
    except (UsageError, OSError):
        return False
    parts: dict[str, Mapping[str, Any]] = {
        "triton": spec.triton,
        "batching": {
            "preferred": list(spec.batching.preferred),
            "max_queue_delay_us": spec.batching.max_queue_delay_us,
        },
    }
    return all(
        (parts[key].get(name) or []) == value
        for key, inner in values.items()
        for name, value in inner.items()
    )


def _only_own(folder: Path) -> None:
    """Raise UsageError for edits of steps: the manifest's section applies to all steps."""
    with Hashes() as hashes:
        steps = [
            edit for edit in edits.edits(folder, hashes) if edit.file.parent != folder
        ]
    if steps:
        raise UsageError(
            f"{'; '.join(map(str, steps))}: it is a step, and the manifest's `triton:` is for all"
            " steps",
            where=str(steps[0].file),
            fix="write the value into the manifest, and `trt-build repo ... --overwrite-edits`",
        )


def manifest_entries(folder: Path, spec: ModelSpec) -> dict[str, dict[str, Any]]:
    """The manifest entries that produce the edited config: values by section and key, [] for a key
    to remove.

    Raises UsageError for edits that the manifest cannot express.
    """
    before = _generated(folder)
    edited = folder / published.CONFIG
    if before is None:
        raise UsageError(
            f"{folder.name!r} does not record the config that was generated",
            where=str(folder),
            fix="build the model again",
        )
    old = parse_config(before, str(folder))
    by_hand = read_config(edited)
    entries: dict[str, dict[str, Any]] = {}
    for field in pb.ModelConfig.DESCRIPTOR.fields:
        if _with_only_field(old, field) == _with_only_field(by_hand, field):
            continue
        if field.name in section.OWNED:
            raise _not_adoptable(edited, field.name, section.OWNED[field.name])
        if (
            old.HasField("ensemble_scheduling")
            and field.name not in section.OF_ENSEMBLES
        ):
            raise _not_adoptable(
                edited, field.name, "it belongs to the ensemble's steps"
            )
        for key, name, value in _values(field.name, old, by_hand, edited, spec):
            entries.setdefault(key, {})[name] = value
    return entries


def _values(
    name: str,
    old: pb.ModelConfig,
    by_hand: pb.ModelConfig,
    edited: Path,
    spec: ModelSpec,
) -> Iterator[tuple[str, str, dict[str, Any] | list[Any] | int]]:
    """The manifest keys for one edited field."""
    before = _as_data(old).get(name)
    after = _as_data(by_hand).get(name, [])
    if isinstance(after, dict):
        generated = before or {}
        with_own_key = KEYS.get(name, {})
        for inner, (key, key_name) in with_own_key.items():
            value = after.pop(inner, [])
            if value != (generated.get(inner) or []):
                yield key, key_name, int(value) if isinstance(value, str) else value
        for inner, why in section.OWNED_WITHIN.get(name, {}).items():
            if inner in with_own_key:
                continue
            if after.pop(inner, None) != generated.get(inner):
                raise _not_adoptable(edited, f"{name}.{inner}", why)
        if name == "parameters":
            after = _own_parameters(spec, generated, after)
    if name == "instance_group":
        usual = [group.get("profile") for group in before or ()]
        for group in after:
            if group.get("profile") in usual:
                group.pop("profile", None)  # the generator writes it
    if after != {} or name in spec.triton:  # else `batching` has all of it
        yield "triton", name, after or []


def _own_parameters(
    spec: ModelSpec, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters that the generator does not write itself."""
    stated = spec.triton.get("parameters") or {}
    parameters = {}
    for key, value in after.items():
        edited = key in stated or value != before.get(key)
        if edited and not key.startswith(section.PREFIX):
            parameters[key] = value
    return parameters


def _as_data(message: pb.ModelConfig) -> dict[str, Any]:
    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True
    )
    return fields


def _not_adoptable(edited: Path, name: str, why: str) -> UsageError:
    return UsageError(
        f"{name} was edited by hand, and a manifest cannot set it: {why}",
        where=str(edited),
        fix="undo this edit; --overwrite-edits of `trt-build repo` drops all",
    )


def _field(
    field: FieldDescriptor,
    old: pb.ModelConfig,
    by_hand: pb.ModelConfig,
    new: pb.ModelConfig,
    edited: Path,
) -> None:
    edited_value = _with_only_field(by_hand, field)
    new_value = _with_only_field(new, field)
    if _with_only_field(old, field) != new_value and edited_value != new_value:
        raise PublishError(
            f"{field.name} was edited by hand, and the new config has another value, too",
            where=str(edited),
            fix="put it under `triton:` in the manifest, or pass --overwrite-edits",
        )
    new.ClearField(field.name)
    new.MergeFrom(edited_value)


def _parameters(
    old: pb.ModelConfig, by_hand: pb.ModelConfig, new: pb.ModelConfig
) -> None:
    """Compare each parameter separately: provenance changes with every build."""
    for key in {*old.parameters, *by_hand.parameters}:
        generated = old.parameters.get(key)
        edited = by_hand.parameters.get(key)
        if generated != edited and edited is None:
            new.parameters.pop(key, None)
        elif generated != edited:
            new.parameters[key].CopyFrom(edited)


def _with_only_field(message: pb.ModelConfig, field: FieldDescriptor) -> Any:
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    for present, _ in message.ListFields():
        if present.name != field.name:
            copy.ClearField(present.name)
    return copy
