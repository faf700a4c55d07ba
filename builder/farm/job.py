"""A job: everything that a machine needs to build one model for one target, as JSON.

It contains only names and hashes. The files are in the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.engine import BuildOptions
from builder.manifest import ModelSpec
from builder.store import Folders


@dataclass(frozen=True)
class Job:
    """The job.

    `files` has the SHA-256 of the model's files by path, of which `file` is the model file.
    `settings` are fields of `builder.repository.Settings`. `build` has the builder options in the
    form of a manifest. `version` is the digest of trt-build's source. With `only_goldens`, the
    goldens are recorded and nothing is built. `verify` is that of the target.
    """

    model: str
    target: str
    store: str
    file: str
    files: Mapping[str, str]
    version: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: Mapping[str, Any] = field(default_factory=dict)
    rebuild: bool = False
    require_sandbox: bool = False
    only_goldens: bool = False
    verify: str = "auto"

    def to_json(self) -> str:
        """Return the job as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Parse a job. Raises TypeError and ValueError for text that `to_json` did not write."""
        return cls(**json.loads(text))


def upload(spec: ModelSpec, store: Folders) -> tuple[str, dict[str, str]]:
    """Upload the files of the model to the store.

    Returns the path of the model file, and the SHA-256 of each file by path. Paths are relative to
    the deepest common folder, so names stay.
    """
    files = [Path(os.path.abspath(path)) for path in _files(spec)]
    root = Path(os.path.commonpath([path.parent for path in files])).parent
    digests = {path.relative_to(root).as_posix(): store.add(path) for path in files}
    return files[0].relative_to(root).as_posix(), digests


def _files(spec: ModelSpec) -> list[Path]:
    """Every file that the build reads, the model file first."""
    data = spec.calibration.data if spec.calibration else ()
    optional = [
        spec.manifest,
        spec.goldens,
        *spec.libraries,
        *(state.initial for state in spec.state),
        *(item for item in data if isinstance(item, Path)),
    ]
    return [spec.path, *dict.fromkeys(path for path in optional if path is not None)]


def option_data(options: BuildOptions) -> dict[str, Any]:
    """The options that are set, in the form of a manifest."""
    fields = options.set()
    capabilities = fields.pop("compute_capabilities", ())
    if capabilities:
        fields["compute_capabilities"] = [
            f"{major}.{minor}" for major, minor in capabilities
        ]
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in fields.items()
    }
