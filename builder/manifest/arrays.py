"""Check the declared sizes of array files before anything is unpacked."""

from __future__ import annotations

import math
import stat
import zipfile
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 1 << 30
MOST_TIMES = 20
"""Maximum factor of unpacking: an .npz may unpack to MOST_BYTES, or to MOST_TIMES its own size."""


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
