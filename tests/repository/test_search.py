"""The precision search keeps only the necessary layers in float32."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builder.cli.search import summary
from builder.engine import BuildOptions, flavor
from builder.errors import ParityError, UsageError
from builder.manifest import load
from builder.repository.precision_search import (
    Search,
    literal,
    patterns,
    search_precision,
)
from builder.repository.quickxplain import minimal
from builder.triton import Golden
from tests.cli.conftest import manifest_of
from tests.parity.asserting import assert_passed

ENGINE = "tensorrt" in flavor.installed() and flavor.has_gpu()
by_reference = pytest.mark.skipif(
    ENGINE, reason="the engine checks the precisions here"
)
MANIFEST = "# from the vendor\n" + manifest_of(16, largest=4)


class Overflowing(torch.nn.Module):
    """A model whose `large` layers reach 1e6, beyond the maximum 65504 of float16."""

    def __init__(
        self, scale: float = 1e6, large: Sequence[int] = (2,), depth: int = 6
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(depth))
        self.scales = [scale if i in large else 1.0 for i in range(depth)]
        for layer, factor in zip(self.layers, self.scales, strict=True):
            layer.weight.data.mul_(factor)
            layer.bias.data.mul_(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, scale in zip(self.layers, self.scales):  # noqa: B905  TorchScript's zip
            x = torch.tanh(layer(x) / scale) * 2.0
        return x


def save(
    folder: Path, module: torch.nn.Module, manifest: str = MANIFEST, name: str = "net"
) -> Path:
    folder.mkdir(exist_ok=True)
    torch.jit.trace(module.eval(), torch.zeros(2, 16), check_trace=False).save(
        str(folder / f"{name}.pt")
    )
    (folder / f"{name}.yaml").write_text(manifest)
    return folder


def search(models: Path, **settings: Any) -> Search:
    (outcome,) = search_precision(models, isolate=False, **settings)
    return outcome


class Repeated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 16)
        for _ in range(x.size(0)):
            h = torch.tanh(self.cell(h) + x)
        return h


@by_reference
@pytest.mark.parametrize("full", [False, True])
def test_search_rejects_precisions_that_move_nodes_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """In float16 a loop would carry values of two dtypes, so torch would run it."""
    monkeypatch.setattr(
        importlib.import_module("builder.conversion.convert"),
        "_has_dtype",
        lambda *_: True,
    )
    manifest = MANIFEST + ("fallback: {require_full: true}\n" if full else "")
    models = save(tmp_path / "models", Overflowing(), manifest)
    torch.jit.script(Repeated().eval()).save(str(models / "net.pt"))
    outcome = search(models)
    assert (
        outcome.error is None
        and outcome.precision == "fp32"
        and outcome.tried == [(0, False)]
    )
    assert (
        "cannot be converted"
        if full
        else "TensorRT runs fewer nodes of the model in fp16"
    ) in outcome.problem


@by_reference
def test_search_keeps_only_the_overflowing_layer(tmp_path: Path) -> None:
    models = save(tmp_path / "models", Overflowing())
    outcome = search(models)
    assert outcome.error is None and (outcome.precision, outcome.judge) == (
        "fp16",
        "reference",
    )
    assert outcome.keep_fp32 == ("layers.2/aten::linear_0",)
    assert "not finite" in outcome.problem or "differ too much" in outcome.problem
    assert outcome.tried[0] == (0, False) and outcome.tried[1] == (outcome.layers, True)
    text = (models / "net.yaml").read_text()
    assert (
        text == MANIFEST + 'precision: fp16\nkeep_fp32: ["layers.2/aten::linear_0"]\n'
        and outcome.written
    )
    (spec,) = load(models)
    assert (spec.precision, spec.keep_fp32) == ("fp16", outcome.keep_fp32)


@by_reference
def test_fp16_overflow_is_reported_with_its_layer(tmp_path: Path) -> None:
    from builder.repository import build_repository

    text = MANIFEST + "precision: fp16\nkeep_fp32: []\n"
    models = save(tmp_path / "models", Overflowing(), text)
    (result,) = build_repository(models, tmp_path / "out", isolate=False)
    assert isinstance(result.error, ParityError)
    assert "aten::linear" in str(result.error.where) and "not finite" in str(
        result.error.where
    )
    assert "keep_fp32" in str(result.error.fix) and "--search-precision" in str(
        result.error.fix
    )
    assert any(
        "`weight` has values beyond torch.float16's range" in text
        for text in result.warnings
    )


@by_reference
@pytest.mark.parametrize(
    "message", ["", "keep_fp32: auto\n", 'keep_fp32: [auto, "layers.0/*"]\n']
)
def test_overflowing_layers_stay_in_fp32_automatically(
    tmp_path: Path, message: str
) -> None:
    from builder.repository import build_repository

    models = save(
        tmp_path / "models", Overflowing(), MANIFEST + "precision: fp16\n" + message
    )
    (result,) = build_repository(models, tmp_path / "out", isolate=False)
    assert result.ok, result.error
    (warning,) = (text for text in result.warnings if "keep_fp32: auto" in text)
    assert (
        "layers.[[]2]/aten::linear_0" in warning or "layers.2/aten::linear_0" in warning
    )


@by_reference
def test_search_result_builds_and_is_reproducible(tmp_path: Path) -> None:
    from builder.repository import build_repository

    models = save(tmp_path / "models", Overflowing(large=(1, 4)))
    first = search(models)
    assert first.keep_fp32 == ("layers.1/aten::linear_0", "layers.4/aten::linear_0")
    (result,) = build_repository(models, tmp_path / "out", isolate=False)
    assert result.ok, result.error
    second = search(models)
    assert (second.keep_fp32, second.trials, second.written) == (
        first.keep_fp32,
        1,
        False,
    )


@by_reference
def test_search_result_is_written_before_a_later_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builder.repository import precision_search as trials

    def interrupted(order: Any, *rest: Any) -> Search:
        if order.spec.name == "second":
            raise KeyboardInterrupt
        return real(order, *rest)

    models = save(tmp_path / "models", Overflowing(scale=1.0))
    (models / "second.pt").write_bytes((models / "net.pt").read_bytes())
    (models / "second.yaml").write_text(MANIFEST)
    real = trials.perform
    monkeypatch.setattr(trials, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search_precision(models, isolate=False)
    assert (models / "net.yaml").read_text() == MANIFEST + "precision: fp16\n"
    assert (models / "second.yaml").read_text() == MANIFEST


@by_reference
def test_search_keeps_no_layer_of_a_model_that_runs_in_bf16(tmp_path: Path) -> None:
    models = save(tmp_path / "models", Overflowing(scale=1.0))
    outcome = search(models, precision="bf16")
    assert (outcome.precision, outcome.keep_fp32, outcome.trials) == ("bf16", (), 1)
    assert (models / "net.yaml").read_text() == MANIFEST + "precision: bf16\n"


@by_reference
def test_search_returns_fp32_if_no_layer_can_be_reduced(tmp_path: Path) -> None:
    exact = MANIFEST + "precision: fp16\ntolerance: {rtol: 1e-6, atol: 1e-6}\n"
    outcome = search(save(tmp_path / "models", Overflowing(scale=1.0), exact))
    assert (outcome.precision, outcome.keep_fp32) == ("fp32", ())
    assert "precision: fp32\n" in (tmp_path / "models" / "net.yaml").read_text()


def test_difference_in_fp32_is_an_error_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builder.parity import recording

    def wrong(*arguments: Any) -> recording.Recording:
        goldens = real(*arguments).goldens
        return recording.Recording(
            tuple(
                Golden(g.name, g.inputs, {"y": g.outputs["y"] + np.float32(1)})
                for g in goldens
            )
        )

    real = recording.record_goldens
    monkeypatch.setattr(recording, "record_goldens", wrong)
    outcome = search(save(tmp_path / "models", Overflowing(scale=1.0)))
    assert (
        isinstance(outcome.error, ParityError)
        and "even with every layer in float32" in outcome.error.message
    )
    assert (
        tmp_path / "models" / "net.yaml"
    ).read_text() == MANIFEST and not outcome.written


def test_crash_fails_the_search_with_a_command_to_reproduce_it(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)\n")
    models = save(tmp_path / "models", Overflowing(scale=1.0))
    (outcome,) = search_precision(
        models, out=tmp_path / "served", plugins=[str(plugin)]
    )
    assert outcome.error is not None and "SIGABRT" in outcome.error.message
    command = str(outcome.error.fix).removeprefix("reproduce it with: ")
    assert command.startswith(
        f"trt-build repo {models / 'net.pt'}"
    ) and command.endswith("--search-precision")
    assert f"--out {tmp_path / 'served'} " in command


@pytest.mark.gpu
def test_search_on_a_gpu_checks_with_the_engine(tmp_path: Path) -> None:
    """TensorRT 8.6 may compute a layer in float32 by itself, or store a float32 result in float16.

    Whether the large layer and its readers must be kept is therefore TensorRT's choice. The search
    result must pass in any case.
    """
    from builder.parity import verify_engines
    from builder.repository import build_repository

    models = save(tmp_path / "models", Overflowing(large=(1,), depth=3))
    quick = BuildOptions(optimization_level=0)
    outcome = search(models, options=quick)
    assert outcome.error is None and (outcome.judge, outcome.precision) == (
        "engine",
        "fp16",
    )
    assert (
        bool(outcome.problem) == bool(outcome.keep_fp32) and len(outcome.keep_fp32) <= 4
    ), outcome.keep_fp32
    (result,) = build_repository(models, tmp_path / "out", options=quick, isolate=False)
    assert result.ok, result.error
    (parity,) = verify_engines(tmp_path / "out", repeat=0)
    assert_passed(parity)


def test_uneditable_manifest_is_rejected_before_the_search(
    tmp_path: Path,
) -> None:
    models = save(
        tmp_path / "models",
        Overflowing(),
        json.dumps(
            {
                "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 16]}],
                "dims": {"batch": {"min": 1, "opt": 2, "max": 4}},
            }
        ),
    )
    message: list[str] = []
    with pytest.raises(UsageError, match="cannot be changed"):
        search(models, progress=lambda model, phase: message.append(phase))
    assert not message
    (models / "net.yaml").unlink()
    with pytest.raises(UsageError, match="has no manifest"):
        search(models)


@given(st.integers(0, 40), st.data())
def test_minimal_finds_the_smallest_set_in_few_tests(
    count: int, data: st.DataObject
) -> None:
    items = list(range(count))
    needed = (
        set(data.draw(st.lists(st.sampled_from(items), unique=True, max_size=5)))
        if items
        else set()
    )
    tests = 0

    def passes(kept: Sequence[int]) -> bool:
        nonlocal tests
        tests += 1
        return needed <= set(kept)

    assert set(minimal(items, passes)) == needed
    k = max(len(needed), 1)
    assert tests <= 2 * k * (math.log2(max(count / k, 1)) + 2) + 2


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.randoms())
def test_minimal_returns_a_passing_set_without_monotonicity(
    outputs: list[bool], random: Any
) -> None:
    items = list(range(len(outputs)))
    known: dict[frozenset[int], bool] = {frozenset(items): True}

    def passes(kept: Sequence[int]) -> bool:
        return known.setdefault(frozenset(kept), random.random() < 0.5)

    assert passes(minimal(items, passes))


def test_fully_kept_scope_becomes_one_pattern() -> None:
    layers = [
        "a/aten::linear_0",
        "a/aten::relu_0",
        "b/aten::linear_0",
        "b/aten::relu_0",
        "aten::add_0",
        "c/aten::mm_0",
    ]
    assert patterns(layers[:3] + layers[4:], layers) == [
        "a/*",
        "b/aten::linear_0",
        "aten::add_0",
        "c/aten::mm_0",
    ]
    import fnmatch

    assert fnmatch.fnmatchcase(
        "a[0]*/x?", literal("a[0]*/x?")
    ) and not fnmatch.fnmatchcase("a0b/xy", literal("a[0]*/x?"))


@pytest.mark.parametrize(
    ("trials", "message"),
    [(1, "(1 trial by the engine"), (2, "(2 trials by the engine")],
)
def test_number_of_trials_is_singular_or_plural(trials: int, message: str) -> None:
    assert message in summary(
        Search("net", precision="fp16", judge="engine", trials=trials)
    )
