"""A published model for verify: its config, its trt-build.json, its goldens, and their form in
requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from builder.errors import UsageError
from builder.manifest import Tolerance
from builder.store import SIDECAR, published, retired
from builder.triton import Golden, damage, dtypes, goldens, read_config, versions


@dataclass(frozen=True)
class PublishedModel:
    """One folder of a repository."""

    name: str
    config: Any
    sidecar: dict[str, Any]
    goldens: tuple[Golden, ...]
    folder: Path = Path()

    @property
    def tolerance(self) -> Tolerance:
        """The manifest's tolerance, or None, and the outputs that depend on results of 16 bits."""
        values = dict(self.sidecar["tolerance"])
        rounded = values.get("rounded")
        known = {}
        if isinstance(rounded, dict):
            known = {name: str(dtype) for name, dtype in rounded.items()}
        return Tolerance(**{**values, "rounded": known})

    @property
    def precision(self) -> str:
        """The precision that the plan was built with."""
        return str(self.sidecar["precision"])

    @property
    def keeps_state(self) -> bool:
        """Whether the server keeps state between the requests of a sequence."""
        return bool(self.config.HasField("sequence_batching"))

    def without_state(self, golden: Golden) -> Golden:
        """The golden without state that the server keeps."""
        state_names = {
            state[side]
            for state in self.sidecar.get("state", ())
            for side in ("input", "output")
        }
        return golden.changed(
            lambda arrays: {
                name: array for name, array in arrays.items() if name not in state_names
            }
        )

    def wire(self, golden: Golden) -> Golden:
        """The golden in the endpoint's form: served dtypes, shape [1] for 0-d tensors, at most
        max_batch_size rows, and without the omitted inputs.

        Rows are limited because other sizes may have profiles with smaller batches only.
        """
        inputs = {
            name: self._wire("inputs", name, array)
            for name, array in golden.inputs.items()
            if name not in golden.omitted
        }
        outputs = {
            name: self._wire("outputs", name, array)
            for name, array in golden.outputs.items()
        }
        return Golden(golden.name, inputs, outputs)

    def _wire(self, side: str, name: str, array: NDArray[Any]) -> NDArray[Any]:
        declared = next((io for io in self.sidecar[side] if io["name"] == name), None)
        if declared is None:
            return array
        own_type = dtypes.by_name(declared["dtype"]).numpy == array.dtype
        served = (
            array.astype(dtypes.by_name(declared["served_dtype"]).numpy)
            if own_type
            else array
        )
        most = self.config.max_batch_size
        if most:
            served = served[:most]
        without_axes = len(declared["shape"]) == (1 if most else 0)
        if without_axes:
            return served.reshape(*served.shape, 1)
        return served


def chosen(repository: Path, models: Sequence[str] | None) -> Sequence[str]:
    """`models`, or all of the repository except the former steps of ensembles, which a server may
    have unloaded.

    Raises UsageError for a model that the repository does not have. Its fix lists the models
    without steps.
    """
    known = published.model_names(repository)
    unknown = [name for name in models or () if name not in known]
    if unknown:
        raise UsageError(
            f"no model {', '.join(map(repr, unknown))} in {repository}",
            fix=f"use one of {', '.join(without_steps(repository))}",
        )
    return models or [name for name in known if not _is_former_step(repository / name)]


def without_steps(repository: Path) -> list[str]:
    """The published models except the steps of ensembles, which are served through them."""
    names = published.model_names(repository)
    return [name for name in names if not is_step(repository / name)]


def _is_former_step(folder: Path) -> bool:
    """Whether the model is a step that the current version of its ensemble does not name."""
    if not is_step(folder):
        return False
    owner = folder.parent / str(retired.step_of(folder))
    return folder.name not in (
        published.read(owner / SIDECAR).get(published.STEPS) or ()
    )


def is_step(folder: Path) -> bool:
    """Whether the model is a step of an ensemble in the repository."""
    owner = retired.step_of(folder)
    return owner is not None and (folder.parent / owner).is_dir()


def read(folder: Path) -> PublishedModel:
    """The model in `folder`. Raises UsageError if one of its files is missing or invalid."""
    try:
        for name in ("config.pbtxt", SIDECAR):
            # reading a pipe blocks until something writes to it
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{name} is missing, or no regular file")
        return PublishedModel(
            folder.name,
            read_config(folder / "config.pbtxt"),
            _sidecar(folder),
            goldens.load(folder / goldens.FOLDER),
            folder,
        )
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            f"not a model that trt-build published: {error}", where=str(folder)
        ) from error


def _sidecar(folder: Path) -> dict[str, Any]:
    """The facts of trt-build.json. Raises ValueError if it is invalid."""
    record = json.loads((folder / SIDECAR).read_text(encoding="utf-8"))
    required: dict[str, type] = {
        "tolerance": dict,
        "precision": str,
        "inputs": list,
        "outputs": list,
        "serve_as": str,
    }
    wrong = [
        key
        for key, kind in required.items()
        if not isinstance(record, dict) or not isinstance(record.get(key), kind)
    ]
    if wrong:
        raise ValueError(f"{SIDECAR} has no {', '.join(wrong)}")
    return dict(record)


def damaged(model: PublishedModel) -> Iterator[str]:
    """Each served file that has changed since publication.

    If torch runs, no response reveals a damaged plan. The config and the goldens, which users may
    edit, are not checked.
    """
    files = {
        name: digest
        for name, digest in model.sidecar.get("files", {}).items()
        if not name.startswith(f"{goldens.FOLDER}/")
    }
    for name, is_there in damage.damaged(model.folder, files):
        if is_there:
            yield f"{name} is damaged: it is not the file that was published"
        # else a copy with only the goldens, to verify a remote server
        elif (model.folder / name).parent.is_dir():
            yield f"{name} is missing"
    for number in versions.foreign(model.folder):
        yield f"{number}/ is a version that trt-build did not write, and Triton serves it"
