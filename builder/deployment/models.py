"""Reads the models of a repository as a server does: config, trt-build.json and plan.json."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import UsageError
from builder.store import CONFIG, SIDECAR, published
from builder.triton import SHARED_INSTANCES, read_config

STUB_SHM_BYTES = 1 << 20
"""The minimum shared memory that the Python backend reserves for each instance."""


@dataclass(frozen=True)
class Model:
    """A model folder of the repository: its config, trt-build.json and plan.json ({} if
    missing).
    """

    folder: Path
    config: Any
    record: Mapping[str, Any]
    plan: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.folder.name

    @property
    def version(self) -> Path:
        """The folder of the current version."""
        return self.folder / str(published.number_of(self.record))

    @property
    def runs_plan(self) -> bool:
        """Whether Triton's TensorRT backend loads its plan."""
        return bool(self.config.backend == "tensorrt")

    @property
    def capabilities(self) -> frozenset[str]:
        """The compute capabilities of the GPUs that its plans support; empty if unknown."""
        built = self.plan.get("compute_capabilities") or ()
        return frozenset(self.config.cc_model_filenames or built)

    @property
    def instances(self) -> int:
        """The number of Triton's instances on one GPU."""
        return sum(group.count or 1 for group in self.config.instance_group) or 1

    @property
    def concurrent(self) -> int:
        """The number of batches that run at once on one GPU. Shared instances run in one process,
        which Triton counts as one instance.
        """
        parameters = self.config.parameters
        if SHARED_INSTANCES not in parameters:
            return self.instances
        return self.instances * int(parameters[SHARED_INSTANCES].string_value)

    @property
    def profiles(self) -> Sequence[Mapping[str, Mapping[str, Sequence[int]]]]:
        """The `min`, `opt` and `max` shapes by profile and input, including the batch."""
        recorded = self.record.get("profiles")
        return recorded if isinstance(recorded, list) else ()

    @property
    def is_python(self) -> bool:
        """Whether Triton's Python backend runs it, with one process for each instance."""
        return bool(self.config.backend == "python")

    @property
    def steps(self) -> list[str]:
        """The names of an ensemble's steps; empty for other models."""
        return [step.model_name for step in self.config.ensemble_scheduling.step]

    @property
    def plan_bytes(self) -> int:
        """Bytes of the plans of the current version."""
        return sum(file.stat().st_size for file in self.version.glob("*.plan"))

    @property
    def shared_memory(self) -> int:
        """Bytes of /dev/shm that its processes need: the Python backend's reservation and the
        tensors of the largest golden.
        """
        if not self.is_python:
            return 0
        sizes = [file.stat().st_size for file in self.folder.glob("goldens/*.npz")]
        tensors = self.concurrent * max(sizes, default=0)
        return self.instances * STUB_SHM_BYTES + tensors


def read(folder: Path) -> Model:
    """Read the model in `folder`. Raises OSError, ValueError or UsageError if it is not one."""
    config = read_config(folder / CONFIG)
    record = published.read(folder / SIDECAR)
    file = folder / str(published.number_of(record)) / "plan.json"
    return Model(folder, config, record, _plan(file) if file.is_file() else {})


def _plan(file: Path) -> dict[str, Any]:
    """The contents of plan.json beside the plan. Raises OSError, ValueError."""
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{file} is not a JSON object")
    return facts


def readable(repository: Path) -> list[Model]:
    """The models of the repository by name, without unreadable folders."""
    models = []
    for folder in sorted(path for path in repository.iterdir() if path.is_dir()):
        with contextlib.suppress(OSError, ValueError, UsageError):
            models.append(read(folder))
    return models


def folder_bytes(folder: Path) -> int:
    """The total size in bytes of all files in the folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
