"""8 bits are judged on calibration rows that the ranges do not come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from builder.errors import ParityError
from builder.manifest import ModelSpec, load
from builder.pipeline import Clock, Order, calibration, check, reduced_precision, stages
from builder.quantization import quantize
from builder.triton import Golden
from tests.cli.conftest import manifest_of, save

DATA = "precision: {precision}\ncalibration: {{data: [own.npz]}}\n"


class Net(nn.Module):
    """Two linear layers: x [batch, 8] -> [batch, 8]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return y


def spec_of(
    folder: Path, arrays: dict[str, Any], precision: str = "int8", least: int = 1
) -> ModelSpec:
    text = manifest_of(8, opt=4).replace("min: 1", f"min: {least}")
    save(Net(), folder / "net.pt", text + DATA.format(precision=precision))
    np.savez(folder / "own.npz", **arrays)
    (spec,) = load(folder)
    return spec


def normal(rows: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((rows, 8), np.float32)


def recorded(spec: ModelSpec) -> stages.Recorded:
    return stages.record(stages.lower(stages.load(spec)))


def checked(spec: ModelSpec, folder: Path) -> stages.Checked:
    return check(Order(spec, folder / "out"), Clock("net", lambda *_: None))


@pytest.mark.parametrize(("precision", "drawn"), [("int8", True), ("fp16", False)])
def test_goldens_of_8_bits_are_the_held_out_rows(
    tmp_path: Path, precision: str, drawn: bool
) -> None:
    data = normal(50)
    result = recorded(spec_of(tmp_path, {"x": data}, precision))
    goldens = {golden.name: golden.inputs["x"] for golden in result.goldens}
    held_out = {row.tobytes() for row in data[4::5]}
    inputs = {row.tobytes() for array in goldens.values() for row in array}
    assert inputs == held_out if drawn else not inputs & held_out
    again = recorded(spec_of(tmp_path, {"x": data}, precision))
    for golden in again.goldens:
        assert np.array_equal(goldens[golden.name], golden.inputs["x"])


def test_few_goldens_are_added_for_many_rows(tmp_path: Path) -> None:
    result = recorded(spec_of(tmp_path, {"x": normal(500)}))
    names = [golden.name for golden in result.goldens]
    assert [name for name in names if "data" in name] == [
        f"p0-data{number}" for number in range(4)
    ]


@pytest.mark.parametrize("precision", ["int8", "mixed", "fp8"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_data_of_any_size_are_served(
    tmp_path: Path, precision: str, scale: float
) -> None:
    """Standard normal goldens would be beyond the ranges of the smallest data."""
    spec = spec_of(tmp_path, {"x": normal(50) * np.float32(scale)}, precision)
    assert checked(spec, tmp_path).parity["answers"] > 0


@pytest.mark.parametrize("precision", ["int8", "mixed"])
def test_held_out_rows_beyond_the_ranges_are_refused(
    tmp_path: Path, precision: str
) -> None:
    data = normal(50)
    data[4::5] *= 20
    with pytest.raises(ParityError) as refused:
        checked(spec_of(tmp_path, {"x": data}, precision), tmp_path)
    assert "in the calibration data, and larger values saturate" in str(
        refused.value.fix
    )
    assert "add `goldens`" in str(refused.value.fix)
    file = tmp_path / "net.yaml"
    file.write_text(file.read_text().replace("own.npz", "own.npz, goldens"))
    (spec,) = load(tmp_path)
    assert checked(spec, tmp_path).parity["answers"] > 0


def test_the_published_ranges_come_from_the_other_rows(tmp_path: Path) -> None:
    data = normal(50)
    spec = spec_of(tmp_path, {"x": data})
    lowered = stages.lower(stages.load(spec))
    result = reduced_precision.reduced(spec, lowered.graph, lowered.outputs, ())
    others = torch.from_numpy(np.delete(data, np.s_[4::5], axis=0))
    x = torch.from_numpy(data)
    (expected,) = quantize(lowered.graph, [[others]]).lowered.run(x)
    assert torch.equal(result.lowered.run(x)[0], expected)


@pytest.mark.parametrize(
    ("arrays", "ranges", "goldens"),
    [
        ({"x": normal(9)}, [4, 4, 1], [9]),
        ({"x": normal(10)}, [4, 4], [2]),
        ({f"{at}/x": normal(1) for at in range(11)}, [1] * 9, [1, 1]),
        ({"0/x": normal(6), "1/x": normal(8)}, [4, 1, 4, 3], [1, 1]),
    ],
)
def test_every_fifth_row_is_held_out(
    tmp_path: Path, arrays: dict[str, Any], ranges: list[int], goldens: list[int]
) -> None:
    spec = spec_of(tmp_path, arrays)
    assert spec.calibration is not None
    batches = calibration.of_ranges(spec, spec.calibration, ())
    assert [batch[0].shape[0] for batch in batches] == ranges
    assert [tensors[0].shape[0] for tensors in calibration.of_goldens(spec)] == goldens


def test_no_part_is_smaller_than_the_minimum_of_the_axis(tmp_path: Path) -> None:
    arrays = {"0/x": normal(14), "1/x": normal(15)}
    spec = spec_of(tmp_path, arrays, least=3)
    assert spec.calibration is not None
    ranges = calibration.of_ranges(spec, spec.calibration, ())
    assert sum(batch[0].shape[0] for batch in ranges) == 14 + 12
    assert [batch[0].shape[0] for batch in calibration.of_goldens(spec)] == [3]


@pytest.mark.parametrize(
    ("scale", "more"), [(0.1, ""), (0.0, ""), (0.1, ", goldens"), (2.0, "")]
)
def test_goldens_beyond_the_calibration_data_are_named(
    tmp_path: Path, scale: float, more: str
) -> None:
    spec = spec_of(tmp_path, {"x": normal(40) * np.float32(scale)})
    file = tmp_path / "net.yaml"
    file.write_text(file.read_text().replace("own.npz", f"own.npz{more}"))
    (spec,) = load(tmp_path)
    inputs = {"x": np.full((4, 8), 3.5, np.float32)}
    reason = calibration.beyond_data(spec, Golden("p0-opt", inputs, {}))
    saturates = scale < 1 and not more
    assert reason.startswith("input 'x' reaches 3.5 in this golden") == saturates
