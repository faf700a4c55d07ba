"""Whether the repository can be written, asked before anything is built for it."""

from __future__ import annotations

import os
from pathlib import Path

from builder.errors import EnvironmentProblem, UsageError
from builder.store import staging


def check(out: Path) -> None:
    """Raise UsageError where a file or a link to nothing stands where the repository would be,
    EnvironmentProblem where nothing may be written there or beside it, PublishBlocked where it is a
    mount: models are staged beside the repository and moved in.
    """
    for place in (out, *out.parents):
        if place.is_symlink() and not place.exists():
            raise UsageError(
                f"{place} is a link to {place.readlink()}, which does not exist",
                fix="use another --out",
            )
    root = out.resolve()
    for folder in (root, root.parent):
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        if not nearest.is_dir():
            raise UsageError(
                f"{nearest} is no folder, so {out} cannot be the repository", fix="another --out"
            )
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise EnvironmentProblem(
                f"nothing can be written into {nearest}, and the repository {out} needs it",
                fix="--out in a folder that you may write to",
            )
    if root.is_mount():
        staging.refuse_mount(root, beside=root.parent)
