"""Signs published models with PyPI's model-signing.

Each sub-folder of a repository (a model, or a step of an ensemble) has its own `trt-build.sig`: a
Sigstore bundle with the SHA-256 of every other file, signed with an elliptic-curve key. A model is
signed in its staging folder, so a signed repository never contains an unsigned model.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from builder import files, processes
from builder.errors import EnvironmentProblem, UsageError
from builder.store import COMPILED, CONFIG, SIGNATURE, published, staging
from builder.triton import bytecode

SIGN_MODEL = "sign model"
"""The request of a worker to its caller, which alone has the key."""
PASSWORD = "TRT_BUILD_SIGN_PASSWORD"
"""The environment variable with the password of an encrypted private key."""
MAKE_KEYS = (
    "openssl ecparam -name prime256v1 -genkey -noout -out sign.key && openssl ec -in sign.key"
    " -pubout -out sign.pub"
)

SHOWN = 3
"""The number of files that an error names."""

_key: ContextVar[Path | None] = ContextVar("key", default=None)
_DIFFERENCES = {
    "changed": re.compile(r"Hash mismatch for '([^']+)'"),
    "added": re.compile(r"Extra files found in model '[^']*': ([^'\"\]]+)"),
    "missing": re.compile(r"Missing files in model '[^']*': ([^'\"\]]+)"),
}
"""How model-signing 1.1 describes differences."""


@contextlib.contextmanager
def signing_with(key: Path | None) -> Iterator[None]:
    """Sign publications inside the `with` block with this private key; None signs nothing.

    Raises UsageError for an unusable key, EnvironmentProblem without model-signing.
    """
    if key is not None:
        _signer(key)
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


def handlers(stage: Path) -> dict[str, Callable[..., Any]]:
    """The requests of a worker that publishes from the folder `stage` (processes.Task.handlers): to
    sign a folder inside. Empty if nothing is signed.
    """
    key = _key.get()
    if key is None:
        return {}
    return {SIGN_MODEL: functools.partial(_sign_staged, key, stage)}


def secrets() -> tuple[Path, ...]:
    """The files that a worker must not read: the private key."""
    key = _key.get()
    if key is None:
        return ()
    return (key.resolve(),)


def sign_staged(folders: Sequence[Path]) -> None:
    """Sign these folders if signing_with, or the caller of this worker, requires it."""
    for folder in folders:
        if processes.can_ask(SIGN_MODEL):
            processes.call_parent(SIGN_MODEL, folder.parent.name, folder.name)
        elif (key := _key.get()) is not None:
            sign(folder, key)


def _sign_staged(key: Path, stage: Path, parent: str, name: str) -> None:
    """Sign one folder for a worker. The worker's path is not trusted."""
    if parent != stage.name or Path(name).name != name or (stage / name).is_symlink():
        raise UsageError(f"{parent}/{name} is not a model that this task publishes")
    sign(stage / name, key)


def sign(folder: Path, key: Path) -> None:
    """Write the signature of all files of the model in `folder`.

    Raises UsageError for an unusable key, for links or pipes in the folder and if the signature's
    path is a folder, OSError.
    """
    if (folder / SIGNATURE).is_dir():
        raise UsageError(
            f"{folder.name} cannot be signed: {SIGNATURE} is a folder",
            where=str(folder / SIGNATURE),
            fix="remove it",
        )
    with files.naming(folder / SIGNATURE):
        _sign(folder, key)


def _sign(folder: Path, key: Path) -> None:
    handle, name = tempfile.mkstemp(
        prefix=published.UNFINISHED_SIGNATURE, dir=folder.parent
    )
    os.close(handle)
    written = Path(name)
    try:
        # a signature lists ignored paths, so later content there would pass, too
        with bytecode.removed(folder):
            _signer(key).set_hashing_config(_hashing()).sign(folder, written)
        shutil.copymode(folder / CONFIG, written)
        written.replace(folder / SIGNATURE)
    except ValueError as error:
        raise UsageError(
            f"{folder.name} cannot be signed: {error}", where=str(folder)
        ) from error
    finally:
        written.unlink(missing_ok=True)


def sign_missing(repository: Path, key: Path, only: Sequence[str] = ()) -> list[str]:
    """Sign each sub-folder of the repository without a valid signature of this key.

    Returns their names. With `only`, signs only these models and their steps. Raises as `sign`
    does.
    """
    _folders(repository, only)  # raises if there is no repository
    with staging.lock(repository):
        remove_compiled(repository, only)
        verifier = _verifier_of(key)
        unsigned = [
            folder
            for folder in _folders(repository, only)
            if _problem(folder, verifier) is not None
        ]
        for folder in unsigned:
            sign(folder, key)
    return [folder.name for folder in unsigned]


def problems(
    repository: Path,
    public_key: Path,
    only: Sequence[str] = (),
    *,
    served: bool = False,
) -> dict[str, str]:
    """Return the reason for each sub-folder of the repository whose signature is invalid.

    Triton loads every sub-folder, so folders without a signature are included. With `only`, checks
    these models and their steps. A server writes compiled Python files into its repository; they
    are ignored if it is `served`.

    Raises UsageError for an unusable key, EnvironmentProblem without model-signing.
    """
    verifier = functools.partial(_verifier, public_key)
    verifier()
    reasons = {
        folder.name: _problem(folder, verifier, _compiled(folder) if served else ())
        for folder in _folders(repository, only)
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def require(repository: Path, public_key: Path, only: Sequence[str] = ()) -> None:
    """Raise UsageError if a sub-folder of the repository is not signed with the key that belongs to
    `public_key`, or was changed since.

    With `only`, checks these models and their steps. Compiled Python files are removed first.
    """
    remove_compiled(repository, only)
    reasons = problems(repository, public_key, only)
    if reasons:
        raise UsageError(
            "the signature is not valid: "
            + "; ".join(
                f"{name}: {reason}" for name, reason in sorted(reasons.items())
            ),
            where=str(repository),
            fix="build the model again, or check the change and run `trt-build sign`",
        )


def remove_compiled(repository: Path, only: Sequence[str]) -> None:
    """Remove the compiled Python files that Triton's Python backend left in the models' folders.

    They are not signed, and Python would run them instead of the signed source. Raises OSError.
    """
    for folder in _folders(repository, only):
        for compiled in _compiled(folder):
            shutil.rmtree(folder / compiled)


def _compiled(folder: Path) -> list[Path]:
    """The folders of compiled Python files, relative to the model's folder."""
    return [
        path.relative_to(folder)
        for path in folder.rglob(COMPILED)
        if path.is_dir() and not path.is_symlink()
    ]


def is_signed(folder: Path) -> bool:
    """Whether the folder has a signature, valid or not."""
    return (folder / SIGNATURE).is_file()


def _folders(repository: Path, only: Sequence[str]) -> list[Path]:
    if not repository.is_dir():
        raise UsageError(f"{repository} is not a folder", fix="name a model repository")
    folders = sorted(path for path in repository.iterdir() if path.is_dir())
    if not only:
        return folders
    steps = {step for name in only for step in published.step_names(repository / name)}
    return [folder for folder in folders if folder.name in steps or folder.name in only]


def _problem(
    folder: Path, verifier: Callable[[], Any], ignored: Sequence[Path] = ()
) -> str | None:
    """Why the folder's signature is invalid; None if it is valid."""
    if folder.is_symlink():
        return "it is a link"
    if not is_signed(folder):
        return f"it has no {SIGNATURE}"
    try:
        hashing = _hashing((*ignored, *bytecode.placed(folder)))
        verifier().set_hashing_config(hashing).verify(folder, folder / SIGNATURE)
    except Exception as error:  # a crafted signature may raise any exception
        return _reason(error)
    return _other_name(folder)


def _reason(error: Exception) -> str:
    if isinstance(error, (json.JSONDecodeError, TypeError, LookupError)):
        return f"its {SIGNATURE} is damaged"
    text = str(error).replace("\\'", "'") or type(error).__name__
    if text.startswith("Key mismatch") or "InvalidSignature" in text:
        return "it is signed with another key"
    names_by_kind = {
        kind: pattern.findall(text) for kind, pattern in _DIFFERENCES.items()
    }
    differences = [
        f"{kind} {_shortened(names)}" for kind, names in names_by_kind.items() if names
    ]
    return "; ".join(differences) or text[:500]


def _shortened(matches: Sequence[str]) -> str:
    """The first SHOWN names; each match may contain several."""
    names = [name for match in matches for name in match.split(", ")]
    more = ""
    if len(names) > SHOWN:
        more = f" and {len(names) - SHOWN} more"
    return f"{', '.join(names[:SHOWN])}{more}"


def _other_name(folder: Path) -> str | None:
    """Check the config for another name: a signed folder may have been renamed to serve as another
    model.
    """
    from builder.triton.config import read_config

    try:
        name = read_config(folder / CONFIG).name
    except (OSError, ValueError, UsageError) as error:
        return str(error)
    if name == folder.name:
        return None
    return f"it was signed as {name!r}"


def _hashing(ignored: Sequence[Path] = ()) -> Any:
    """Compute SHA-256 of every file except the signature and those below `ignored`. Links are not
    followed.
    """
    library = _library("hashing")
    return library.Config().set_ignored_paths(
        paths=[SIGNATURE, *ignored], ignore_git_paths=False
    )


def _signer(key: Path) -> Any:
    config = _library("signing").Config()
    password = os.environ.get(PASSWORD)
    with _usable(key, "private"):
        return config.use_elliptic_key_signer(
            private_key=key, password=password.encode() if password else None
        )


def _verifier(public_key: Path) -> Any:
    config = _library("verifying").Config()
    with _usable(public_key, "public"):
        return config.use_elliptic_key_verifier(public_key=public_key)


def _verifier_of(key: Path) -> Callable[[], Any]:
    """Create verifiers for the public part of a private key."""
    from cryptography.hazmat.primitives import serialization

    public = _signer(key)._signer._private_key.public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )

    def verifier() -> Any:
        with tempfile.NamedTemporaryFile(suffix=".pub") as file:
            file.write(pem)
            file.flush()
            return _verifier(Path(file.name))

    return verifier


@contextlib.contextmanager
def _usable(key: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the {kind} key {key} cannot be read: {error.strerror}",
            fix="name a file that you can read",
        ) from error
    except Exception as error:  # cryptography raises many types of errors for keys
        raise UsageError(
            f"{key} is not a {kind} key that can be used: {_fault(error)}",
            fix=f"name an elliptic-curve key in PEM form: {MAKE_KEYS}"
            f" (the password of an encrypted one: {PASSWORD})",
        ) from error


def _fault(error: Exception) -> str:
    """The reason why a key cannot be used. A key of another kind has no curve."""
    if isinstance(error, AttributeError):
        return "it is not an elliptic-curve key"
    return str(error)


def _library(module: str) -> Any:
    """Import a module of model-signing, which is optional and slow to import."""
    import importlib

    try:
        return importlib.import_module(f"model_signing.{module}")
    except ImportError as error:
        raise EnvironmentProblem(
            f"signatures need the package model-signing: {error}",
            fix="pip install 'trt-build[sign]'",
        ) from error
