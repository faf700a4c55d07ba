"""Inspect a TorchScript archive without loading it: a zip file with the members that torch.jit.save
writes.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ModelFileError
from builder.torchscript import kinds, pickles, storages, traced
from builder.torchscript.traced import Example
from builder.unforeseen import unreadable

REQUIRED = ("data.pkl", "constants.pkl")
# the first since archive version 10, for example in a file with gelu
VERSIONS = (".data/version", "version")
# code and pickles; weights are stored, not compressed
MAX_COMPRESSED_MEMBERS_UNPACK_TO = 512 << 20
MAX_PICKLE_BYTES = 128 << 20
MAX_MEMBERS = 1_000_000


@dataclass(frozen=True)
class ArchiveFacts:
    """An inspected archive.

    `examples` are the inputs of torch.jit.trace, None for one that is not a tensor; empty for a
    scripted module.
    """

    path: Path
    unpacked_bytes: int
    examples: tuple[Example | None, ...]


def inspect(path: Path | str, *, check_sums: bool = True) -> ArchiveFacts:
    """The facts of a TorchScript archive. With `check_sums`, every member's CRC is compared (one
    read of the file).

    Raises ModelFileError with the file's actual kind or its damage.
    """
    path = Path(path)
    with opened(path) as archive:
        return _inspect(path, archive, check_sums)


@contextmanager
def opened(
    path: Path, expected: str = "a TorchScript file"
) -> Iterator[zipfile.ZipFile]:
    """The open archive, inside a `with` block.

    Raises ModelFileError if the file is not `expected` or is incomplete, and for errors of its
    reader inside the block.
    """
    check_zip(path, expected)
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        size = path.stat().st_size
        message = f"is a truncated or damaged archive ({size} bytes): {error}"
        raise refusal(path, message, "copy, download or save it again") from error


def refusal(path: Path, message: str, fix: str | None = None) -> ModelFileError:
    """The error that starts with the file's name, for the caller to raise."""
    return ModelFileError(f"{path.name} {message}", where=str(path), fix=fix)


def check_zip(path: Path, expected: str) -> None:
    """Raise ModelFileError if the file is not a zip file. The message has its actual kind instead
    of `expected`.
    """
    if not path.exists():
        raise refusal(path, "does not exist")
    if path.is_dir():
        kind = ""
        if (path / "saved_model.pb").exists():
            kind = " (a TensorFlow SavedModel)"
        raise refusal(path, f"is a directory{kind}, not {expected}")
    if not path.is_file():  # opening a pipe blocks until something writes to it
        raise refusal(
            path,
            "is not a file but a pipe, a socket or a device",
            "copy it to a file first",
        )
    try:
        with path.open("rb") as file:
            head = file.read(kinds.HEAD_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    if not head:
        raise refusal(path, "is empty", "copy, download or save it again")
    if not head.startswith(b"PK\x03\x04"):
        kind_of = kinds.of_bytes(head)
        raise refusal(path, f"is not {expected} but {kind_of.name}", kind_of.fix)


def _inspect(path: Path, archive: zipfile.ZipFile, check_sums: bool) -> ArchiveFacts:
    members = archive.infolist()
    root = _root(path, [member.filename for member in members])
    check_sizes(path, members)
    if check_sums and (broken := archive.testzip()):
        raise zipfile.BadZipFile(f"member {broken!r} does not match its checksum")
    _check_globals(path, archive, root)
    for problem in storages.problems(archive, root):
        raise refusal(path, f"is damaged: {problem}", "copy, download or save it again")
    _check_version(path, archive, root)
    return ArchiveFacts(
        path,
        sum(member.file_size for member in members),
        _examples(archive, f"{root}/traced_inputs.pkl"),
    )


def _root(path: Path, names: list[str]) -> str:
    """The folder that contains all members. torch names it after the first file name."""
    folders = {name.partition("/")[0] for name in names}
    root = min(folders, default="")
    whole = all(f"{root}/{part}" in names for part in REQUIRED) and any(
        name.startswith(f"{root}/code/") for name in names
    )
    whole = whole and any(f"{root}/{part}" in names for part in VERSIONS)
    if len(folders) != 1 or not whole:
        raise not_expected(path, names)
    if any(".." in name.split("/") or "\\" in name for name in names):
        raise refusal(
            path,
            "has members with paths outside of the archive, which torch.jit.save never writes",
        )
    return root


def not_expected(
    path: Path, names: list[str], expected: str = "a TorchScript file"
) -> ModelFileError:
    """The error for a zip file with these members, which is not `expected`."""
    kind = kinds.of_members(names)
    return refusal(path, f"is not {expected} but {kind.name}", kind.fix)


def check_sizes(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Raise an error for members that unpack to far more than the file's size: highly compressed
    members, and members that overlap.
    """
    if len(members) > MAX_MEMBERS:
        raise refusal(path, f"has {len(members)} members, more than any model needs")
    if sum(member.compress_size for member in members) > path.stat().st_size:
        raise refusal(path, "has members that overlap: a compression bomb")
    flood = sum(
        member.file_size
        for member in members
        if member.compress_type != zipfile.ZIP_STORED
    )
    if flood > MAX_COMPRESSED_MEMBERS_UNPACK_TO:
        raise refusal(
            path,
            f"has compressed members that unpack to {flood >> 20} MiB: a compression bomb",
        )
    for member in members:
        if (
            member.compress_type == zipfile.ZIP_STORED
            and member.file_size != member.compress_size
        ):
            raise refusal(
                path,
                f"has a member {member.filename!r} whose sizes contradict each other",
            )


def _check_globals(path: Path, archive: zipfile.ZipFile, root: str) -> None:
    """Raise an error for pickles with globals that are not TorchScript's own.

    Debug pickles (code/*.debug_pkl) are excluded: torch reads them with an unpickler that resolves
    no names.
    """
    names: set[str] = set()
    for member in archive.infolist():
        name = member.filename
        if not name.endswith(".pkl") or name.startswith(f"{root}/extra/"):
            continue
        if member.file_size > MAX_PICKLE_BYTES:
            mebibytes = member.file_size >> 20
            raise refusal(path, f"has a pickle {name!r} of {mebibytes} MiB")
        names.update(pickles.globals_of(archive.read(member)))
    foreign = sorted(name for name in names if not pickles.is_torchscripts(name))
    if foreign:
        words = ", ".join(name.replace(" ", ".") for name in foreign[:5])
        message = (
            f"has pickle globals that TorchScript never uses ({words}); Python would run code on "
            "unpickling it"
        )
        raise refusal(
            path,
            message,
            "save the model again with torch.jit.save, from a source that you trust",
        )


def _examples(
    archive: zipfile.ZipFile, member: str
) -> tuple[traced.Example | None, ...]:
    if member in archive.namelist():
        return traced.examples(archive.read(member))
    return ()


def _check_version(path: Path, archive: zipfile.ZipFile, root: str) -> None:
    members = [f"{root}/{part}" for part in VERSIONS]
    member = next(name for name in members if name in archive.namelist())
    text = archive.read(member)[:32].decode("ascii", "replace").strip()
    if not text.isdigit():
        raise refusal(path, f"has an archive version {text!r} that is not a number")


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
