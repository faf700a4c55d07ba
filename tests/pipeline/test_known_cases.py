"""Every module that torch runs gets an endpoint with its outputs; `check` agrees with `repo`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import builder
from builder import manifest, pipeline
from builder.cli import main
from builder.manifest import TensorSpec
from builder.pipeline import Order
from builder.pipeline.execution import Runner
from builder.pipeline.stages import Checked
from builder.repository import build_repository
from tests.conversion import old
from tests.pipeline import known_cases, models
from tests.pipeline.known_cases import CASES, Case

PARAMETERS = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])
    for case in CASES
]


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors and numbers of a result in order, without None."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from flat(part)
    elif value is not None:
        yield torch.as_tensor(value)


def checked(file: Path, out: Path) -> Checked:
    (spec,) = manifest.load(file)
    return pipeline.check(Order(spec, out), pipeline.Clock(spec.name, lambda *_: None))


def outputs_of(artifact: Any, sent: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of the files to publish, run by torch."""
    named = zip([t.name for t in artifact.inputs], sent, strict=True)
    return list(Runner(artifact)(dict(named)).values())


def check_warnings(found: Checked, case: Case) -> None:
    """What torch runs is named with its line and a remedy; a whole engine has no warnings, except
    of branches that inputs decide. No warning reports a defect.
    """
    assert not any("defect of trt-build" in text for text in found.warnings)
    partitioned = found.built.converted.partitioned
    if partitioned is None:
        unreached = [
            text for text in found.warnings if text.startswith("no golden reaches")
        ]
        assert list(found.warnings) == unreached
        assert not unreached or case.module is known_cases.EarlyReturns
        return
    reasons = [text for text in found.warnings if ".py:" in text or "input x" in text]
    assert any("; " in text or "fix:" in text or "input x" in text for text in reasons)


@pytest.mark.parametrize("case", PARAMETERS)
def test_published_outputs_match_torch(tmp_path: Path, case: Case) -> None:
    file = case.save(tmp_path / "models")
    model = checked(file, tmp_path / "out")
    arguments = case.ask()
    with torch.no_grad(), torch.jit.optimized_execution(case.optimized):  # type: ignore
        expected = list(flat(torch.jit.load(str(file)).eval()(*arguments)))
    check_warnings(model, case)
    got = outputs_of(model.artifact, list(case.sent(arguments)))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.reshape(other.shape), other, check_dtype=False)


@pytest.mark.slow
def test_check_result_equals_repo_for_every_case(tmp_path: Path) -> None:
    source = tmp_path / "models"
    for case in CASES:
        case.save(source)
    built = {
        r.name: r for r in build_repository(source, tmp_path / "out", isolate=False)
    }
    assert {
        name: str(result.error) for name, result in built.items() if not result.ok
    } == {}
    outcome = CliRunner().invoke(main, ["check", str(source), "--json"])
    reports = {
        report["name"]: report for report in json.loads(outcome.stdout)["models"]
    }
    assert reports.keys() == built.keys()
    assert {name: r["error"] for name, r in reports.items() if r["error"]} == {}
    for name, result in built.items():
        if "torch" in result.segments:
            assert result.warnings, name
        assert reports[name]["warnings"] == list(result.warnings)


def test_convert_accepts_manifest_names_of_optional_arguments() -> None:
    shapes = {"x": (2, 3, 4), "hc_0": (1, 2, 4), "hc_1": (1, 2, 4)}
    specs = [TensorSpec("float32", shape, name=name) for name, shape in shapes.items()]
    module = torch.jit.script(known_cases.Recurrent().eval())
    conversion = builder.convert(module, specs)
    assert [spec.name for spec in conversion.inputs] == list(shapes)
    tensors = [torch.randn(shape) for shape in shapes.values()]
    got = builder.reference.run(conversion, tensors)
    with torch.no_grad():
        expected = list(flat(module(tensors[0], (tensors[1], tensors[2]))))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


class NamedAsItsInput(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x + 1, "x_out": x * 2}


def test_output_with_an_input_name_is_renamed(tmp_path: Path) -> None:
    source = models.save(tmp_path / "models", NamedAsItsInput())
    model = checked(source / "m.pt", tmp_path / "out")
    assert [one.name for one in model.artifact.outputs] == ["x_out2", "x_out"]
    assert any("served as 'x_out2'" in text for text in model.warnings)
    compiled = builder.compile(
        NamedAsItsInput(), [TensorSpec("float32", (2, 4), name="x")]
    )
    assert compiled(torch.ones(2, 4)).keys() == {"x", "x_out"}


class Bfloat16(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.to(torch.bfloat16) * 2
        return y, x.float().cumsum(1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_stays_in_torch_on_tensorrt_8_6(tmp_path: Path, dtype: str) -> None:
    case = Case(Bfloat16, inputs=(("x", dtype, "batch, n"),))
    x = torch.randn(2, 4).to(getattr(torch, dtype))
    with old.playing():
        model = checked(case.save(tmp_path / "models"), tmp_path / "out")
    assert any("has no bfloat16" in text for text in model.warnings)
    for got, expected in zip(
        outputs_of(model.artifact, [x]), Bfloat16()(x), strict=True
    ):
        torch.testing.assert_close(got, expected)
