"""Checks whether clients of a published model can continue unchanged with its replacement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import UsageError
from builder.store import published
from builder.triton.config import OPTIONAL_OUTPUTS, read_config

ANY = -1


def refuse_incompatible(former: Path, new: Path, *, accept: bool) -> tuple[str, ...]:
    """Return the incompatible changes from the model in the folder `former` to that in `new`, as
    text.

    Raises UsageError if there are any and `accept` is False. A `former` without a readable config
    has no clients, so nothing is incompatible with it.
    """
    changes = tuple(_changes(former, new))
    if changes and not accept:
        raise UsageError(
            f"this change breaks clients of the published model: {'; '.join(changes)}",
            where=str(former),
            fix="publish it under a new name, or pass --accept-incompatible",
        )
    return changes


def _changes(former: Path, new: Path) -> Iterator[str]:
    before = _config(former)
    after = _config(new)
    if before is not None and after is not None:
        yield from incompatible(before, after)


def _config(folder: Path) -> Any:
    """Read the config in the folder; None if there is none that Triton could read."""
    file = folder / published.CONFIG
    try:
        if file.is_file():
            return read_config(file)
        return None
    except (OSError, ValueError, UsageError):
        return None


def incompatible(before: pb.ModelConfig, after: pb.ModelConfig) -> Iterator[str]:
    """Return each incompatible change between two ModelConfig messages.

    A change is incompatible if a formerly valid request fails, or if a response is not as its
    client expects. Compatible are an additional output, an optional input, an input axis that
    becomes dynamic, and a larger maximum batch.
    """
    yield from _inputs(before, after)
    yield from _outputs(before, after)
    if after.HasField("sequence_batching") != before.HasField("sequence_batching"):
        now = "now" if after.HasField("sequence_batching") else "no longer"
        yield f"requests {now} belong to sequences"
    if 0 < after.max_batch_size < before.max_batch_size:
        yield f"the maximum batch is {after.max_batch_size}, and was {before.max_batch_size}"


def _inputs(before: pb.ModelConfig, after: pb.ModelConfig) -> Iterator[str]:
    old = {tensor.name: tensor for tensor in before.input}
    new = {tensor.name: tensor for tensor in after.input}
    for name in old.keys() - new.keys():
        yield f"input {name!r} is no longer there"
    for name, tensor in new.items():
        if name not in old:
            if not tensor.optional:
                yield f"input {name!r} is new, and required"
            continue
        if old[name].optional and not tensor.optional:
            yield f"input {name!r} is now required"
        yield from _dtype("input", old[name], tensor)
        old_shape = _shape(before, old[name])
        new_shape = _shape(after, tensor)
        if not _accepts(new_shape, old_shape):
            yield f"input {name!r} takes the shape {new_shape}, and took {old_shape}"


def _outputs(before: pb.ModelConfig, after: pb.ModelConfig) -> Iterator[str]:
    old = {tensor.name: tensor for tensor in before.output}
    new = {tensor.name: tensor for tensor in after.output}
    for name, tensor in old.items():
        if name not in new:
            yield f"output {name!r} is no longer there"
            continue
        if name in _optional(after) and name not in _optional(before):
            yield f"output {name!r} may now be None"
        yield from _dtype("output", tensor, new[name])
        old_shape = _shape(before, tensor)
        new_shape = _shape(after, new[name])
        if not _accepts(old_shape, new_shape):
            yield f"output {name!r} has the shape {new_shape}, and had {old_shape}"


def _optional(config: pb.ModelConfig) -> list[str]:
    """The outputs that a response may omit."""
    key = f"trt_build.{OPTIONAL_OUTPUTS}"
    return (
        config.parameters[key].string_value.split(",")
        if key in config.parameters
        else []
    )


def _dtype(
    kind: str,
    before: pb.ModelInput | pb.ModelOutput,
    after: pb.ModelInput | pb.ModelOutput,
) -> Iterator[str]:
    if before.data_type != after.data_type:
        names = [
            pb.DataType.Name(side.data_type).removeprefix("TYPE_")
            for side in (before, after)
        ]
        yield f"{kind} {after.name!r} is {names[1]}, and was {names[0]}"


def _shape(config: pb.ModelConfig, tensor: pb.ModelInput | pb.ModelOutput) -> list[int]:
    """The shape at the endpoint, with the batch first."""
    if config.max_batch_size:
        return [ANY, *tensor.dims]
    return list(tensor.dims)


def _accepts(wide: list[int], narrow: list[int]) -> bool:
    """Whether `wide` accepts every shape of `narrow`."""
    return len(wide) == len(narrow) and all(
        wide_size in (ANY, narrow_size)
        for wide_size, narrow_size in zip(wide, narrow, strict=True)
    )
