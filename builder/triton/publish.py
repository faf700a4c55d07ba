"""Publication: a model's folder is in the repository whole, or not at all, at every moment.

Triton takes every sub-folder of a repository for a model, hidden ones too, so the new folder is
written beside the repository, made durable, and moved in by one rename.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from builder.errors import PublishBlocked, PublishError
from builder.triton import layout
from builder.triton.artifact import EnsembleArtifact, ModelArtifact

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free disk space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "a folder that you may write to"),
}
"""What the machine may refuse, and what to do."""


Writer = Callable[[Path], None]
"""Fills the empty folder of one model."""


def publish(
    artifact: ModelArtifact,
    repository: Path,
    *,
    base: Path | None = None,
    finish: Writer | None = None,
) -> Path:
    """Write the model into `repository` (made if missing), in place of one of the same name;
    returns its folder. `finish` adds to the folder before anybody sees it.

    Steps that the model had as an ensemble are taken away. Interrupted or out of space, it leaves
    what stood before and nothing else. Raises PublishError, UsageError (see config).
    """
    name = artifact.spec.name
    return _publish(
        name, {name: lambda folder: layout.write(artifact, folder, base=base)}, repository, finish
    )


def publish_ensemble(
    artifact: EnsembleArtifact,
    repository: Path,
    *,
    base: Path | None = None,
    finish: Writer | None = None,
) -> Path:
    """Write an ensemble and its steps: all are written before any is moved in, then the steps one
    by one and the ensemble last; where one cannot be, those before it are moved out again.
    Otherwise as publish.
    """
    name = artifact.spec.name
    writers: dict[str, Writer] = {
        step.spec.name: functools.partial(layout.write, step, base=base) for step in artifact.steps
    }
    writers[name] = lambda folder: layout.write_ensemble(artifact, folder, base=base)
    return _publish(name, writers, repository, finish)


def publish_folder(name: str, write: Writer, repository: Path) -> Path:
    """Put a model that `write` fills the folder of into `repository`, as publish does."""
    return _publish(name, {name: write}, repository)


def _publish(
    name: str, writers: Mapping[str, Writer], repository: Path, finish: Writer | None = None
) -> Path:
    target = repository / name
    try:
        with _repository(repository), _staging(repository) as staging:
            _not_foreign(name, writers, repository)
            for model, write in writers.items():
                (staging / model).mkdir()
                write(staging / model)
                if finish is not None and model == name:
                    finish(staging / model)
                _sync_tree(staging / model)
            _no_step_of_another(name, repository, staging)
            with _alone(repository):
                _swap_all(writers, repository, staging)
                for stale in _steps(name, repository) - set(writers):
                    (repository / stale).rename(staging / f"stale {stale}")
                _sync(repository)
    except OSError as error:
        kind = PublishBlocked if error.errno in FIXES else PublishError
        fix = FIXES.get(error.errno or 0)
        raise kind(
            f"model {name!r} was not published: {error}", where=str(target), fix=fix
        ) from error
    return target


@contextlib.contextmanager
def _alone(repository: Path) -> Iterator[None]:
    """One builder at a time moves its folders in: two of one ensemble would leave the steps of
    both.
    """
    handle = os.open(repository, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _not_foreign(name: str, models: Iterable[str], repository: Path) -> None:
    """A step's folder replaces nothing but the same model's step."""
    own = _steps(name, repository)
    for model in models:
        if model != name and (repository / model).exists() and model not in own:
            raise PublishError(
                f"{model!r} is the name of a step of {name!r}, and a model of its own in the"
                " repository",
                where=str(repository / model),
                fix="rename that model, or --layout fused",
            )


def _no_step_of_another(name: str, repository: Path, staging: Path) -> None:
    """What is published under the name of an ensemble's step is that step: the ensemble would be
    served with it.
    """
    owner = _step_of(repository / name / layout.SIDECAR)
    if (
        owner in (None, name, _step_of(staging / name / layout.SIDECAR))
        or not (repository / str(owner)).exists()
    ):
        return
    raise PublishError(
        f"{name!r} is the name of a step of {owner!r}, which would be served with this model",
        where=str(repository / name),
        fix=f"rename the model, or build {owner!r} with --layout fused",
    )


def _steps(name: str, repository: Path) -> set[str]:
    """The models of the repository that are steps of the ensemble `name`."""
    return {
        path.parent.name
        for path in repository.glob(f"*/{layout.SIDECAR}")
        if _step_of(path) == name
    }


def _step_of(sidecar: Path) -> str | None:
    try:
        said = json.loads(sidecar.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return said.get("step_of") if isinstance(said, dict) else None


def _swap_all(models: Iterable[str], repository: Path, staging: Path) -> None:
    """Move every model in, in order; if one cannot be, those that were are put back as they
    stood.
    """
    done: list[tuple[str, bool]] = []
    try:
        for model in models:
            existed = (repository / model).exists()
            _swap(staging / model, repository / model, staging / f"old {model}")
            done.append((model, existed))
    except BaseException:
        for model, existed in reversed(done):
            _put_back(model, existed, repository, staging)
        raise


def _put_back(model: str, existed: bool, repository: Path, staging: Path) -> None:
    (repository / model).rename(staging / f"withdrawn {model}")
    if existed:
        old = staging / f"old {model}"
        (old if old.exists() else staging / model).rename(repository / model)


@contextlib.contextmanager
def _repository(repository: Path) -> Iterator[None]:
    """The repository's folder; taken away again if we made it and then failed."""
    made = not repository.exists()
    try:  # around mkdir too: an interrupt may arrive within it
        repository.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                repository.rmdir()
        raise


def refuse_mount(root: Path, beside: Path) -> None:
    """Raise PublishBlocked where a repository at `root` is on another file system than what is
    written beside it.
    """
    if root.exists() and beside.stat().st_dev != root.stat().st_dev:
        raise PublishBlocked(
            f"{root} is a mount of its own, so nothing beside it can be moved into it whole",
            fix="publish into a folder inside the mount",
        )


@contextlib.contextmanager
def _staging(repository: Path) -> Iterator[Path]:
    root = repository.resolve()
    folder = root.parent / f".{root.name}.staging-{uuid.uuid4().hex}"
    # named before it is made: mkdtemp may be interrupted when the folder is there and its name is
    # not known yet
    try:
        folder.mkdir(0o700)
        refuse_mount(root, beside=folder)
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(new: Path, target: Path, old: Path) -> None:
    """Put `new` at `target`; one system call exchanges them where it can, so that readers never
    find neither.
    """
    if not target.exists():
        try:
            new.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another builder was faster
                raise
    if not _exchange(new, target):
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
    """Linux's renameat2(RENAME_EXCHANGE); False where the kernel, the C library or the filesystem
    has none.
    """
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
