"""A model on which TensorRT or trt-build fails gets an endpoint by torch, with a warning that says
why; files whose outputs differ from the module's are not published.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from builder import engine, lowering
from builder.cli import main
from builder.engine import flavor
from builder.errors import ConversionError, EngineError, ParityError
from builder.pipeline import artifacts, fallback, segment_goldens
from builder.repository import ModelResult, build_repository
from tests.pipeline import models

FULL = "fallback: {require_full: true}\n"


def build(folder: Path, module: nn.Module, more: str = "") -> ModelResult:
    source = models.save(folder / "models", module, more)
    (result,) = build_repository(source, folder / "out", isolate=False)
    return result


@dataclass(frozen=True)
class Built:
    """A folder with every module of `models`, and what `repo` made of each."""

    source: Path
    results: dict[str, ModelResult]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("ladder")
    for module in (*models.SERVED, *models.FAILING):
        models.save(folder / "models", module(), name=module.__name__.lower())
    results = build_repository(folder / "models", folder / "out", isolate=False)
    return Built(folder / "models", {result.name: result for result in results})


@pytest.mark.skipif(
    flavor.resolve("auto") != "tensorrt-rtx", reason="RTX refuses these"
)
@pytest.mark.parametrize(
    ("module", "reason", "fix"),
    [
        (
            models.ShortenByData,
            "the shapes [-1, 2] and [-1, -1] (-1: dynamic); give",
            "padding",
        ),
        (models.FactorByData, "with the branch inside it, at ", "torch.where"),
    ],
)
def test_torch_runs_the_branch_that_tensorrt_cannot_build(
    every: Built, module: type[nn.Module], reason: str, fix: str
) -> None:
    result = every.results[module.__name__.lower()]
    assert result.ok and "torch" in result.segments, result.error
    (warning,) = [text for text in result.warnings if reason in text]
    assert "in torch: prim::If at " in warning and "models.py" in warning
    assert "could not build " in warning and "Error Code" not in warning
    assert fix in warning and ":: " not in warning


class RoundedInLoop(nn.Module):
    """TensorRT rounds the factors to float16, and PyTorch does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.size(1)):
            x = (x.half() * 1.1 * 1.1 * 1.1).float()
        return x


def test_no_torch_where_is_advised_for_a_loop(tmp_path: Path) -> None:
    result = build(tmp_path, RoundedInLoop())
    (warning,) = [text for text in result.warnings if "layers of float16" in text]
    assert "in torch: prim::Loop at " in warning and "torch.where" not in warning


def test_torch_serves_a_model_whose_build_crashes(tmp_path: Path) -> None:
    plugin = tmp_path / "crashing.py"
    plugin.write_text(
        "import os, signal, builder\n"
        "@builder.converter('aten::relu(Tensor self) -> Tensor', override=True)\n"
        "def relu(ctx, x):\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    source = models.save(tmp_path / "models", models.Whole())
    (result,) = build_repository(source, tmp_path / "out", plugins=(str(plugin),))
    assert result.ok and result.segments == ("torch",), result.error
    (warning,) = [text for text in result.warnings if "SIGSEGV" in text]
    assert warning.startswith("served by PyTorch only: the process")
    outcome = CliRunner().invoke(
        main, ["check", str(source), "--json", "--plugin", str(plugin)]
    )
    (report,) = json.loads(outcome.stdout)["models"]
    assert report["error"] is None and warning in report["warnings"]


@pytest.mark.slow
def test_torch_serves_a_model_whose_conversion_times_out(tmp_path: Path) -> None:
    plugin = tmp_path / "endless.py"
    plugin.write_text(
        "import time, builder\n"
        "@builder.converter('aten::relu(Tensor self) -> Tensor', override=True)\n"
        "def relu(ctx, x):\n"
        "    time.sleep(600)\n"
    )
    source = models.save(
        tmp_path / "models", models.Whole(), "limits: {stage_seconds: 15}\n"
    )
    (result,) = build_repository(source, tmp_path / "out", plugins=(str(plugin),))
    assert result.ok and result.segments == ("torch",), result.error
    (warning,) = [text for text in result.warnings if "took more than 15 s" in text]
    assert "served by PyTorch only" in warning and "limits.stage_seconds" in warning


@pytest.mark.skipif(
    flavor.resolve("auto") != "tensorrt-rtx", reason="RTX refuses these"
)
def test_check_without_build_reports_pending_builder_result(tmp_path: Path) -> None:
    source = models.save(tmp_path / "models", models.ShortenByData())
    result = CliRunner().invoke(main, ["check", str(source), "--no-build"])
    assert result.exit_code == 0 and "could not build" not in result.stdout
    assert "not compiled: TensorRT can still reject a network" in result.stdout


@pytest.mark.skipif(
    flavor.resolve("auto") != "tensorrt-rtx", reason="RTX refuses these"
)
def test_require_full_raises_the_tensorrt_error(tmp_path: Path) -> None:
    result = build(tmp_path, models.ShortenByData(), FULL)
    assert not result.ok and "could not build this branch" in str(result.error)
    assert result.error and "models.py:39: if bool(" in str(result.error.where)
    assert not (tmp_path / "out" / "m").exists()


def test_torch_serves_a_model_whose_lowering_has_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "lower", lambda *_, **__: 1 / 0)
    result = build(tmp_path, models.Whole())
    assert result.ok and result.segments == ("torch",), result.error
    (warning,) = [text for text in result.warnings if "ZeroDivisionError" in text]
    assert warning.startswith("served by PyTorch only: this is a defect")
    result = build(tmp_path / "full", models.Whole(), FULL)
    assert not result.ok and "ZeroDivisionError" in str(result.error)


def wrong(name: str | None, where: str | None) -> Callable[..., None]:
    """A reference that differs in every network of that name (None: in all), at a node."""

    def check(
        conversion: Any, goldens: Sequence[Any], spec: Any, module: Any, *, of: str
    ) -> None:
        if name in (None, of):
            raise ParityError(
                f"{of} differs from the module", where=where, fix="report it"
            )

    return check


def test_node_with_a_reference_difference_stays_in_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = models.save(
        tmp_path / "models", models.Whole(), "fallback: {min_block_size: 1}\n"
    )
    graph = lowering.lower(torch.jit.load(str(source / "m.pt"))).graph
    relu = next(node for node in graph.nodes() if node.kind() == "aten::relu")
    where = f"%{relu.output().debugName()} = aten::relu at models.py:22"
    monkeypatch.setattr(segment_goldens, "check_reference", wrong("the network", where))
    (result,) = build_repository(source, tmp_path / "out", isolate=False)
    assert result.ok and result.segments == ("torch", "tensorrt"), (
        result.error,
        result.warnings,
    )
    assert any(text.startswith("in torch: aten::relu at ") for text in result.warnings)


def test_torch_serves_a_model_whose_networks_all_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_goldens, "check_reference", wrong(None, None))
    result = build(tmp_path, models.Whole())
    assert result.ok and result.segments == ("torch",), result.error
    assert any("differs from the module" in text for text in result.warnings)


def test_files_with_wrong_outputs_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lowering.lower(torch.jit.script(models.Repeated()))
    real = artifacts.saved
    monkeypatch.setattr(artifacts, "saved", lambda lowered: real(other))
    result = build(tmp_path, models.Whole())
    assert isinstance(result.error, ParityError) and "the files of m" in str(
        result.error
    )
    assert not (tmp_path / "out" / "m").exists()


def test_original_module_replaces_a_file_with_wrong_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lowering.lower(torch.jit.script(models.Repeated()))
    real = artifacts.saved
    first = iter([other])
    monkeypatch.setattr(artifacts, "saved", lambda lowered: real(next(first, lowered)))
    result = build(tmp_path, models.Whole())
    assert result.ok and result.segments == ("torch",), result.error
    assert any("the files of m" in text for text in result.warnings)


def test_check_result_equals_repo(every: Built) -> None:
    built = every.results
    outcome = CliRunner().invoke(main, ["check", str(every.source), "--json"])
    checked = {
        report["name"]: report for report in json.loads(outcome.stdout)["models"]
    }
    assert {name: report["error"] is None for name, report in checked.items()} == {
        name: result.ok for name, result in built.items()
    }
    assert {name for name, result in built.items() if not result.ok} == {
        module.__name__.lower() for module in models.FAILING
    }
    for name, report in checked.items():
        if report["error"]:
            assert report["error"]["message"] == built[name].error.message
        else:
            segments = [
                part["runs_in"]
                for part in report.get("fallback", {}).get("segments", ())
            ]
            assert segments == list(built[name].segments)
            assert report["warnings"] == list(built[name].warnings)


def test_check_reports_misspelled_names_like_repo(tmp_path: Path) -> None:
    manifest = (
        "fallback: {modules: [decodr], ops: ['aten::reluu']}\nkeep_fp32: ['layer*']\n"
    )
    source = models.save(tmp_path / "models", models.Whole(), manifest)
    (result,) = build_repository(source, tmp_path / "out", isolate=False)
    outcome = CliRunner().invoke(main, ["check", str(source), "--json"])
    (report,) = json.loads(outcome.stdout)["models"]
    for words in ("decodr", "aten::reluu", "layer*"):
        assert any(words in text for text in result.warnings)
    assert report["warnings"] == list(result.warnings)


def test_bf16_for_a_float16_module_gives_a_warning(tmp_path: Path) -> None:
    module = torch.jit.script(nn.Linear(4, 4).half().eval())
    module.save(str(tmp_path / "half.pt"))
    (tmp_path / "half.yaml").write_text(
        "inputs: [{name: x, dtype: float16, shape: [batch, 4]}]\n"
        "dims: {batch: {min: 1, opt: 2, max: 4}}\nprecision: bf16\n"
    )
    (result,) = build_repository(tmp_path, tmp_path / "out", isolate=False)
    assert result.ok, result.error
    (warning,) = result.warnings
    assert "so it is built in fp16: write `precision: fp16`" in warning
    assert result.precision == "fp16"


def test_failed_8_bit_build_falls_back_to_fp16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_plan = engine.build

    def refusing(conversion: Any, *arguments: Any) -> engine.Plan:
        network = conversion.network
        kinds = {str(network.get_layer(i).type) for i in range(network.num_layers)}
        if any("QUANTIZE" in kind for kind in kinds):
            raise EngineError(
                "TensorRT could not build the network: Assertion engine failed"
            )
        return build_plan(conversion, *arguments)

    monkeypatch.setattr(engine, "build", refusing)
    more = "precision: int8\ncalibration: {data: [goldens]}\n"
    result = build(tmp_path, models.Weighted().eval(), more)
    assert result.ok and result.precision == "fp16" and not result.segments, (
        result.error
    )
    (warning,) = [text for text in result.warnings if "instead of int8" in text]
    assert warning.startswith("built in fp16 instead of int8: TensorRT could not build")


class BothLibraries(nn.Module):
    """A product, an operator that TensorRT lacks, and a product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.i0(x @ x.mT) @ x


def test_shapes_are_inferred_once_if_a_segment_is_refused_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = importlib.import_module("builder.partition.split")
    inferred: list[object] = []
    infer, convert = split.infer_shapes, fallback.to_network

    def counted(*arguments: Any) -> Any:
        inferred.append(arguments)
        return infer(*arguments)

    def refusing(lowered: Any, spec: Any, names: Any, *inputs: Any) -> Any:
        if "aten::matmul" in str(lowered.graph):
            raise ConversionError("a late refusal")
        return convert(lowered, spec, names, *inputs)

    monkeypatch.setattr(split, "infer_shapes", counted)
    monkeypatch.setattr(fallback, "to_network", refusing)
    result = build(
        tmp_path,
        BothLibraries(),
        "fallback: {ops: [aten::special_i0], min_block_size: 1}\n",
    )
    assert result.ok and len(inferred) == 1, result.error
