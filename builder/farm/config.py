"""The farm file: its machines, targets and store."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from builder.errors import ManifestError, Mistake, UsageError
from builder.manifest import did_you_mean, document, schema
from builder.precisions import PRECISIONS

SCHEMA_PATH = Path(__file__).with_name("farm.schema.json")
"""The JSON Schema (draft 2020-12) of a farm file, for editors."""
IMAGE = re.compile(
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?::[0-9]+)?"  # a host with its port, or a name
    r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""A container image name. Ray inserts it into a shell command, so nothing else is allowed."""
LOCAL = "local"
"""Value of `--farm` and of `address`: a Ray cluster of this machine for the duration of the
command.
"""


@dataclass(frozen=True)
class Target:
    """A target to build for, and the resources of a build: cores, GPUs, MiB of memory, and Ray's
    custom resources.

    `build` has TensorRT builder options in the form of a manifest. `verify` is how a built model is
    verified (builder.farm.verification). `image` is the container image of its tasks. `entry` is
    the name in the farm file if it differs: for h100-fp16 it is h100, with `precisions: [fp16,
    fp32]`.
    """

    name: str
    cpus: float = 1
    gpus: float = 0
    memory_mib: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    flavor: str = "auto"
    precision: str | None = None
    build: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 100
    verify: str = "auto"
    image: str | None = None
    entry: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which manifests and exclusions may refer to it."""
        if self.entry:
            return (self.name, self.entry)
        return (self.name,)


@dataclass(frozen=True)
class Exclusion:
    """Models that are not built for some targets. `model` and `target` are fnmatch patterns."""

    model: str
    target: str
    because: str

    def matches(self, model: str, target: Target) -> bool:
        """Whether the model is excluded for the target."""
        return fnmatchcase(model, self.model) and any(
            fnmatchcase(name, self.target) for name in target.names
        )


@dataclass(frozen=True)
class Retries:
    """The number of restarts of a task, and the seconds before the first. Each further wait is
    twice as long.
    """

    max: int = 3
    backoff_seconds: float = 5

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after the `attempt`-th start (from 1) before the task is
        restarted.
        """
        return float(self.backoff_seconds * 2 ** (attempt - 1))


@dataclass(frozen=True)
class Farm:
    """A farm file. Its fields have the names and defaults of the keys (farm.schema.json)."""

    address: str
    targets: tuple[Target, ...]
    store: str | None = None
    exclude: tuple[Exclusion, ...] = ()
    retries: Retries = Retries()
    node_seconds: float = 300
    environment: tuple[str, ...] = ()
    file: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the command starts a Ray cluster on this machine."""
        return self.address == LOCAL


def read(path: Path | str) -> Farm:
    """Read a farm file. "local" returns this machine with one target, `local`.

    Raises ManifestError with every mistake of the file and its line.
    """
    if str(path) == LOCAL:
        return Farm(LOCAL, (Target(LOCAL),))
    farm_file = document.read(Path(path))
    if farm_file.data is not None:
        schema.check(farm_file, json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
        if not farm_file.mistakes:
            _check(farm_file)
    if farm_file.mistakes:
        mistakes = []
        for mistake in sorted(farm_file.mistakes, key=lambda mistake: mistake.line):
            fix = mistake.fix
            if farm_file.data is None:
                fix = "see docs/farm.md"
            text = mistake.message.replace("the manifest", "the farm file")
            mistakes.append(Mistake(mistake.file, mistake.line, text, fix))
        raise ManifestError(mistakes)
    return _farm(farm_file.data, str(path))


def _farm(data: Mapping[str, Any], file: str) -> Farm:
    targets = tuple(
        target
        for name, fields in data["targets"].items()
        for target in _targets(name, fields or {})
    )
    return Farm(
        address=data["address"],
        targets=targets,
        store=data.get("store"),
        exclude=tuple(Exclusion(**fields) for fields in data.get("exclude", ())),
        retries=Retries(**data.get("retries", {})),
        node_seconds=data.get("node_seconds", Farm.node_seconds),
        environment=tuple(data.get("environment", ())),
        file=file,
    )


def _targets(name: str, fields: Mapping[str, Any]) -> list[Target]:
    """Return the target of an entry, or one target for each of its precisions."""
    if "precisions" not in fields:
        return [Target(name, **fields)]
    shared = {
        key: value for key, value in fields.items() if not key.startswith("precision")
    }
    return [
        Target(f"{name}-{precision}", precision=precision, entry=name, **shared)
        for precision in fields["precisions"]
    ]


def _check(farm_file: document.Document) -> None:
    """Append the mistakes that the schema cannot express."""
    _check_store(farm_file)
    is_local = farm_file.data["address"] == LOCAL
    built: list[Target] = []
    for name, fields in farm_file.data["targets"].items():
        _check_target(farm_file, name, fields, is_local=is_local)
        built += _targets(name, fields)
    for name, count in Counter(target.name for target in built).items():
        if count > 1:
            entry = next(
                target.entry for target in built if target.name == name and target.entry
            )
            message = f"two targets are named {name!r}"
            farm_file.add(
                ("targets", entry, "precisions"), message, "rename one of them"
            )
    names = list(dict.fromkeys(name for target in built for name in target.names))
    for index, fields in enumerate(farm_file.data.get("exclude", ())):
        pattern = fields["target"]
        if not any(fnmatchcase(name, pattern) for name in names):
            route = ("exclude", index, "target")
            message = f"{schema.label(route)}: no target is named {pattern!r}"
            farm_file.add(route, message, did_you_mean(pattern, names))


def _check_store(farm_file: document.Document) -> None:
    store = farm_file.data.get("store", "")
    targets = farm_file.data["targets"].values()
    in_containers = any("image" in (fields or {}) for fields in targets)
    if store and "://" not in store and in_containers:
        message = "store: a container does not see the folders of its machine"
        fix = "a URL such as s3://bucket/plans, or targets without image"
        farm_file.add(("store",), message, fix)
    if "memory:" in store:
        message = "store: a store in memory is seen by one process only"
        fix = "a folder that all machines share, or a URL such as s3://"
        farm_file.add(("store",), message, fix)


def _check_target(
    farm_file: document.Document,
    name: str,
    fields: Mapping[str, Any],
    *,
    is_local: bool,
) -> None:
    route: tuple[str | int, ...] = ("targets", name)
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        fix = "letters, digits, - and _: it is the name of a folder"
        farm_file.add(route, f"{name!r} cannot be the name of a target", fix, key=True)
    _check_precisions(farm_file, name, fields)
    if is_local and fields.get("resources"):
        message = "a cluster of this machine alone has no custom resources"
        fix = "remove them, or start Ray with --resources"
        farm_file.add((*route, "resources"), message, fix)
    if "image" in fields and not IMAGE.fullmatch(fields["image"]):
        message = f"{schema.label((*route, 'image'))}: {fields['image']!r} is not a container image"
        fix = "such as registry.example.com/trt-build:1.0"
        farm_file.add((*route, "image"), message, fix)
    _check_build(farm_file, (*route, "build"), fields.get("build", {}))


def _check_precisions(
    farm_file: document.Document, name: str, fields: Mapping[str, Any]
) -> None:
    route = ("targets", name)
    written: list[tuple[document.Route, str]] = []
    if "precision" in fields:
        written.append(((*route, "precision"), fields["precision"]))
    several = fields.get("precisions", ())
    for index, precision in enumerate(several):
        written.append(((*route, "precisions", index), precision))
    for where, precision in written:
        if precision not in PRECISIONS:
            message = f"{schema.label(where)}: {precision!r} is not a precision"
            farm_file.add(where, message, f"one of {', '.join(PRECISIONS)}")
    if "precision" in fields and several:
        message = f"{name!r} has both precision and precisions"
        farm_file.add((*route, "precisions"), message, "leave one of them out")


def _check_build(
    farm_file: document.Document,
    route: tuple[str | int, ...],
    fields: Mapping[str, Any],
) -> None:
    """Check the section like the same section of a manifest."""
    build_schema = {
        **schema.schema()["properties"]["build"],
        "$defs": schema.schema().get("$defs", {}),
    }
    inner = document.Document(
        farm_file.file,
        fields,
        lines=_lines_below(route, farm_file.lines),
        key_lines=_lines_below(route, farm_file.key_lines),
    )
    schema.check(inner, build_schema)
    farm_file.mistakes += inner.mistakes


def _lines_below(
    route: document.Route, lines: Mapping[document.Route, int]
) -> dict[document.Route, int]:
    """The lines of the keys inside the section at `route`, by their route in the section."""
    depth = len(route)
    return {key[depth:]: line for key, line in lines.items() if key[:depth] == route}


def known_target(farm: Farm, name: str, where: str) -> Target:
    """Return the first target with this name. Raises UsageError at the location `where`."""
    for target in farm.targets:
        if name in target.names:
            return target
    names = [target.name for target in farm.targets]
    fix = did_you_mean(name, names)
    raise UsageError(f"the farm has no target {name!r}", where=where, fix=fix)
