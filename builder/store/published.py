"""Whether a published model is still what a build would give: read from its trt-build.json, without
torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.store.canonical import plain
from builder.store.hashes import Hashes

SIDECAR = "trt-build.json"
REQUEST, PLANS, RESULT = "request", "plans", "result"
"""The sidecar's keys for what was asked, the keys of the plans that came of it, and what the build
said of it.
"""


def sidecar(folder: Path) -> dict[str, Any] | None:
    """What the model's trt-build.json says; None where there is none that can be read, or that we
    wrote.
    """
    try:
        read = json.loads((folder / SIDECAR).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) and _ours(read) else None


def _ours(read: dict[str, Any]) -> bool:
    """Whether what is read below has the shape that it is written in."""
    shapes = {REQUEST: dict, PLANS: dict, RESULT: dict, "files": dict, "steps": list}
    made = read.get(PLANS)
    return all(
        isinstance(read.get(name, shape()), shape) for name, shape in shapes.items()
    ) and all(
        isinstance(one, dict)
        and isinstance(one.get("parts"), dict)
        and {"key", "because"} <= set(one)
        for one in (made.values() if isinstance(made, dict) else ())
    )


def recorded_request(folder: Path) -> dict[str, Any] | None:
    """The request that the published model was built from; None where it is not known."""
    found = (sidecar(folder) or {}).get(REQUEST)
    return found if isinstance(found, dict) else None


def record(
    folder: Path, request: Mapping[str, Any], plans: Mapping[str, Any], result: Mapping[str, Any]
) -> None:
    """Add to the trt-build.json of a model that is published what it was built from, and what to
    tell of it. Raises OSError.

    A model that was published and never recorded is built again: that is safe, the other way round
    would not be.
    """
    said = {
        **(sidecar(folder) or {}),
        REQUEST: plain(request),
        PLANS: plain(plans),
        RESULT: plain(result),
    }
    staged = folder / f".{SIDECAR}.{os.getpid()}.tmp"
    try:
        staged.write_text(json.dumps(said, indent=2) + "\n")
        staged.replace(folder / SIDECAR)
    finally:
        staged.unlink(missing_ok=True)


def stale(folder: Path, wanted: Mapping[str, Any], hashes: Hashes) -> str | None:
    """Why the model in `folder` is not what the request `wanted` gives, in words; None where it is.

    Every file of it, and of the steps of an ensemble, must be as it was written.
    """
    from builder.store.differences import because

    before = recorded_request(folder)
    if before is None or before != wanted:
        return because(before, wanted)
    broken = list(_damaged(folder, sidecar(folder) or {}, hashes))
    return f"{broken[0]} of the published model is damaged" if broken else None


def _damaged(folder: Path, said: Mapping[str, Any], hashes: Hashes) -> Iterator[str]:
    """The files that are missing or are not what the sidecar says of them."""
    for name, expected in said.get("files", {}).items():
        if _hash(folder / name, hashes) != expected:
            yield name
    for step in said.get("steps", ()):
        other = folder.parent / step
        yield from (
            f"../{step}/{name}"
            for name in _damaged(other, sidecar(other) or {"files": {SIDECAR: ""}}, hashes)
        )


def _hash(path: Path, hashes: Hashes) -> str | None:
    try:
        return hashes.sha256(path)
    except OSError:
        return None
