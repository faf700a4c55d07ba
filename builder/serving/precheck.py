"""Finds models that would make a server hang, before it is started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from builder.errors import ServerError, UsageError
from builder.serving.log import Failure
from builder.triton import read_config


def check(repository: Path, models: Iterable[str] | None = None) -> None:
    """Raise ServerError if a Python model's file is missing: up to 25.07 its load never ends.

    `models` are the models that will be loaded, None for all. An invalid config is left for the
    server to report.
    """
    if models is not None:
        folders = [repository / name for name in models]
    else:
        folders = sorted(repository.iterdir())
    missing = [
        str(failure)
        for folder in folders
        if folder.is_dir()
        for failure in _missing(folder)
    ]
    if missing:
        raise ServerError(
            "\n  ".join(["tritonserver was not started:", *missing]),
            fix="publish the models again with trt-build repo",
        )


def _missing(folder: Path) -> Iterator[Failure]:
    if not (folder / "config.pbtxt").is_file():
        return
    try:
        config = read_config(folder / "config.pbtxt")
    except (OSError, ValueError, UsageError):
        return
    if config.backend != "python":
        return
    versions = [
        path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()
    ]
    for version in sorted(versions):
        file = version / (config.default_model_filename or "model.py")
        if not file.exists():
            yield Failure(folder.name, f"{file.relative_to(folder)} is missing")
