"""Goldens in the store, recorded once for all targets of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from builder.errors import EnvironmentProblem
from builder.parity.coverage import Outcome
from builder.parity.recording import Recording
from builder.store import FileSet, Folders
from builder.triton import Golden, goldens

KIND = "goldens"


class Recordings:
    """The recording of one model in the store at `url`, under a key of all its dependencies
    (builder.store.goldens_key).

    With `rebuild` none is found. A failing store only causes a warning in `warnings`.
    """

    def __init__(self, url: str, key: str, *, rebuild: bool = False) -> None:
        self.folders = Folders(url)
        self.key = key
        self.rebuild = rebuild
        self.warnings: list[str] = []

    def exists(self) -> bool:
        """Whether the store has a record of the recording. Raises EnvironmentProblem."""
        return self.folders.find(KIND, self.key) is not None

    def find(self, outputs: Sequence[str]) -> Recording | None:
        """The complete recording; None if there is none with these output names."""
        if self.rebuild:
            return None
        try:
            files = self.folders.find(KIND, self.key)
            self._note()
            if files is None or files.facts.get("outputs") != list(outputs):
                return None
            with tempfile.TemporaryDirectory(prefix="trt-build-goldens-") as scratch:
                self.folders.restore(files, Path(scratch))
                return _read(files, Path(scratch))
        except (EnvironmentProblem, ValueError) as failure:
            self.warnings.append(f"the goldens are recorded again: {failure}")
            return None

    def keep(self, recording: Recording, outputs: Sequence[str]) -> None:
        """Store a recording, if its files reproduce it exactly."""
        facts = {
            "outputs": list(outputs),
            "names": [golden.name for golden in recording.goldens],
            "unreached": [asdict(outcome) for outcome in recording.unreached],
            "reduced": list(recording.reduced),
        }
        with tempfile.TemporaryDirectory(prefix="trt-build-goldens-") as scratch:
            folder = Path(scratch)
            goldens.save(recording.goldens, folder)
            files = {path.name: path for path in sorted(folder.iterdir())}
            if not all(_is_whole(golden, folder) for golden in recording.goldens):
                return
            try:
                self.folders.keep(KIND, self.key, files, facts)
                self._note()
            except EnvironmentProblem as failure:
                self.warnings.append(f"the goldens were not kept: {failure}")

    def _note(self) -> None:
        self.warnings += self.folders.store.warnings
        self.folders.store.warnings.clear()


def _read(files: FileSet, folder: Path) -> Recording:
    """The recording of these files, in the order in which it was recorded. Raises ValueError."""
    names = [str(name) for name in files.facts["names"]]
    if {f"{name}.npz" for name in names} != set(files.files):
        raise ValueError("the record of the goldens does not name its files")
    return Recording(
        tuple(goldens.load_one(folder / f"{name}.npz") for name in names),
        tuple(Outcome(**outcome) for outcome in files.facts["unreached"]),
        tuple(files.facts["reduced"]),
    )


def _is_whole(golden: Golden, folder: Path) -> bool:
    """Whether the golden's file reproduces it with the same bits, dtypes, shapes and order."""
    again = goldens.load_one(folder / f"{golden.name}.npz")
    return (
        golden.omitted == again.omitted
        and _same_arrays(golden.inputs, again.inputs)
        and _same_arrays(golden.outputs, again.outputs)
    )


def _same_arrays(
    left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]
) -> bool:
    if list(left) != list(right):
        return False
    return all(same_bits(left[name], right[name]) for name in left)


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether two arrays have the same bits, dtype and shape."""
    same_kind = (left.dtype, left.shape) == (right.dtype, right.shape)
    return same_kind and left.tobytes() == right.tobytes()
