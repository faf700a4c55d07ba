"""Publication: a model's folder is in the repository whole, or not at all, at every moment.

Triton takes every sub-folder of a repository for a model, hidden ones too, so the new folder is written beside the
repository, made durable, and moved in by one rename.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builder.errors import PublishError
from builder.triton import layout
from builder.triton.artifact import ModelArtifact

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def publish(artifact: ModelArtifact, repository: Path, *, base: Path | None = None) -> Path:
    """Write the model into `repository` (made if missing), in place of one of the same name; returns its folder.

    Interrupted or out of space, it leaves what stood before and nothing else. Raises PublishError, UsageError (see
    config).
    """
    target = repository / artifact.spec.name
    try:
        with _repository(repository), _staging(repository) as staging:
            new = staging / artifact.spec.name
            new.mkdir()
            layout.write(artifact, new, base=base)
            _sync_tree(new)
            _swap(new, target, staging / "old")
            _sync(repository)
    except OSError as error:
        raise PublishError(
            f"model {artifact.spec.name!r} was not published: {error}", where=str(target), fix=_fix(error)
        ) from error
    return target


@contextlib.contextmanager
def _repository(repository: Path) -> Iterator[None]:
    """The repository's folder; taken away again if we made it and then failed."""
    made = not repository.exists()
    repository.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                repository.rmdir()
        raise


@contextlib.contextmanager
def _staging(repository: Path) -> Iterator[Path]:
    root = repository.resolve()
    folder = Path(tempfile.mkdtemp(prefix=f".{root.name}.staging-", dir=root.parent))
    try:
        if folder.stat().st_dev != root.stat().st_dev:
            raise PublishError(
                f"{root} is a mount of its own, so nothing beside it can be moved into it whole",
                fix="publish into a folder inside the mount",
            )
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(new: Path, target: Path, old: Path) -> None:
    """Put `new` at `target`; one system call exchanges them where it can, so that readers never find neither."""
    if not target.exists():
        new.rename(target)
    elif not _exchange(new, target):
        _replace(new, target, old)


def _replace(new: Path, target: Path, old: Path) -> None:
    try:
        target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Linux's renameat2(RENAME_EXCHANGE); False where the kernel, the C library or the filesystem has none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fix(error: OSError) -> str | None:
    return {errno.ENOSPC: "free disk space", errno.EACCES: "a folder that you may write to"}.get(error.errno or 0)
