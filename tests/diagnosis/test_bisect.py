"""`bisect` locates planted defects at the correct node, and reduces them to a failing model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builder import manifest
from builder.diagnosis import Bisection, bisect
from builder.engine import trt
from builder.pipeline import Order
from tests.diagnosis.defects import DEFECTS, FLOATS, Defect
from tests.diagnosis.planting import marked_line, order, plant

WITHOUT_FLOAT64 = ("integer division", "wrong reduction dims")
"""Defects of integers, or of shapes."""


def run_test(folder: Path) -> None:
    """Runs the written test, as pytest does."""
    spec = importlib.util.spec_from_file_location("written", folder / "test_reduced.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (test,) = (
        value for name, value in vars(module).items() if name.startswith("test_")
    )
    test()


def bisected(folder: Path, defect: Defect) -> Bisection:
    torch.manual_seed(0)
    target = order(folder, defect.module(), FLOATS, defect.manifest)
    return bisect(target, folder / "reduced", lambda *_: None)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_planted_defect_is_located_and_reduced(
    defect: Defect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        defect.plant(patch)
        result = bisected(tmp_path, defect)
        assert result.culprit is not None, result
        assert (result.step, result.culprit.operator) == (defect.step, defect.operator)
        assert marked_line(defect.module()) in result.culprit.location
        assert result.culprit.function.startswith(defect.function)
        assert result.culprit.alone and result.culprit.agreed
        if defect.step == "network":
            exact = (
                result.culprit.network_exact or 0.0,
                result.culprit.torch_exact or 0.0,
            )
            assert exact[0] > 1.0 > exact[1] or defect.name in WITHOUT_FLOAT64
        assert result.reduced is not None, result.note
        assert result.reduced.nodes <= 2 < result.reduced.of_nodes
        with pytest.raises(AssertionError):
            run_test(result.reduced.folder)
    run_test(result.reduced.folder)  # the difference is gone with the defect


def test_reduced_model_is_bisected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect = DEFECTS[0]
    defect.plant(monkeypatch)
    first = bisected(tmp_path, defect)
    assert first.reduced is not None and first.culprit is not None
    (spec,) = manifest.load(first.reduced.folder)
    again = bisect(Order(spec, tmp_path / "out"), None, lambda *_: None)
    assert (
        again.culprit is not None and again.culprit.operator == first.culprit.operator
    )
    assert again.culprit.agreed == 0


class Chaotic(nn.Module):
    """Amplifies rounding: each step doubles the error of its input."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        for _ in range(24):
            y = 3.99 * y * (1.0 - y)
        return y


def test_node_that_amplifies_input_errors_is_not_reported_as_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the network's sigmoid is that of one or two roundings, within the tolerance."""

    def perturbed(ctx: Any, self: Any) -> Any:
        layer = ctx.net.add_activation(self, trt.ActivationType.SIGMOID)
        return ctx.elementwise("PROD", *ctx.operands(layer.get_output(0), 1.0 + 4e-7))

    plant(monkeypatch, "aten::sigmoid", perturbed)
    target = order(tmp_path, Chaotic(), FLOATS)
    result = bisect(target, None, lambda *_: None)
    assert result.culprit is not None
    assert not result.culprit.alone and result.culprit.agreed > 10
