"""Numbered versions of a model: which are kept and served, and rollback.

The folder of a model with kept versions has one version folder for each (`6/`, `7/`). The other
files of the current version are beside them, as in any model. `versions/6/` has the same files of
version 6: config.pbtxt, trt-build.json, goldens, warm-up. The config lists the served versions, so
a version folder that trt-build did not write is never served.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import PublishError, UsageError
from builder.manifest import Versions
from builder.store import (
    CONFIG,
    GENERATED,
    KEPT,
    ROLLED_BACK,
    SIDECAR,
    VERSION,
    VERSIONS,
    Version,
    digest,
    published,
)
from builder.torchscript import sha256
from builder.triton import copying

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

LAST, POLICY, PUBLISHED = "last_version", "version_policy", "published_at"
"""Keys of the sidecar: the highest version number so far, the manifest's `versions`, and the time
of publication (UTC).
"""
_OF_THE_FOLDER = (KEPT, LAST, ROLLED_BACK, "retired", published.SEAL)
"""Keys of a current version that apply to the whole folder."""


def arrange(new: Path, previous: Path, policy: Versions) -> None:
    """Number the staged model in `new`, and add the kept versions of the published model in
    `previous`.

    It keeps the number of the published version if only provenance changed. Records the time of
    publication. Raises UsageError if versions are kept and `policy` keeps none.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    published.write(new, {**published.read(new / SIDECAR), PUBLISHED: now})
    before = published.versions(previous)
    if not policy.keep:
        refuse_kept(previous, "write versions: {keep: N} in the manifest, or ")
        return
    (staged,) = published.versions(new)
    earlier = before
    number = 1
    last = 0
    if before:
        record = before[0].sidecar
        last = max(record.get(LAST) or 0, *(version.number for version in before))
        number = last + 1
        if same(staged, before[0]):
            number = before[0].number
            earlier = before[1:]
    _renumber(new, number)
    facts = {
        POLICY: {"keep": policy.keep, "serve": policy.serve},
        LAST: max(last, number),
    }
    _complete(new, facts, earlier[: policy.keep - 1], policy.serve)


def refuse_kept(previous: Path, other_fix: str = "") -> None:
    """Raise UsageError if a publication that keeps no versions would remove some."""
    count = len(published.versions(previous))
    if count > 1:
        raise UsageError(
            f"{previous.name!r} has {count} versions, and the new model keeps none",
            where=str(previous),
            fix=f"{other_fix}run `trt-build prune {shlex.quote(str(previous.parent))} --only"
            f" {previous.name} --keep 1`",
        )


def same(left: Version, right: Version) -> bool:
    """Whether two versions have the same files and config, except for the number and provenance."""
    return _contents(left) == _contents(right) and _config(left) == _config(right)


def identity(record: Mapping[str, Any]) -> str:
    """The SHA-256 of the files, generated config, steps and tolerance that a version's
    trt-build.json records.

    It stays the same in another repository, under another number, after a rollback, and with edits
    of the config.
    """
    try:
        message = _parsed(str(record.get(GENERATED) or ""), SIDECAR)
        generated = _plain_config(message).SerializeToString(deterministic=True).hex()
    except UsageError:
        generated = str(record.get(GENERATED))
    contents = _files_without_number(record)
    return digest(
        [contents, generated, record.get(published.SEALS), record.get("tolerance")]
    )


def _contents(version: Version) -> dict[str, str]:
    return _files_without_number(version.sidecar)


def _files_without_number(record: Mapping[str, Any]) -> dict[str, str]:
    """The digest of each file except the config. The version folder is named N."""
    number = published.number_of(record)
    return {
        _in_folder(name, f"{number}/", "N/"): digest
        for name, digest in (record.get("files") or {}).items()
        if name != CONFIG
    }


def _in_folder(name: str, old: str, new: str) -> str:
    """The name with the version folder `new` in place of `old`; other names stay as they are."""
    if name.startswith(old):
        return name.replace(old, new, 1)
    return name


def _config(version: Version) -> Any:
    """The config without the version policy and provenance."""
    file = version.record / CONFIG
    try:
        message = _parsed(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError, UsageError) as error:
        return error  # which is equal to no other
    return _plain_config(message)


def _plain_config(message: Any) -> Any:
    """Remove the version policy and provenance from a config, and return it."""
    message.ClearField("version_policy")
    for key in [key for key in message.parameters if key.startswith("trt_build.")]:
        del message.parameters[key]
    return message


def _can_serve_both(left: Version, right: Version) -> bool:
    """Whether Triton can serve both: a model has one config, one TensorRT, and one set of files
    beside its versions.
    """
    beside = [
        {
            name: digest
            for name, digest in _contents(version).items()
            if not name.startswith(("N/", "goldens/"))
        }
        for version in (left, right)
    ]
    build_versions = [version.sidecar.get("versions", {}) for version in (left, right)]
    return (
        beside[0] == beside[1]
        and build_versions[0].get("tensorrt") == build_versions[1].get("tensorrt")
        and _config(left) == _config(right)
    )


def _renumber(folder: Path, number: int) -> None:
    record = published.read(folder / SIDECAR)
    old = published.number_of(record)
    if old != number:
        (folder / str(old)).rename(folder / str(number))
    files = {
        _in_folder(name, f"{old}/", f"{number}/"): digest
        for name, digest in record.get("files", {}).items()
    }
    published.write(folder, {**record, "files": files, VERSION: number})


def _complete(
    folder: Path, facts: Mapping[str, Any], earlier: Sequence[Version], serve: int
) -> None:
    """Add the `earlier` versions to a folder with its current version, and list the served ones in
    the config.
    """
    for version in earlier:
        _add_version(version, folder)
    (current, *_) = published.versions(folder)
    kept_versions = [
        Version(version.number, folder, folder / VERSIONS / str(version.number))
        for version in earlier
    ]
    # requests without a version use the highest served number
    below = [version for version in kept_versions if version.number < current.number]
    able = [version.number for version in below if _can_serve_both(current, version)]
    served = sorted([current.number, *able[: serve - 1]])
    record = {
        key: value
        for key, value in current.sidecar.items()
        if key not in _OF_THE_FOLDER
    }
    seals = {
        str(version.number): sha256(version.record / SIDECAR)
        for version in kept_versions
    }
    text = _with_policy(str(record[GENERATED]), served)
    _serve_versions(folder / CONFIG, served)
    files = {**record["files"], CONFIG: hashlib.sha256(text.encode()).hexdigest()}
    published.write(
        folder, {**record, **facts, KEPT: seals, "files": files, GENERATED: text}
    )


def _serve_versions(file: Path, served: Sequence[int]) -> None:
    """List the served versions in a config, which may be a hard link to that of another folder."""
    config = _with_policy(file.read_text(encoding="utf-8"), served)
    file.unlink()
    file.write_text(config, encoding="utf-8")


def _with_policy(text: str, served: Sequence[int]) -> str:
    from builder.triton.config import config_text

    message = _parsed(text, CONFIG)
    message.ClearField("version_policy")
    message.version_policy.specific.versions.extend(served)
    return config_text(message)


def _parsed(text: str, where: str) -> ModelConfig:
    # imported here: `repo` without changes needs no protobuf, which takes long to load
    from builder.triton.config import parse_config

    return parse_config(text, where)


def _add_version(version: Version, folder: Path) -> None:
    """Add a version to the model in `folder` as one that is not current."""
    version_folder = f"{version.number}/"
    record = folder / VERSIONS / str(version.number)
    for name, path in version.files.items():
        _link(path, (folder if name.startswith(version_folder) else record) / name)
    record.mkdir(parents=True, exist_ok=True)
    published.write(record, _record_of_version(version))


def _make_current(
    version: Version, folder: Path, add: Callable[[Path, Path], None]
) -> None:
    """Add a version to the empty `folder` as the current one, adding each file with `add`."""
    for name, path in version.files.items():
        add(path, folder / name)
    published.write(folder, _record_of_version(version))


def _record_of_version(version: Version) -> dict[str, Any]:
    """The facts of one version from its trt-build.json."""
    record = {
        key: value
        for key, value in version.sidecar.items()
        if key not in _OF_THE_FOLDER
    }
    return {**record, VERSION: version.number}


def _link(source: Path, target: Path) -> None:
    """Hard-link the file to `target` if the file system can, else copy it. A missing file stays
    missing.
    """
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        copying.link(source, target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def rolled_back(folder: Path, to: Version, new: Path) -> None:
    """Fill the empty folder `new` with the model in `folder`, serving version `to`."""
    current, *earlier = published.versions(folder)
    record = current.sidecar
    _make_current(to, new, _link)
    facts = {
        POLICY: record.get(POLICY),
        LAST: record.get(LAST),
        **({ROLLED_BACK: current.number} if to.number < current.number else {}),
    }
    remaining = [
        version for version in (current, *earlier) if version.number != to.number
    ]
    remaining.sort(key=lambda version: version.number, reverse=True)
    _complete(new, facts, remaining, (record.get(POLICY) or {}).get("serve", 1))


def pruned(folder: Path, keep: int, new: Path) -> list[int]:
    """Fill the empty folder `new` with the model in `folder`: its current version and the newest
    others, `keep` in all.

    Returns the removed numbers.
    """
    current, *earlier = published.versions(folder)
    record = current.sidecar
    _make_current(current, new, _link)
    stay = earlier[: keep - 1]
    facts = {key: record[key] for key in (POLICY, LAST, ROLLED_BACK) if key in record}
    if record.get(ROLLED_BACK) not in {version.number for version in stay}:
        facts.pop(ROLLED_BACK, None)
    _complete(new, facts, stay, (record.get(POLICY) or {}).get("serve", 1))
    return [version.number for version in earlier[keep - 1 :]]


def copied(version: Version, new: Path) -> None:
    """Fill the empty folder `new` with copies of this version's files."""
    _make_current(version, new, _copy)


def policy_of(folder: Path) -> Versions:
    """The manifest's `versions` as recorded in a published model."""
    record = published.read(folder / SIDECAR).get(POLICY)
    return Versions(**record) if isinstance(record, dict) else Versions()


def find(folder: Path, number: int | None) -> Version:
    """The version for a rollback: `number`, else the newest before the current one.

    Raises UsageError if there is none, PublishError if its files are damaged.
    """
    current, *earlier = of_model(folder)
    below = [version for version in earlier if version.number < current.number]
    if number is not None:
        chosen = next(
            (version for version in earlier if version.number == number), None
        )
    else:
        chosen = next(iter(below), None)
    if chosen is None:
        numbers = ", ".join(str(version.number) for version in earlier) or "none"
        raise UsageError(
            f"model {folder.name!r} serves version {current.number}, and has no"
            f" {'earlier version' if number is None else f'other version {number}'}",
            where=str(folder),
            fix=f"kept versions: {numbers}; `versions: {{keep: N}}` in the manifest keeps more",
        )
    require_undamaged(chosen)
    return chosen


def require_plain(folder: Path) -> None:
    """Raise PublishError if the folder of the model or of a step has links, pipes or devices."""
    steps = [folder.parent / step for step in published.step_names(folder)]
    for model in (folder, *(step for step in steps if step.exists())):
        for path, kind in published.special(model):
            raise PublishError(
                f"{folder.name!r} holds {kind}: {path.relative_to(folder.parent)}",
                where=str(path),
                fix="build the model again",
            )


def require_undamaged(version: Version) -> None:
    """Raise PublishError if a file of the version differs from its published state."""
    if broken := next(version.damaged(), None):
        raise PublishError(
            f"version {version.number} of {version.model.name!r} is damaged: {broken}",
            where=str(version.record),
            fix="use another version, or build the model again with `trt-build repo --rebuild`",
        )


def of_model(folder: Path) -> list[Version]:
    """The versions of a published model, the current one first.

    Raises UsageError if there is no such model.
    """
    known = published.versions(folder)
    if not known:
        raise UsageError(
            f"{folder} is not a model that trt-build published",
            fix="name a repository of `trt-build repo`, and a model of it",
        )
    return known


def served(folder: Path) -> list[int]:
    """The version folders that Triton serves by the policy in the config, including foreign ones.

    Raises UsageError for a config that Triton could not read.
    """
    numbers = sorted(
        (
            int(path.name)
            for path in folder.iterdir()
            if path.is_dir() and path.name.isdigit()
        ),
        reverse=True,
    )
    policy = _parsed(
        (folder / CONFIG).read_text(encoding="utf-8"), str(folder)
    ).version_policy
    if policy.HasField("specific"):
        return [number for number in numbers if number in policy.specific.versions]
    if policy.HasField("all"):
        return numbers
    return numbers[: policy.latest.num_versions or 1]


def foreign(folder: Path) -> list[int]:
    """The served versions that trt-build did not write."""
    written = {version.number for version in published.versions(folder)}
    if written:
        return [number for number in served(folder) if number not in written]
    return []
