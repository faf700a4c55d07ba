"""The error of 8 bits on calibration rows that the ranges do not come from."""

from __future__ import annotations

import json
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


def reduced(spec: ModelSpec) -> reduced_precision.Reduced:
    lowered = stages.lower(stages.load(spec))
    return reduced_precision.reduced(spec, lowered.graph, lowered.outputs, ())


@pytest.mark.parametrize("precision", ["int8", "mixed"])
def test_larger_rows_than_those_of_the_ranges_give_a_warning(
    tmp_path: Path, precision: str
) -> None:
    data = normal(50)
    data[4::5] *= 20  # the held-out rows
    result = reduced(spec_of(tmp_path, {"x": data}, precision))
    (warning,) = result.warnings
    assert warning.startswith(f"{precision} exceeds the tolerance in 3 of 3 requests")
    assert "with 10 rows of the calibration data" in warning
    assert "output 'y'" in warning and "keep_fp32" in warning
    assert result.quantized is not None and result.quantized.held_out is not None
    assert result.quantized.held_out.noise > 0.5
    assert "held-out rows" in result.quantized.summary


def test_rows_like_the_others_are_reported_without_a_warning(tmp_path: Path) -> None:
    result = reduced(spec_of(tmp_path, {"x": normal(50)}))
    assert not result.warnings
    data = reduced_precision.as_data(result.quantized)
    assert data is not None
    held_out = json.loads(json.dumps(data, allow_nan=False))["held_out"]
    assert 0 < held_out.pop("noise") < 0.05
    assert held_out == {"rows": 10, "requests": 3, "beyond": 0, "problem": ""}


def test_the_published_ranges_come_from_all_rows(tmp_path: Path) -> None:
    data = normal(50)
    data[4::5] *= 20
    spec = spec_of(tmp_path, {"x": data})
    lowered = stages.lower(stages.load(spec)).graph
    assert spec.calibration is not None
    batches = calibration.batches(spec, spec.calibration, ())
    result = reduced(spec)
    assert result.quantized is not None and result.quantized.trial is None
    (expected,) = quantize(lowered, batches).lowered.run(*batches[1])
    assert torch.equal(result.lowered.run(*batches[1])[0], expected)


@pytest.mark.parametrize(
    ("arrays", "seen", "held"),
    [
        ({"x": normal(9)}, [4, 4, 1], []),
        ({"x": normal(10)}, [4, 4], [2]),
        ({f"{at}/x": normal(1) for at in range(11)}, [1] * 9, [1, 1]),
        ({"0/x": normal(6), "1/x": normal(8)}, [4, 1, 4, 3], [1, 1]),
    ],
)
def test_every_fifth_row_is_held_out(
    tmp_path: Path, arrays: dict[str, Any], seen: list[int], held: list[int]
) -> None:
    spec = spec_of(tmp_path, arrays)
    assert spec.calibration is not None
    parts = calibration.divided(spec, spec.calibration, ())
    assert [[batch[0].shape[0] for batch in part] for part in parts] == [seen, held]


def test_no_part_is_smaller_than_the_minimum_of_the_axis(tmp_path: Path) -> None:
    arrays = {"0/x": normal(14), "1/x": normal(15)}
    spec = spec_of(tmp_path, arrays, least=3)
    assert spec.calibration is not None
    seen, held = calibration.divided(spec, spec.calibration, ())
    assert sum(batch[0].shape[0] for batch in seen) == 14 + 12
    assert [batch[0].shape[0] for batch in held] == [3]


def test_fewer_than_ten_rows_are_not_measured(tmp_path: Path) -> None:
    result = reduced(spec_of(tmp_path, {"x": normal(1)}))
    assert result.quantized is not None and result.quantized.held_out is None
    assert "held-out" not in result.quantized.summary
    data = reduced_precision.as_data(result.quantized)
    assert data is not None and data["held_out"] is None


def test_nothing_in_8_bits_has_no_noise(tmp_path: Path) -> None:
    data = normal(40)
    data[7, 3] = np.inf
    result = reduced(spec_of(tmp_path, {"x": data}))
    assert any("values that are not finite" in text for text in result.warnings)
    assert result.quantized is not None and result.quantized.held_out is None
    assert "held-out" not in result.quantized.summary


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


def test_a_refusal_for_small_calibration_data_says_so(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"x": normal(40) * np.float32(0.05)})
    with pytest.raises(ParityError) as refused:
        check(Order(spec, tmp_path / "out"), Clock("net", lambda *_: None))
    assert "in the calibration data, and larger values saturate" in str(
        refused.value.fix
    )
    assert "add `goldens`" in str(refused.value.fix)
    assert "atol" in str(refused.value.fix)  # noise allows no single element more
