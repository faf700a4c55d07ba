"""The staging folder of a publication, the move into a repository, and the repair after a killed
publication.

Triton treats every subfolder of a repository as a model, also hidden ones. So staging folders are
beside the repository: `.<repository>.staging-<id>`. The process that writes one holds a lock on it.
If the lock of a staging folder is free, its process has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from builder.errors import PublishBlocked
from builder.unforeseen import file_system_errors

OLD = "old "
"""Prefix of a model's former folder in staging: `old <model>`."""
ABANDONED_SECONDS = 24 * 3600.0
"""On file systems without locks: a staging folder of this age belongs to no running process."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def staging(repository: Path) -> Iterator[Path]:
    """An empty, locked folder beside `repository`, removed at the end. Raises OSError and
    PublishBlocked.
    """
    root = repository.resolve()
    with without_empty_parents(root), _locked_folder(root) as folder:
        yield folder


@contextlib.contextmanager
def without_empty_parents(folder: Path) -> Iterator[None]:
    """Remove the parents of `folder` that do not exist yet, if they are created inside the block
    and are empty at its end.
    """
    missing = [parent for parent in folder.parents if not os.path.lexists(parent)]
    try:
        yield
    finally:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()


@contextlib.contextmanager
def _locked_folder(root: Path) -> Iterator[Path]:
    """A locked staging folder of the repository `root`, removed at the end."""
    folder = root
    lock = -1
    try:
        while lock < 0:
            # The name is chosen first, because mkdtemp may be interrupted when the folder exists
            # and its name is not known yet.
            folder = root.parent / _new_name(root)
            _create(folder, root)
            lock = _locked(folder)
        refuse_mount(root, beside=folder)
        folder.chmod(0o755)
        yield folder
    finally:
        try:
            if folder != root:
                _remove(folder)
        finally:
            if lock >= 0:
                os.close(lock)


def _create(folder: Path, root: Path) -> None:
    """Create a staging folder of the repository `root`. Raises PublishBlocked."""
    problem = f"no folder can be created in {folder.parent}"
    with file_system_errors(problem, root, kind=PublishBlocked):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(0o700)


def probe(root: Path) -> None:
    """Raise PublishBlocked if no staging folder of the repository `root` can be created. In file
    systems such as /proc, os.access permits what is then refused.
    """
    nearest = next(folder for folder in root.parents if os.path.exists(folder))
    folder = nearest / _new_name(root)
    try:
        _create(folder, root)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _new_name(root: Path) -> str:
    return f"{_prefix(root)}{uuid.uuid4().hex}"


def _remove(folder: Path) -> None:
    """Remove a staging folder, even if a signal handler raises during the removal."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def prepared(repository: Path, count: int) -> Iterator[list[Path]]:
    """`count` staging folders for processes that may write only there and in `repository`.

    The repository's folder exists inside the block. It is removed at the end if it was created and
    is empty. Raises OSError and PublishBlocked.
    """
    root = repository.resolve()
    with without_empty_parents(root), _prepared(root, count) as folders:
        yield folders


@contextlib.contextmanager
def _prepared(root: Path, count: int) -> Iterator[list[Path]]:
    created = not root.exists()
    try:
        with contextlib.ExitStack() as stack:
            folders = [stack.enter_context(_repaired(root)) for _ in range(count)]
            root.mkdir(exist_ok=True)
            yield folders
    finally:
        # another publication's staging folder means that it needs the repository's
        if created and not any(root.parent.glob(f"{_prefix(root)}*")):
            with contextlib.suppress(OSError), lock(root):
                root.rmdir()


@contextlib.contextmanager
def _repaired(root: Path) -> Iterator[Path]:
    """A staging folder for another process, which may end at any time."""
    with staging(root) as folder:
        try:
            yield folder
        finally:
            for _ in _restore(folder, root):
                pass


def refuse_mount(root: Path, beside: Path) -> None:
    """Raise PublishBlocked if a repository at `root` is on another file system than its staging
    folders.
    """
    if root.exists() and beside.stat().st_dev != root.stat().st_dev:
        raise PublishBlocked(
            f"{root} is a mount of its own, so nothing beside it can be moved into it whole",
            fix="publish into a folder inside the mount",
        )


@contextlib.contextmanager
def lock(repository: Path) -> Iterator[None]:
    """A lock with which one process at a time changes the repository.

    The folder is created if missing: another publication that created it and failed may have
    removed it.
    """
    handle = _lock_of(repository)
    try:
        yield
    finally:
        os.close(handle)


def _lock_of(folder: Path) -> int:
    """A handle with the lock of the folder that now has this path."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), folder.stat()):
                return handle
        os.close(handle)  # it was removed while we waited


def recover(repository: Path) -> tuple[str, ...]:
    """Repair what killed publications left, and return the names of the models that were put back.

    Each model that was moved out and not yet replaced is put back. Then the staging folders are
    removed. Raises OSError.
    """
    # Path.resolve raises RuntimeError for a loop of links before Python 3.13
    root = Path(os.path.realpath(repository))
    restored: list[str] = []
    for folder in sorted(root.parent.glob(f"{_prefix(root)}*")):
        handle = _abandoned(folder)
        if handle is None:
            continue
        try:
            restored += _restore(folder, root)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)
    return tuple(restored)


def _restore(folder: Path, root: Path) -> Iterator[str]:
    """Move former models back if their name is free: the publication ended between its
    two renames.
    """
    former = sorted(folder.glob(f"{OLD}*"))
    if not former:
        return
    root.mkdir(parents=True, exist_ok=True)
    with lock(root):
        for old in former:
            name = old.name.removeprefix(OLD)
            if not (root / name).exists():
                old.rename(root / name)
                yield name
        sync(root)


def _prefix(root: Path) -> str:
    return f".{root.name}.staging-"


def _locked(folder: Path) -> int:
    """An open handle with the folder's lock; -1 if another process removed the folder before it was
    locked.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return -1
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    if folder.exists():
        return handle
    os.close(handle)
    return -1


def _abandoned(folder: Path) -> int | None:
    """An open handle with the lock of a folder whose process has ended; None for other folders."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except BlockingIOError:
        pass
    except OSError:
        if time.time() - os.fstat(handle).st_mtime > ABANDONED_SECONDS:
            return handle
    os.close(handle)
    return None


def swap(new: Path, target: Path, old: Path) -> None:
    """Move `new` to `target`. What was at `target` is at `new` or `old` afterwards.

    If possible, one system call exchanges the two, so that readers always find one of them.
    """
    if not target.exists():
        try:
            new.rename(target)
            return
        except OSError as error:
            # with these two, another builder was faster
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    if not exchange(new, target):
        replace(new, target, old)


def replace(new: Path, target: Path, old: Path) -> None:
    """Move `new` to `target` by two renames. `recover` repairs an interruption between them."""
    try:
        target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def exchange(first: Path, second: Path) -> bool:
    """Exchange two paths by Linux's renameat2(RENAME_EXCHANGE). Returns False if the kernel, the C
    library or the file system does not support it.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if (
        call(
            _AT_FDCWD,
            os.fsencode(first),
            _AT_FDCWD,
            os.fsencode(second),
            _RENAME_EXCHANGE,
        )
        == 0
    ):
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def sync_tree(folder: Path) -> None:
    """Flush the folder and its content to disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Flush one file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
