"""Edits of a published config, carried over into the config of the next publication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import PublishError
from builder.store import GENERATED, published
from builder.triton.config import config_text, parse_config


def carry_over(former: Path, folder: Path) -> None:
    """Apply to the config in `folder`, which is new, what was changed by hand in the config of
    `former`, field by field. Raises PublishError where both changed a field, UsageError where the
    edited file is no config.
    """
    said = published.read(former / published.SIDECAR)
    before, edited = said.get(GENERATED), former / published.CONFIG
    if not isinstance(before, str) or not edited.is_file():
        return
    file = folder / published.CONFIG
    old, by_hand, new = (
        parse_config(text, str(where))
        for text, where in (
            (before, former),
            (edited.read_text(encoding="utf-8"), edited),
            (file.read_text(encoding="utf-8"), file),
        )
    )
    for field in pb.ModelConfig.DESCRIPTOR.fields:
        if field.name == "parameters":
            _parameters(old, by_hand, new)
        elif _only(old, field) != _only(by_hand, field):
            _field(field, old, by_hand, new, edited)
    file.write_text(config_text(new))


def _field(field: Any, old: Any, by_hand: Any, new: Any, edited: Path) -> None:
    if _only(old, field) != _only(new, field) and _only(by_hand, field) != _only(new, field):
        raise PublishError(
            f"{field.name} was edited by hand, and the new config has another value, too",
            where=str(edited),
            fix="put it under `triton:` in the manifest, or --overwrite-edits",
        )
    new.ClearField(field.name)
    new.MergeFrom(_only(by_hand, field))


def _parameters(old: Any, by_hand: Any, new: Any) -> None:
    """Each parameter by itself: provenance changes with every build."""
    for key in {*old.parameters, *by_hand.parameters}:
        ours, theirs = (side.parameters.get(key) for side in (old, by_hand))
        if ours != theirs and theirs is None:
            new.parameters.pop(key, None)
        elif ours != theirs:
            new.parameters[key].CopyFrom(theirs)


def _only(message: Any, field: Any) -> Any:
    """A message with this field of `message` alone."""
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    for other, _ in message.ListFields():
        if other.name != field.name:
            copy.ClearField(other.name)
    return copy
