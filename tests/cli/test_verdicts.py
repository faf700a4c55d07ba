"""The text of `verify`: one line per model, failures by cause, one summary."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builder.cli import verdicts
from builder.cli.terminal import Terminal
from builder.parity import GoldenResult, ModelParity, compare

EXPECTED = np.array([1.0, 2.0, 4.0], np.float32)


def result(golden: str, off: float = 0.0, error: str | None = None) -> GoldenResult:
    comparison = (
        None if error else compare({"y": EXPECTED + np.float32(off)}, {"y": EXPECTED})
    )
    times = (1.0, 2.0, 3.0)
    return GoldenResult(golden, "http", comparison, error, 2.0, 3.0, times)


def model(name: str, *results: GoldenResult, **more: Any) -> ModelParity:
    facts: dict[str, Any] = {
        "answered_by": "torch",
        "device": "cpu",
        "why": "torch finds no GPU",
    }
    return ModelParity(
        name, "python", results=results, has_plan=True, **{**facts, **more}
    )


def shown(
    capsys: pytest.CaptureFixture[str], *models: ModelParity, verbose: bool = False
) -> str:
    verdicts.show(Terminal(verbose=verbose), models)
    return capsys.readouterr().out


def test_output_has_one_line_per_model_and_a_summary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["a" * 24, "b"]
    lines = shown(
        capsys, *(model(name, result("p0"), result("p1")) for name in names)
    ).splitlines()
    assert len(lines) == 5
    assert lines[1].split() == [
        "ok",
        names[0],
        "0",
        "%",
        "2.00",
        "3.00",
        "torch",
        "(cpu)",
    ]
    assert lines[-1] == "2 passed; 0 by a plan, 2 by torch: no GPU"
    assert all(len(line) <= 80 for line in lines[:3])


def test_share_is_the_largest_ratio_of_error_to_tolerance() -> None:
    """The first element has the smallest tolerance, so its error has the largest ratio."""
    allowed = 1e-4 * float(np.sqrt(np.mean(EXPECTED.astype(float) ** 2))) + 1e-4 * 1.0
    outputs = EXPECTED + np.array([allowed / 2, 0, 0], np.float32)
    comparison = compare({"y": outputs}, {"y": EXPECTED})
    assert comparison.share == pytest.approx(0.5, rel=1e-3) and comparison.passed
    whole = compare({"y": np.array([1, 2])}, {"y": np.array([1, 3])})
    assert whole.share == float("inf")
    assert (
        json.loads(json.dumps(whole.as_dict(), allow_nan=False))["outputs"][0]["share"]
        is None
    )


def test_failures_are_grouped_by_their_cause_with_one_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = [
        model(name, result("p0", 0.25), result("p1", 0.5)) for name in ("one", "two")
    ]
    lost = model(
        "three", result("p0", error="Socket closed"), problems=("1/x is missing",)
    )
    text = shown(capsys, *bad, lost)
    failed = [
        line for line in text.splitlines() if line.startswith("FAILED") and ":" in line
    ]
    assert failed[0] == "FAILED one, two: 4 times the same cause; for example:"
    assert failed[1].startswith(
        "FAILED one, p0, http: output 'y': 3 of 3 elements differ"
    )
    assert failed[2:] == [
        "FAILED three: 1/x is missing",
        "FAILED three, p0, http: Socket closed",
    ]
    assert text.endswith("0 passed, 3 failed; 0 by a plan, 3 by torch: no GPU\n")


def test_verbose_shows_every_response_in_80_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each model has a table that fits into 80 columns without broken words."""
    long = replace(result("p0-reach", 0.25), protocol="grpc x16")
    models = (model("a" * 40, result("p0-min"), long), model("two", result("p1-max")))
    lines = shown(capsys, *models, verbose=True).splitlines()
    assert lines[0] == f"{'a' * 40}, answered by torch (cpu)"
    assert (
        lines[1].split()[:3] == ["result", "golden", "protocol"]
        and "cosine" in lines[1]
    )
    assert lines[2].split()[:3] == ["ok", "p0-min", "http"]
    assert lines[3].split()[:4] == ["FAILED", "p0-reach", "grpc", "x16"]
    assert (
        lines[4] == "two, answered by torch (cpu)" and lines[6].split()[1] == "p1-max"
    )
    assert all(len(line) <= 80 for line in lines[:7])


def test_summary_counts_models_run_by_a_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(
        capsys,
        model("one", result("p0"), answered_by="plan", device="cuda:0", why=None),
    )
    assert text.endswith("1 passed; 1 by a plan\n")
