"""`verify` reports what ran each model, and `--require plan` fails if torch ran it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from builder import parity
from builder.cli import main
from builder.parity.comparison import Comparison
from builder.parity.results import GoldenResult, ModelParity


def model(name: str, kind: str | None, why: str | None = None) -> ModelParity:
    passed = GoldenResult("p0-opt", "http", Comparison(()))
    return ModelParity(name, "python", kind, "cuda:0", why, (passed,))


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(models: list[ModelParity], *words: str) -> Result:
        monkeypatch.setattr(parity, "verify", lambda *_, **__: models)
        arguments = ["verify", str(tmp_path), "--url", "localhost:1", *words]
        return CliRunner().invoke(main, arguments)

    return run


MODELS = [
    model("resnet", "plan"),
    model("gated", "plan+torch", "cuda:0: the first GPU"),
    model("slow", "torch", "the plan cannot run here: built for sm_89"),
]


def test_summary_line_counts_models_by_executor(verify: Any) -> None:
    result = verify(MODELS)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == (
        "3 passed; 1 by a plan, 1 by torch, 1 by plans and torch"
    )
    data = json.loads(verify(MODELS, "--json").stdout)
    assert data["answered_by"] == {"plan": 1, "plan+torch": 1, "torch": 1}


def test_share_of_the_tolerance_is_a_number_or_null() -> None:
    golden = {"y": np.ones(4, np.float32), "n": np.array([1])}
    near = parity.compare({**golden, "y": golden["y"] * np.float32(1.0001)}, golden)
    wrong = parity.compare({**golden, "n": np.array([2])}, golden)
    results = [GoldenResult("p0-opt", "http", one) for one in (near, wrong)]
    finite = replace(MODELS[0], results=(results[0],))
    assert finite.as_dict()["share"] == near.share > 0
    infinite = replace(MODELS[0], results=tuple(results))
    assert infinite.share == float("inf") and infinite.as_dict()["share"] is None


def test_required_plan_fails_models_run_by_torch(verify: Any) -> None:
    result = verify(MODELS, "--require", "plan")
    assert result.exit_code == 3
    assert (
        "FAILED slow: --require plan: answered by torch: the plan cannot run"
        in result.stdout
    )
    assert "2 passed, 1 failed; 1 by a plan" in result.stdout
    assert verify(MODELS[:2], "--require", "plan").exit_code == 0


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (None, None),
        ("plan+torch", "segment 0: the plan cannot run here: no such version"),
    ],
)
def test_required_plan_fails_models_with_unknown_executor(
    verify: Any, kind: str | None, why: str | None
) -> None:
    assert verify([model("m", kind, why)], "--require", "plan").exit_code == 3
