"""Models in 8 bits or with float16 inputs and outputs, from the model file to publication."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from builder import build_repository
from builder.cli import main
from builder.errors import ParityError, UsageError
from builder.manifest import load, read_sets
from builder.parity import record
from builder.pipeline import calibration
from builder.repository import ModelResult
from tests.cli.conftest import manifest_of, save

MANIFEST = manifest_of(8, opt=4)


class TwoLayers(nn.Module):
    """Two linear layers: x [batch, 8] -> [batch, 8]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class BeyondFloat16(TwoLayers):
    """A model whose outputs exceed the range of float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return y * 1e6


class PartlyConverted(TwoLayers):
    """A model with an operator between two products that TensorRT lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.i0(torch.sigmoid(self.first(x)))
        return self.second(torch.relu(y - 1.0))


class LargeForUsers(nn.Module):
    """Values after `large` reach 1e5 only for inputs of about 50, which goldens lack.

    If partitioned, torch runs i0 before it.
    """

    def __init__(self, partitioned: bool) -> None:
        super().__init__()
        self.partitioned = partitioned
        self.large, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        with torch.no_grad():
            self.large.weight.fill_(400.0)
            self.last.weight.fill_(1e-4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.i0(x * 1e-3) * x if self.partitioned else x
        return self.last(torch.relu(self.large(y)))


def build(folder: Path, model: nn.Module, more: str, **settings: Any) -> ModelResult:
    models = folder / "models"
    models.mkdir(exist_ok=True)
    save(model, models / "net.pt", MANIFEST + more)
    rng = np.random.default_rng(0)
    np.savez(models / "own.npz", x=rng.standard_normal((50, 8), np.float32))
    (result,) = build_repository(models, folder / "out", isolate=False, **settings)
    return result


@pytest.mark.parametrize("io", ["module", "fp16"])
@pytest.mark.parametrize("partitioned", [False, True], ids=["whole", "segments"])
def test_layers_that_overflow_on_calibration_data_stay_in_fp32(
    tmp_path: Path, partitioned: bool, io: str
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    np.savez(models / "large.npz", x=np.full((6, 8), 50.0, np.float32))
    more = f"io: {io}\nprecision: fp16\nfallback: {{min_block_size: 1}}\n"
    data = "calibration: {data: [large.npz]}\n"
    result = build(tmp_path, LargeForUsers(partitioned), more + data)
    assert result.ok, result.error
    (warning,) = (w for w in result.warnings if "keep_fp32: auto" in w)
    for layer in ("large/aten::linear_0", "aten::relu_0", "last/aten::linear_0"):
        assert layer in warning
    assert "1.6e+05" in warning
    without = build(tmp_path, LargeForUsers(partitioned), more)
    assert not any("keep_fp32" in w for w in without.warnings)


@pytest.mark.parametrize("precision", ["int8", "mixed"])
@pytest.mark.parametrize("data", ["own.npz", "goldens"])
def test_quantized_layers_of_a_plain_model_are_reported(
    tmp_path: Path, precision: str, data: str
) -> None:
    result = build(
        tmp_path,
        TwoLayers(),
        f"precision: {precision}\ncalibration: {{data: [{data}]}}\n",
    )
    assert result.error is None and result.quantized is not None
    assert result.quantized["summary"].startswith(
        "8 bits in 2 of 2 products; least SQNR"
    )
    assert [layer["name"] for layer in result.quantized["layers"]] == [
        "first/aten::linear_0",
        "second/aten::linear_0",
    ]
    lowered = torch.jit.load(tmp_path / "out/net/1/lowered.pt")
    assert "fake_quantize" in str(lowered.graph)
    again = build_repository(tmp_path / "models", tmp_path / "out", isolate=False)[0]
    assert (again.state, again.quantized) == (
        "unchanged",
        json.loads(json.dumps(result.quantized)),
    )


@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
def test_patterns_without_a_match_are_reported(tmp_path: Path, precision: str) -> None:
    text = f"precision: {precision}\ncalibration: {{data: [own.npz], skip: [frist/*, second/*]}}\n"
    result = build(
        tmp_path,
        TwoLayers(),
        f'{text}keep_fp32: ["first/*", "*layernorm*", "third/*"]\n',
    )
    assert result.error is None
    skipped = (
        "calibration.skip names no product of this model: frist/* (`trt-build"
        " check` lists them)"
    )
    kept = (
        "keep_fp32 names no layer of this model: *layernorm*, third/* (`trt-build inspect` prints"
        " the names)"
    )
    assert kept in result.warnings
    assert (skipped in result.warnings) == (precision == "int8")
    unused = f"calibration has no effect with precision {precision}; set precision to"
    assert any(unused in text for text in result.warnings) == (precision != "int8")
    printed = CliRunner().invoke(main, ["check", str(tmp_path / "models"), "--json"])
    assert kept in json.loads(printed.stdout)["models"][0]["warnings"]


def test_patterns_match_layers_of_all_segments(tmp_path: Path) -> None:
    kept = 'precision: fp16\nkeep_fp32: ["first/*", "second/*"]\nfallback: {min_block_size: 1}\n'
    result = build(tmp_path, PartlyConverted(), kept)
    assert result.layout != "single"
    assert not [text for text in result.warnings if "keep_fp32" in text]


def test_changed_calibration_data_cause_a_rebuild(tmp_path: Path) -> None:
    text = "precision: int8\ncalibration: {data: [own.npz]}\n"
    build(tmp_path, TwoLayers(), text)
    np.savez(tmp_path / "models/own.npz", x=np.ones((4, 8), np.float32))
    changed = build_repository(tmp_path / "models", tmp_path / "out", isolate=False)[0]
    assert changed.state == "built" and "calibration" in changed.because


def test_missing_calibration_data_is_reported_with_key_and_line(tmp_path: Path) -> None:
    error = build(tmp_path, TwoLayers(), "precision: int8\n").error
    assert isinstance(error, UsageError)
    assert "requires calibration data" in str(error) and "calibration: {data:" in str(
        error.fix
    )
    assert str(error.where).endswith("net.yaml:6")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": np.zeros((4, 8), np.float32)}, "no array is called 'x'"),
        ({"x": np.zeros((4, 8), np.int64)}, "is torch.int64, the input float32"),
        ({"x": np.zeros((4, 9), np.float32)}, r"has shape \[4, 9\]"),
        ({"x": np.zeros(8, np.float32)}, r"has shape \[8\]"),
        ({"x": np.zeros((0, 8), np.float32)}, "is empty: it has no range"),
        ({"x": np.full((4, 8), np.nan, np.float32)}, "NaN values"),
        ({"x": np.full((4, 8), "a")}, "array 'x' is <U1, the input float32"),
        ({}, "own.npz has no arrays for calibration"),
    ],
)
def test_arrays_that_do_not_match_the_inputs_are_rejected(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    save(
        TwoLayers(), tmp_path / "net.pt", MANIFEST + "calibration: {data: [own.npz]}\n"
    )
    np.savez(tmp_path / "own.npz", **arrays)
    (spec,) = load(tmp_path)
    with pytest.raises(UsageError, match=words) as refused:
        calibration.batches(spec, spec.calibration, ())
    assert str(refused.value.where).endswith("net.yaml:6")


def test_arrays_with_different_batch_sizes_are_rejected(tmp_path: Path) -> None:
    text = MANIFEST.replace(
        "inputs:", "inputs:\n  - {name: other, dtype: float32, shape: [batch, 2]}"
    )
    save(TwoLayers(), tmp_path / "net.pt", text + "calibration: {data: [own.npz]}\n")
    np.savez(
        tmp_path / "own.npz",
        other=np.ones((9, 2), np.float32),
        x=np.ones((5, 8), np.float32),
    )
    (spec,) = load(tmp_path)
    with pytest.raises(
        UsageError, match="'batch' has size 9 in array 'other' and 5 in 'x'"
    ) as refused:
        calibration.batches(spec, spec.calibration, ())
    assert str(refused.value.where).endswith("net.yaml:7")


def test_npz_content_in_npy_is_rejected_and_big_endian_is_read(tmp_path: Path) -> None:
    save(
        TwoLayers(), tmp_path / "net.pt", MANIFEST + "calibration: {data: [own.npy]}\n"
    )
    np.save(tmp_path / "own.npy", np.full((4, 8), 0.5, ">f4"))
    (spec,) = load(tmp_path)
    ((tensor,),) = calibration.batches(spec, spec.calibration, ())
    assert tensor.dtype == torch.float32 and bool((tensor == 0.5).all())
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 8), np.float32))
    (tmp_path / "own.npz").replace(tmp_path / "own.npy")
    with pytest.raises(UsageError, match=r"is named \.npy, and its content is an"):
        calibration.batches(spec, spec.calibration, ())


def test_damaged_archives_raise_only_usage_errors(tmp_path: Path) -> None:
    """zlib, zipfile, tokenize and numpy each raise their own exceptions."""
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / "own.npz", x=rng.standard_normal((64, 8)))
    whole = (tmp_path / "own.npz").read_bytes()
    refused = 0
    for at in range(0, len(whole), 61):
        (tmp_path / "own.npz").write_bytes(
            whole[:at]
            + bytes(byte ^ 255 for byte in whole[at : at + 20])
            + whole[at + 20 :]
        )
        try:
            read_sets(tmp_path / "own.npz")  # the damaged bytes may be a date
        except UsageError:
            refused += 1
    assert refused > 60


def test_empty_goldens_are_not_used_for_calibration(tmp_path: Path) -> None:
    """If an axis may have size 0, the minimum golden is empty."""
    manifest = (
        MANIFEST.replace("min: 1", "min: 0")
        + "precision: int8\ncalibration: {data: [goldens]}\n"
    )
    (tmp_path / "models").mkdir()
    save(TwoLayers(), tmp_path / "models/net.pt", manifest)
    (result,) = build_repository(tmp_path / "models", tmp_path / "out", isolate=False)
    assert result.error is None and result.quantized is not None
    assert result.quantized["summary"].startswith("8 bits in 2 of 2")


def test_infinite_sqnr_is_null_in_json(tmp_path: Path) -> None:
    model = TwoLayers()
    nn.init.zeros_(model.first.weight)
    result = build(tmp_path, model, "precision: int8\ncalibration: {data: [own.npz]}\n")
    assert result.quantized is not None
    assert result.quantized["layers"][0] == {
        **result.quantized["layers"][0],
        "quantized": True,
        "sqnr": None,
    }
    json.dumps(result.quantized, allow_nan=False)


def test_calibration_batches_have_at_most_the_optimum_size(tmp_path: Path) -> None:
    save(
        TwoLayers(),
        tmp_path / "net.pt",
        MANIFEST + "calibration: {data: [a.npy, b.npz]}\n",
    )
    np.save(tmp_path / "a.npy", np.zeros((10, 8), np.float32))
    np.savez(
        tmp_path / "b.npz",
        **{"0/x": np.ones((4, 8), np.float16), "1/x": np.ones((2, 8), np.float32)},
    )
    (spec,) = load(tmp_path)
    batches = calibration.batches(spec, spec.calibration, ())
    assert [tensor.shape[0] for (tensor,) in batches] == [4, 4, 2, 4, 2]
    assert {tensor.dtype for (tensor,) in batches} == {torch.float32}


def test_partitioned_model_is_quantized(tmp_path: Path) -> None:
    text = "precision: int8\ncalibration: {data: [own.npz]}\nfallback: {min_block_size: 1}\n"
    result = build(tmp_path, PartlyConverted(), text)
    assert result.error is None and result.layout == "fused"
    assert result.quantized is not None and "2 of 2" in result.quantized["summary"]


def test_int8_model_outside_the_tolerance_is_not_published(tmp_path: Path) -> None:
    text = (
        "precision: int8\ncalibration: {data: [own.npz]}\ntolerance: {noise: 1.0e-6}\n"
    )
    result = build(tmp_path, TwoLayers(), text)
    assert isinstance(result.error, ParityError) and "root mean square" in str(
        result.error
    )
    assert "keep_fp32" in str(result.error.fix) and not (tmp_path / "out/net").exists()


def test_layers_kept_in_float32_are_not_quantized(tmp_path: Path) -> None:
    text = 'precision: int8\ncalibration: {data: [own.npz]}\nkeep_fp32: ["first/*"]\n'
    result = build(tmp_path, TwoLayers(), text)
    assert result.quantized is not None and "1 of 2" in result.quantized["summary"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_io_fp16_applies_to_config_plan_goldens_and_lowered_file(
    tmp_path: Path, precision: str
) -> None:
    """Config, plan, goldens and lowered file agree with the module in float16."""
    result = build(tmp_path, TwoLayers(), f"precision: {precision}\nio: fp16\n")
    assert result.error is None
    config = (tmp_path / "out/net/config.pbtxt").read_text()
    assert config.count("TYPE_FP16") >= 2 and "TYPE_FP32" not in config
    facts = json.loads((tmp_path / "out/net/1/plan.json").read_text())
    assert {side["dtype"] for side in (*facts["inputs"], *facts["outputs"])} == {"HALF"}
    golden = np.load(tmp_path / "out/net/goldens/p0-opt.npz")
    assert golden["input:x"].dtype == golden["output:y"].dtype == np.float16
    x = torch.from_numpy(golden["input:x"])
    (output,) = torch.jit.load(tmp_path / "out/net/1/lowered.pt")(x)
    assert output.dtype == torch.float16
    expected = TwoLayers()(x.float()).half()
    torch.testing.assert_close(torch.from_numpy(golden["output:y"]), expected)
    torch.testing.assert_close(output, expected)


def test_io_fp16_input_reaches_the_first_product_without_casts(tmp_path: Path) -> None:
    """Under fp16, the first product reads the input without a cast."""
    from builder.conversion import convert
    from builder.engine.flavor import trt
    from builder.lowering import lower
    from builder.pipeline.reduced_precision import reduced

    save(TwoLayers(), tmp_path / "net.pt", MANIFEST + "precision: fp16\nio: fp16\n")
    (spec,) = load(tmp_path)
    module = torch.jit.load(spec.path)
    result = reduced(
        spec, lower(module, specs=spec.inputs), ("y",), record(module, spec, ("y",))
    )
    network = convert(result.lowered, result.spec.inputs, precision="fp16").network
    products = (
        layer
        for layer in map(network.get_layer, range(network.num_layers))
        if layer.num_inputs == 2
    )
    first = next(
        layer for layer in products if layer.type == trt.LayerType.MATRIX_MULTIPLY
    )
    assert first.get_input(0).name == "x"


def test_output_beyond_the_float16_range_is_rejected_by_name(tmp_path: Path) -> None:
    error = build(tmp_path, BeyondFloat16(), "io: fp16\n").error
    assert (
        isinstance(error, UsageError)
        and "y reaches" in str(error)
        and "io: module" in str(error.fix)
    )


def test_check_lists_every_product(tmp_path: Path) -> None:
    text = 'precision: int8\nio: fp16\ncalibration: {data: [goldens], skip: ["second/*"]}\n'
    save(TwoLayers(), tmp_path / "net.pt", MANIFEST + text)
    shown = CliRunner().invoke(
        main, ["check", str(tmp_path), "--paranoid"], catch_exceptions=False
    )
    assert shown.exit_code == 0, shown.output
    assert (
        "8 bits in 1 of 2 products" in shown.output
        and "a pattern names it" in shown.output
    )
    printed = (
        CliRunner()
        .invoke(main, ["check", str(tmp_path), "--json"], catch_exceptions=False)
        .stdout
    )
    report = json.loads(printed)["models"][0]
    assert [layer["quantized"] for layer in report["quantized"]["layers"]] == [
        True,
        False,
    ]
    assert "TYPE_FP16" in report["config"]
