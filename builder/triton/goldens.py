"""Goldens as .npz files beside a model's versions: keys "input:<name>" and "output:<name>".

The default of an optional input that the request leaves out has the key "default:<name>".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from builder.manifest import read_arrays
from builder.triton.artifact import Golden

FOLDER = "goldens"
BFLOAT16 = "|bfloat16"
"""Suffix of the key of a bfloat16 array. It is stored as uint16: the .npy format has no
bfloat16.
"""


def save(goldens: Iterable[Golden], folder: Path) -> None:
    """Write each golden to an uncompressed <name>.npz. Random floats do not compress, and verify
    reads the files often.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for golden in goldens:
        inputs = {
            f"{'default' if name in golden.omitted else 'input'}:{name}": array
            for name, array in golden.inputs.items()
        }
        outputs = {f"output:{name}": array for name, array in golden.outputs.items()}
        arrays = dict(map(_pack, {**inputs, **outputs}.items()))
        with (folder / f"{golden.name}.npz").open("wb") as file:
            np.savez(file, **arrays)


def load(folder: Path) -> tuple[Golden, ...]:
    """Load all goldens of the folder by name. Only arrays are read, never pickled objects."""
    return tuple(load_one(path) for path in sorted(folder.glob("*.npz")))


def load_one(path: Path) -> Golden:
    """Load the golden in this file. Raises ValueError if it is not an .npz, is damaged, or has
    pickled objects.
    """
    try:
        arrays = dict(_unpack(key, array) for key, array in read_arrays(path).items())
    except ValueError as error:
        raise ValueError(
            f"{path.parent.name}/{path.name} is not an .npz of plain arrays: {error}"
        ) from error
    omitted = tuple(_side(("default:",), arrays))
    inputs = _side(("input:", "default:"), arrays)
    outputs = _side(("output:",), arrays)
    return Golden(path.stem, inputs, outputs, omitted)


def _pack(item: tuple[str, NDArray[Any]]) -> tuple[str, NDArray[Any]]:
    key, array = item
    if array.dtype == ml_dtypes.bfloat16:
        return (key + BFLOAT16, array.view(np.uint16))
    return (key, array)


def _unpack(key: str, array: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    if key.endswith(BFLOAT16):
        return key[: -len(BFLOAT16)], array.view(ml_dtypes.bfloat16)
    return key, array


def _side(
    prefixes: tuple[str, ...], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    return {
        key.partition(":")[2]: array
        for key, array in arrays.items()
        if key.startswith(prefixes)
    }
