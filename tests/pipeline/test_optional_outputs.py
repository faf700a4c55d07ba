"""An output that is None is omitted, never a wrong number.

This holds for the lowered graph, the goldens, the published model and `builder.compile`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import builder
from builder.cli import main
from builder.errors import EngineError
from builder.manifest import TensorSpec
from builder.parity import compare, served
from builder.parity.structure import leaves
from builder.pipeline.execution import Runner
from builder.pipeline.stages import Checked
from builder.repository import build_repository
from builder.triton import Golden
from tests.pipeline.optional_outputs import (
    MODULES,
    ByData,
    BySize,
    HardlyEver,
    InNamedTuple,
    WritesInPlace,
)
from tests.pipeline.test_known_cases import checked

MANIFEST = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 4]}
dims:
  batch: {min: 1, opt: 2, max: 4}
"""
SPEC = TensorSpec("float32", ("batch", 4), {"batch": (1, 2, 4)}, name="x")


FAST = (ByData, BySize, InNamedTuple, WritesInPlace)
PARAMETERS = [
    pytest.param(module, marks=[] if module in FAST else [pytest.mark.slow])
    for module in MODULES
]


def save(folder: Path, module: type[nn.Module], more: str = "") -> Path:
    """The module and its manifest in `folder`, which is returned."""
    folder.mkdir(exist_ok=True, parents=True)
    torch.manual_seed(0)
    file = folder / f"{module.__name__.lower()}.pt"
    torch.jit.script(module().eval()).save(str(file))
    file.with_suffix(".yaml").write_text(MANIFEST + more)
    return folder


def loaded(module: type[nn.Module], folder: Path, more: str = "") -> tuple[Any, Path]:
    """The module, saved and loaded, and its file with a manifest beside it."""
    source = save(folder / "models", module, more)
    file = next(source.glob("*.pt"))
    return torch.jit.load(str(file)).eval(), file


def inputs() -> list[torch.Tensor]:
    """Inputs of each size with a positive, a negative and a small sum."""
    return [
        torch.full((rows, 4), value)
        for rows in range(1, 5)
        for value in (2.0, -2.0, 0.125, -0.5)
    ]


def requests(
    original: nn.Module,
) -> Iterator[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """Each of the inputs, and the module's outputs for it by name."""
    for x in inputs():
        with torch.no_grad():
            yield x, dict(leaves(original(x.clone())))


def check_published(
    original: nn.Module, file: Path, is_refused: Callable[[str], bool] | None = None
) -> Checked:
    """Check that the published model has the module's outputs for all inputs, and that several sets
    of outputs are present, also in the goldens. Requests with an output whose name `is_refused`
    must name `max_lengths`. Returns the checked model.
    """
    model = checked(file, file.parent.parent / "out")
    run, seen = Runner(model.artifact), set()
    for x, expected in requests(original):
        if is_refused and any(map(is_refused, expected)):
            with pytest.raises(EngineError, match="max_lengths"):
                run({"x": x.clone()})
            continue
        got = run({"x": x.clone()})
        torch.testing.assert_close(got, expected)
        seen.add(frozenset(got))
    assert len(seen) > 1
    recorded = {frozenset(golden.outputs) for golden in model.artifact.goldens}
    assert len(recorded) > 1, "the goldens reach both paths"
    return model


@pytest.mark.parametrize("module", PARAMETERS)
def test_published_outputs_match_the_module(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    model = check_published(*loaded(module, tmp_path))
    (warning, *_) = [text for text in model.warnings if "may be None" in text]
    assert "optional_outputs.py:" in warning and "on every path" in warning


@pytest.mark.parametrize("module", PARAMETERS)
def test_compiled_module_returns_none_like_the_module(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    original, _ = loaded(module, tmp_path)
    compiled = builder.compile(original, [SPEC])
    for x in inputs():
        with torch.no_grad():
            torch.testing.assert_close(compiled(x.clone()), original(x.clone()))


def test_linear_layer_before_the_branch_stays_in_tensorrt(tmp_path: Path) -> None:
    _, file = loaded(ByData, tmp_path)
    (result,) = build_repository(file.parent, tmp_path / "out", isolate=False)
    assert result.ok and "tensorrt" in result.segments and "torch" in result.segments


def test_optional_output_disables_batching_and_is_recorded(tmp_path: Path) -> None:
    _, file = loaded(BySize, tmp_path)
    build_repository(file.parent, tmp_path / "out", isolate=False)
    published = served.read(tmp_path / "out" / "bysize")
    assert published.config.max_batch_size == 0
    assert not published.config.HasField("dynamic_batching")
    stated = published.config.parameters["trt_build.optional_outputs"]
    assert stated.string_value == "output_1"
    marked = {
        io["name"]: io.get("optional", False) for io in published.sidecar["outputs"]
    }
    assert marked == {"output_0": False, "output_1": True}
    assert "may be None" in published.sidecar["batching"]["reason"]


@pytest.mark.slow
def test_check_has_the_result_and_warnings_of_repo(tmp_path: Path) -> None:
    for module in MODULES:
        save(tmp_path / "models", module)
    built = {
        r.name: r
        for r in build_repository(tmp_path / "models", tmp_path / "o", isolate=False)
    }
    assert {name: str(one.error) for name, one in built.items() if not one.ok} == {}
    result = CliRunner().invoke(main, ["check", str(tmp_path / "models"), "--json"])
    for report in json.loads(result.stdout)["models"]:
        assert report["error"] is None
        assert report["warnings"] == list(built[report["name"]].warnings)


def test_invalid_manifest_is_rejected(tmp_path: Path) -> None:
    full = save(tmp_path / "full", ByData, "fallback: {require_full: true}\n")
    batched = save(tmp_path / "batched", ByData, "batching: {enabled: true}\n")
    named = save(tmp_path / "named", ByData, "outputs: [only]\n")
    for source, text in (
        (full, "always returns all of its outputs"),
        (batched, "may be None"),
        (named, "names 1 outputs, the module returns 2"),
    ):
        (result,) = build_repository(source, tmp_path / "out", isolate=False)
        assert not result.ok and text in str(result.error)


def test_ensemble_is_rejected_with_the_reason(tmp_path: Path) -> None:
    source = save(tmp_path / "models", ByData)
    (result,) = build_repository(
        source, tmp_path / "out", layout="ensemble", isolate=False
    )
    assert not result.ok and "may be None" in str(result.error)
    (result,) = build_repository(source, tmp_path / "out", isolate=False)
    assert result.layout == "fused"


def test_output_without_a_golden_is_omitted(tmp_path: Path) -> None:
    _, file = loaded(HardlyEver, tmp_path)
    model = checked(file, tmp_path / "out")
    assert [one.name for one in model.artifact.outputs] == ["output_0"]
    assert any("'output_1' is None in every golden" in text for text in model.warnings)
    run, rare = (
        Runner(model.artifact),
        torch.tensor([[0.12345678, 0.87654321, 0.0, 0.0]]),
    )
    assert run({"x": torch.zeros(2, 4)}).keys() == {"output_0"}
    with pytest.raises(EngineError, match="'output_1' is a tensor for these inputs"):
        run({"x": rare})
    np.savez(file.parent / "own.npz", x=rare.numpy())
    manifest = file.with_suffix(".yaml")
    manifest.write_text(f"{manifest.read_text()}goldens: own.npz\n")
    model = checked(file, tmp_path / "out")
    assert [one.name for one in model.artifact.outputs] == ["output_0", "output_1"]
    assert Runner(model.artifact)({"x": rare}).keys() == {"output_0", "output_1"}


def test_missing_outputs_are_compared_with_the_golden() -> None:
    one = np.ones(2, np.float32)
    with_both, alone = (
        Golden("g", {}, {"x": one, "y": one}),
        Golden("g", {}, {"x": one}),
    )
    assert compare({"x": one}, alone).passed
    assert not compare({"x": one, "y": one}, alone).passed
    assert not compare({"x": one}, with_both).passed


def test_init_writes_a_manifest_for_a_torch_only_model(tmp_path: Path) -> None:
    _, file = loaded(WritesInPlace, tmp_path)
    file.with_suffix(".yaml").unlink()
    result = CliRunner().invoke(main, ["init", str(file)])
    assert result.exit_code == 0, result.output
    assert "outputs: [output_0, output_1]" in file.with_suffix(".yaml").read_text()
