"""Converts unexpected errors: EnvironmentProblem if the machine is the cause, else Defect. Has the
fixes of file system errors.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.errors import (
    Defect,
    EnvironmentProblem,
    ModelFileBlocked,
    ModelFileError,
    TrtBuildError,
)

MACHINES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free disk space"),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM),
        "give this user access to it, or use another {name}",
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"
    ),
    errno.EIO: "check the disk",
    **dict.fromkeys(
        (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT),
        "mount the network file system again",
    ),
}
"""File system errors whose cause is the machine, and their fixes. {name} is what the user can
replace.
"""
BLOCKING = frozenset((*MACHINES, errno.ENAMETOOLONG))
"""File system errors that the user can fix without changing the model."""
PIPES = os.path.join("multiprocessing", "connection.py")
"""The file of the connections between processes of trt-build."""
ALLOCATORS = re.compile(
    r"Allocator: (can't allocate|not enough) memory|out of memory|bad_alloc",
    re.IGNORECASE,
)
"""Messages of torch. On the CPU it raises a plain RuntimeError."""


def file_system_fix(error: OSError, name: str = "path") -> str:
    """The fix of a file system error. `name` is what the user can replace, such as "--out"."""
    if error.errno == errno.ENAMETOOLONG:
        return f"use a shorter {name if name.startswith('--') else 'path'}"
    return MACHINES.get(error.errno or 0, "use another {name}").format(name=name)


@contextmanager
def file_system_errors(
    problem: str,
    where: Path,
    name: str = "path",
    kind: type[TrtBuildError] = EnvironmentProblem,
) -> Iterator[None]:
    """Convert an OSError of the block to a `kind` with this problem, location and fix. `name` is
    that of `file_system_fix`.
    """
    try:
        yield
    except OSError as error:
        raise kind(
            f"{problem}: {error.strerror or error}",
            where=str(where),
            fix=file_system_fix(error, name),
        ) from error


def unreadable(path: Path, error: OSError) -> ModelFileError:
    """The error of a model whose file, goldens or libraries cannot be read."""
    message = f"{path.name} cannot be read: {error.strerror}"
    if error.errno not in BLOCKING:
        return ModelFileError(message, where=str(path))
    return ModelFileBlocked(message, where=str(path), fix=file_system_fix(error))


def as_defect(error: Exception) -> TrtBuildError:
    """Convert an unexpected error.

    Returns the error itself if it is a TrtBuildError, an EnvironmentProblem if the machine is the
    cause, else a Defect. The last two have the traceback as text, because its frames may hold the
    memory that has run out.
    """
    if isinstance(error, TrtBuildError):
        return error
    converted = _environment_problem(error) or _defect(error)
    converted.traceback = "".join(traceback.format_exception(error))
    return converted


def _environment_problem(error: Exception) -> EnvironmentProblem | None:
    """The problem of the machine that caused the error. None if the machine is not the cause."""
    if _is_memory(error):
        return _memory_problem(error)
    if isinstance(error, FileNotFoundError) and _has_no_working_directory():
        return EnvironmentProblem(
            "the working directory was removed", fix="change to a folder that exists"
        )
    if _is_of_server(error):
        return EnvironmentProblem(
            f"the connection to a server failed: {error}",
            where=own_line(error),
            fix="check that the server runs, and its address",
        )
    if isinstance(error, OSError) and error.errno in BLOCKING:
        return _file_system_problem(error)
    if isinstance(error, ModuleNotFoundError):
        return _missing_package(error.name or "")
    return None


def _is_of_server(error: Exception) -> bool:
    """Whether the error is that of a connection to a server: not of the output, of another process
    of trt-build, or of a file on a network file system.
    """
    if not isinstance(error, ConnectionError | TimeoutError):
        return False
    is_of_file = error.filename is not None
    return not (
        isinstance(error, BrokenPipeError) or is_of_file or _is_of_worker(error)
    )


def _is_of_worker(error: Exception) -> bool:
    """Whether a connection between two processes of trt-build raised the error. For an error from a
    worker, the traceback is the text of its cause.
    """
    frames = "".join(traceback.format_exception(error, chain=False))
    return PIPES in f"{error.__cause__ or ''}{frames}"


def _memory_problem(error: Exception) -> EnvironmentProblem:
    words = str(error).partition("\n")[0]
    return EnvironmentProblem(
        "there is not enough memory" + (f": {words}" if words else ""),
        where=own_line(error),
        fix=(
            "build fewer models at a time (--jobs), lower the maximum sizes in the manifest, or"
            " free memory"
        ),
    )


def _file_system_problem(error: OSError) -> EnvironmentProblem:
    # of a copy that failed, the one that is written
    file = error.filename2 or error.filename
    return EnvironmentProblem(
        error.strerror or str(error),
        where=file and str(file),
        fix=file_system_fix(error),
    )


def _missing_package(name: str) -> EnvironmentProblem | None:
    """The problem of a package that is not installed. None for a module of trt-build."""
    if name.startswith("builder"):
        return None
    return EnvironmentProblem(f"{name} is not installed", fix="see `trt-build doctor`")


def _has_no_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _is_memory(error: Exception) -> bool:
    """Whether the error means out of memory: Python's MemoryError, torch's for the GPU, or a
    library's RuntimeError with such a message.
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(ALLOCATORS.search(str(error)))
    )


def _defect(error: Exception) -> Defect:
    return Defect(
        f"this is a defect of trt-build: {type(error).__name__}: {error}",
        where=own_line(error),
        fix=(
            "please report it, with these lines and what `trt-build doctor` prints; --debug shows"
            " the traceback"
        ),
    )


def own_line(error: BaseException) -> str:
    """The innermost line of trt-build in the traceback. For an error from a worker, the traceback
    is the text of its cause.
    """
    frames = re.findall(
        r'File "([^"]*/builder/[^"]+)", line (\d+), in (\w+)',
        str(error.__cause__ or ""),
    )
    if frames:
        file, line, function = frames[-1]
        return f"{file}:{line} in {function}"
    frames = traceback.extract_tb(error.__traceback__ or sys.exc_info()[2])
    inside = [frame for frame in frames if "/builder/" in frame.filename]
    if listed := inside or list(frames):
        frame = listed[-1]
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "unknown"
