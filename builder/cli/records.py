"""Where `verify --record` and `bench --record` keep their documents for `report`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from builder.errors import EnvironmentProblem


def folder(repository: Path) -> Path:
    """`<repository>.results`, beside the repository: Triton takes each folder in it for a model."""
    whole = repository.resolve()
    return whole.with_name(f"{whole.name}.results")


def path(repository: Path, kind: str) -> Path:
    """The document of this kind: "verify", "bench", "tune"."""
    return folder(repository) / f"{kind}.json"


def write(file: Path, data: Any) -> None:
    """Write the document whole or not at all. Raises EnvironmentProblem."""
    text = json.dumps(data, indent=2, default=str) + "\n"
    try:
        file.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "w") as staged:
                staged.write(text)
            Path(name).chmod(0o644)
            os.replace(name, file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EnvironmentProblem(
            f"the results cannot be written: {error.strerror}", where=str(file)
        ) from error


def read(file: Path) -> dict[str, Any] | None:
    """The document; None where there is none that can be read."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None
