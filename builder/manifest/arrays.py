"""Read array files, after a check of the declared sizes before anything is unpacked."""

from __future__ import annotations

import math
import re
import stat
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BYTES = 1 << 30
MOST_TIMES = 20
"""Maximum factor of unpacking: an .npz may unpack to MOST_BYTES, or to MOST_TIMES its own size."""
WRITE_NPZ = "write it with numpy.savez(path, image=array)"
"""The fix for a file that is not an .npz of plain arrays."""
UNNAMED = ""
"""The name of the only array of an .npy."""
_KEY = re.compile(r"(?:(?P<set>\d+)/)?(?:input:)?(?P<name>.+)")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name, or the array of an .npy with the name UNNAMED. Pickles are
    never read.

    Raises ValueError, with the reason, for any other file.
    """
    import numpy

    try:
        check_array_file(path)
        read = numpy.load(path, allow_pickle=False)
        if isinstance(read, numpy.ndarray):
            return {UNNAMED: read}
        with read:
            return {name: read[name] for name in read.files}
    # a damaged file raises different errors of zlib, zipfile, tokenize and numpy
    except Exception as error:
        raise ValueError(getattr(error, "strerror", None) or str(error)) from error


def read_sets(path: Path) -> dict[int, dict[str, NDArray[Any]]]:
    """The arrays of an .npz by set and name: its keys are names, or "<n>/<name>" for several sets.
    Raises UsageError for any other file.
    """
    sets: dict[int, dict[str, NDArray[Any]]] = {}
    try:
        for key, array in read_arrays(path).items():
            match = _KEY.fullmatch(key)
            if match:
                arrays = sets.setdefault(int(match["set"] or 0), {})
                arrays[match["name"]] = array
    except ValueError as error:
        raise UsageError(
            f"the file cannot be read as an .npz of plain arrays: {error}",
            where=str(path),
            fix=WRITE_NPZ,
        ) from error
    return sets


def check_array_file(path: Path) -> None:
    """Check an .npz or .npy file.

    Raises ValueError if it is not a regular file, or declares more data than it has or may have.
    Also raises it for members that are not arrays or contain pickles. Raises zipfile.BadZipFile and
    OSError for a damaged or missing file.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            _check_array(file, status.st_size)
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        most = max(MOST_BYTES, MOST_TIMES * status.st_size)
        if unpacked > most:
            raise ValueError(
                f"it unpacks to {unpacked >> 20} MiB, more than {most >> 20} MiB"
            )
        for member in members:
            if not member.filename.endswith(".npy"):
                raise ValueError(f"the member {member.filename[:80]!r} is not an .npy")
            with archive.open(member) as file:
                _check_array(file, member.file_size)


def _check_array(file: IO[bytes], size: int) -> None:
    from numpy.lib import format as npy

    version = npy.read_magic(file)  # type: ignore[no-untyped-call]
    read: Any = (
        npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects")
    if math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"an array of shape {list(shape)} is longer than its file")
