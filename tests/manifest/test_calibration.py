"""Manifest keys for low precision: `calibration`, `io` and the noise of a tolerance."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.manifest import load
from builder.manifest.spec import Calibration, ModelSpec, Tolerance
from tests.manifest.test_mistakes import GOOD, mistakes

TWO_INPUTS = """\
inputs:
- {name: a, dtype: float32, shape: [3]}
- {name: b, dtype: int64, shape: [3]}
"""


def spec(folder: Path, text: str) -> ModelSpec:
    (folder / "net.pt").touch()
    (folder / "net.yaml").write_text(text)
    (one,) = load(folder)
    return one


def test_calibration_defaults(tmp_path: Path) -> None:
    (tmp_path / "some.npz").touch()
    model_spec = spec(
        tmp_path, GOOD + "precision: int8\ncalibration: {data: [some.npz, goldens]}\n"
    )
    assert model_spec.calibration == Calibration(
        (tmp_path / "some.npz", "goldens"), "max", 99.99, ()
    )
    assert spec(tmp_path, GOOD).calibration is None


def test_all_calibration_keys(tmp_path: Path) -> None:
    text = "calibration: {data: [goldens], method: percentile, percentile: 99.9, skip: [head/*]}\n"
    assert spec(tmp_path, GOOD + text).calibration == Calibration(
        ("goldens",), "percentile", 99.9, ("head/*",)
    )


def test_io_and_noise_tolerance(tmp_path: Path) -> None:
    model_spec = spec(tmp_path, GOOD + "io: fp16\ntolerance: {noise: 0.2}\n")
    assert (model_spec.io, model_spec.narrowed) == ("fp16", {"image"})
    assert model_spec.tolerance == Tolerance(noise=0.2)
    assert spec(tmp_path, GOOD).narrowed == frozenset()
    assert spec(tmp_path, TWO_INPUTS + "io: fp16\n").narrowed == {"a"}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("calibration: {}", 7, "calibration has no 'data'"),
        ("calibration: {data: []}", 7, "calibration.data is empty"),
        ("calibration: {data: golden}", 7, "must be a list"),
        (
            "calibration: {data: [golden]}",
            7,
            "must be goldens, an .npz or an .npy file, not 'golden'",
        ),
        ("calibration: {data: [none.npz]}", 7, "does not exist"),
        ("calibration: {data: [goldens], method: minmax}", 7, "did you mean 'max'"),
        (
            "calibration: {data: [goldens], method: percentile, percentile: 10}",
            7,
            "must be at least 50",
        ),
        (
            "calibration: {data: [goldens], percentile: 99}",
            7,
            "needs the method percentile",
        ),
        ("calibration: {data: [goldens], methd: max}", 7, "did you mean 'method'"),
        ("io: fp32", 7, "use one of module, fp16"),
        ("tolerance: {noise: -1}", 7, "must be at least 0"),
        ("skip: [a]", 7, "move it to 'calibration'"),
    ],
)
def test_invalid_values_are_reported(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    ((at, message),) = mistakes(tmp_path, f"{GOOD}{text}\n")
    assert at == line and words in message


def test_npy_calibration_needs_a_single_input(tmp_path: Path) -> None:
    (tmp_path / "a.npy").touch()
    ((line, message),) = mistakes(
        tmp_path, TWO_INPUTS + "calibration:\n  data:\n  - a.npy\n"
    )
    assert line == 6 and "the model has 2 inputs" in message
