"""Mistakes of a new user give a clear message and the same endpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import builder
from builder.cli import main
from builder.errors import (
    InPlaceError,
    ModelFileError,
    ParityError,
    PublishError,
    UnboundedListError,
    UsageError,
)
from builder.lowering import ir
from builder.manifest import TensorSpec
from builder.parity import served
from builder.repository import build_repository
from tests.pipeline.list_outputs import ForLoop
from tests.pipeline.test_known_cases import checked

X = (
    "inputs: [{name: x, dtype: float32, shape: [batch, 4]}]\n"
    "dims: {batch: {min: 1, opt: 2, max: 4}}\n"
)
IDS = (
    "inputs: [{name: ids, dtype: int64, shape: [batch, t]}]\n"
    "dims: {batch: {min: 1, opt: 2, max: 4}, t: {min: 1, opt: 10, max: 30}}\n"
)


def saved(folder: Path, module: torch.jit.ScriptModule, manifest: str) -> Path:
    file = folder / "model.pt"
    module.save(str(file))
    file.with_suffix(".yaml").write_text(manifest)
    return file


class Positive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert bool(x.sum() > 0), "positive only"
        return x * 2


class Large(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert bool(x.min() > 1e10), "large only"
        return x * 2


def test_generated_inputs_match_the_accepted_magnitudes(tmp_path: Path) -> None:
    model = checked(saved(tmp_path, torch.jit.script(Positive()), X), tmp_path / "out")
    assert all((golden.inputs["x"] > 0).any() for golden in model.artifact.goldens)


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (nn.Dropout(0.5), r"call model\.eval\(\)"),
        (nn.RReLU(), "pass the random numbers"),
    ],
)
def test_trace_in_training_mode_has_a_remedy(
    tmp_path: Path, layer: nn.Module, remedy: str
) -> None:
    trace = torch.jit.trace(layer.train(), torch.rand(2, 4) - 0.5, check_trace=False)
    with pytest.raises(ParityError, match=remedy):
        checked(saved(tmp_path, trace, X), tmp_path / "out")


def test_module_that_rejects_generated_inputs_needs_user_inputs(tmp_path: Path) -> None:
    file = saved(tmp_path, torch.jit.script(Large()), X)
    with pytest.raises(ModelFileError, match="large only") as error:
        checked(file, tmp_path / "out")
    manifest = file.with_suffix(".yaml")
    assert f"dims and dtypes in the manifest {manifest}, or give" in str(error.value)
    assert "inputs of your own with two rows or more" in str(error.value)
    for rows in (1, 3):
        np.savez(tmp_path / "own.npz", x=np.full((rows, 4), 1e20, np.float32))
        file.with_suffix(".yaml").write_text(f"{X}goldens: own.npz\n")
        if rows == 1:
            with pytest.raises(ModelFileError, match="large only"):
                checked(file, tmp_path / "out")
            continue
        model = checked(file, tmp_path / "out")
        names = [golden.name for golden in model.artifact.goldens]
        assert names[:2] == ["user-0", "user-0-row"]
        (warning,) = [text for text in model.warnings if "left out" in text]
        assert "p0-opt, p0-min, p0-max, p0-odd" in warning and "large only" in warning


class FirstRowIsZero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0] = 0
        return y


def test_models_with_position_dependent_rows_are_not_batched(tmp_path: Path) -> None:
    saved(tmp_path, torch.jit.script(FirstRowIsZero()), X)
    (result,) = build_repository(tmp_path, tmp_path / "out", isolate=False)
    assert result.ok
    published = served.read(tmp_path / "out" / result.name)
    assert published.config.max_batch_size == 0
    assert "depends on its position" in published.sidecar["batching"]["reason"]


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) + torch.ones(int(ids.shape[1]), 8)


def test_check_paranoid_generates_ids_like_goldens(tmp_path: Path) -> None:
    file = saved(tmp_path, torch.jit.script(Embedded().eval()), IDS)
    result = CliRunner().invoke(
        main, ["check", "--paranoid", "--no-isolate", str(file)]
    )
    assert result.exit_code == 0, result.output


def test_check_paranoid_reports_the_error_of_a_fixed_length(tmp_path: Path) -> None:
    traced = torch.jit.trace(Embedded().eval(), torch.zeros(2, 7, dtype=torch.int64))
    file = saved(tmp_path, traced, IDS)
    result = CliRunner().invoke(
        main, ["check", "--paranoid", "--no-isolate", str(file)]
    )
    assert result.exit_code == 1
    assert (
        "must match the size" in result.output
        and "sizes that it was traced with" in result.output
    )


def test_trace_in_training_mode_is_reported(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    traced = torch.jit.trace(module, torch.randn(3, 4), check_trace=False)
    with pytest.raises(InPlaceError, match=r"model.eval\(\) before torch.jit.trace"):
        checked(saved(tmp_path, traced, X), tmp_path / "out")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


class TwoLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(4)])
        self.more = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        for layer in self.more:
            x = layer(x)
        return x


def test_layer_names_do_not_change_with_fallback_modules(tmp_path: Path) -> None:
    fallback = (
        'precision: fp16\nkeep_fp32: ["layers.2*"]\nfallback: {modules: [layers.1]}\n'
    )
    file = saved(tmp_path, torch.jit.script(TwoLists().eval()), X + fallback)
    model = checked(file, tmp_path / "out")
    assert not any("keep_fp32" in text for text in model.warnings)
    lowered = builder.lower(torch.jit.load(str(file)), fallback_modules=["layers.1"])
    locations = [node.getModuleHierarchy() for node in lowered.graph.nodes()]
    assert any("2(Block)" in location for location in locations)
    marked = [
        n.getModuleHierarchy() for n in lowered.graph.nodes() if ir.in_fallback(n)
    ]
    assert (
        all(location.startswith("1(Block)") for location in marked) and len(marked) == 2
    )


def test_misspelled_names_have_a_suggestion(tmp_path: Path) -> None:
    wrong = 'precision: fp16\nkeep_fp32: ["layer.3*"]\nfallback: {modules: [layer.2]}\n'
    file = saved(tmp_path, torch.jit.script(TwoLists().eval()), X + wrong)
    result = CliRunner().invoke(main, ["check", "--no-isolate", str(file)])
    assert (
        "names no module of this model: layer.2 (did you mean 'layers.2'?)"
        in result.output
    )
    assert (
        "keep_fp32 names no layer of this model: layer.3* (did you mean 'layers."
        in result.output
    )


def test_range_that_matches_no_tensor_is_refused(tmp_path: Path) -> None:
    """Also where TensorRT runs the whole model, so that nothing is partitioned."""
    ranges = "fallback: {ranges: {aten::nonzer: {min: 1, opt: 2, max: 4}}}\n"
    file = saved(tmp_path, torch.jit.script(TwoLists().eval()), X + ranges)
    result = CliRunner().invoke(main, ["check", "--no-isolate", str(file)])
    assert result.exit_code == 2
    assert "fallback.ranges: 'aten::nonzer' matches no tensor" in result.output


class OfVaryingRank(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            x = x.relu()
        return x.squeeze(0) * 2


def test_output_of_varying_rank_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=r"no fixed rank .* ranks \[1, 2\]") as error:
        checked(saved(tmp_path, torch.jit.script(OfVaryingRank()), X), tmp_path / "out")
    assert "test_messages.py" in str(error.value.where)
    assert "x.squeeze(0)" in str(error.value.where)


def test_compile_does_not_mention_a_manifest(tmp_path: Path) -> None:
    spec = TensorSpec("float32", ("batch", 4), {"batch": (1, 2, 4)}, name="x")
    with pytest.raises(ModelFileError) as failed:
        builder.compile(Large(), [spec])
    with pytest.raises(UnboundedListError) as unbounded:
        builder.compile(ForLoop(), [spec])
    for error in (failed, unbounded):
        assert "manifest" not in str(error.value)
    assert 'goldens="FILE.npz"' in str(failed.value)
    assert "max_lengths={output: " in str(unbounded.value)
    np.savez(tmp_path / "own.npz", x=np.full((3, 4), 1e20, np.float32))
    compiled = builder.compile(Large(), [spec], goldens=tmp_path / "own.npz")
    assert torch.equal(compiled(torch.full((2, 4), 1e15)), torch.full((2, 4), 2e15))
    assert not any("manifest" in text for text in compiled.warnings)


def test_plugin_error_is_reported_with_its_line() -> None:
    with pytest.raises(
        ValueError, match=r"'acme::swish' is not a schema: write it with all arg"
    ):
        builder.converter("acme::swish")(lambda ctx, x: x)
    with pytest.raises(
        ValueError, match=r"test_messages.py:\d+\): the decomposition of acme::s"
    ):
        builder.decomposition("acme::swish(Tensor x, float beta=1.0) -> Tensor")(
            lambda x, b: x
        )


def test_condition_that_forward_refuses_is_named(tmp_path: Path) -> None:
    model = checked(saved(tmp_path, torch.jit.script(Positive()), X), tmp_path / "out")
    (warning,) = [text for text in model.warnings if "does not check" in text]
    assert 'assert bool(x.sum() > 0), "positive only"' in warning


class CheckedShape(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dim() == 2, "two axes"
        if x.size(1) != 4:
            raise ValueError("four columns")
        return x * 2


def test_condition_on_sizes_has_no_warning(tmp_path: Path) -> None:
    script = torch.jit.script(CheckedShape())
    assert not checked(saved(tmp_path, script, X), tmp_path / "out").warnings


class Difference(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


@pytest.mark.parametrize("names", [("y", "x"), ("left", "x"), ("x",), ("x", "y", "z")])
def test_inputs_unlike_those_of_forward_are_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    listed = ", ".join(
        f"{{name: {n}, dtype: float32, shape: [batch, 4]}}" for n in names
    )
    file = saved(
        tmp_path,
        torch.jit.script(Difference()),
        f"inputs: [{listed}]\ndims: {{batch: {{min: 1, opt: 2, max: 4}}}}\n",
    )
    with pytest.raises(
        UsageError, match="takes the inputs x, y in this order"
    ) as error:
        checked(file, tmp_path / "out")
    assert "model.yaml:1" in str(error.value)
    assert f"the inputs {', '.join(names)} are specified" in str(error.value)


def test_inputs_may_have_names_of_their_own(tmp_path: Path) -> None:
    manifest = X.replace(
        "}]", "}, {name: right, dtype: float32, shape: [batch, 4]}]", 1
    )
    file = saved(
        tmp_path,
        torch.jit.script(Difference()),
        manifest.replace("{name: x", "{name: left", 1),
    )
    model = checked(file, tmp_path / "out")
    assert [one.name for one in model.artifact.inputs] == ["left", "right"]


class FromColumns(nn.Module):
    def forward(self, x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return x.gather(1, columns[:, None])


def test_ids_are_zero_if_an_axis_has_one_element(tmp_path: Path) -> None:
    manifest = (
        "inputs:\n  - {name: x, dtype: float32, shape: [batch, n]}\n"
        "  - {name: columns, dtype: int64, shape: [batch]}\n"
        "dims: {batch: {min: 1, opt: 2, max: 4}, n: {min: 1, opt: 4, max: 8}}\n"
    )
    file = saved(tmp_path, torch.jit.script(FromColumns()), manifest)
    goldens = checked(file, tmp_path / "out").artifact.goldens
    least = next(golden for golden in goldens if golden.name == "p0-min")
    assert not least.inputs["columns"].any()
    assert any(golden.inputs["columns"].any() for golden in goldens)
