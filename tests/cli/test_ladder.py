"""`verify --ladder`: its table, its JSON document and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from builder.diagnosis import Ladder, Step
from builder.parity import GoldenResult, ModelParity, compare
from builder.triton import Golden
from tests.cli.conftest import Small, save

PLUGIN = """
import builder
from builder.engine import trt


@builder.converter("aten::relu(Tensor self) -> Tensor", override=True)
def relu(ctx, self):
    return ctx.net.add_activation(self, trt.ActivationType.SIGMOID)
"""


def verify_ladder(
    run: Callable[..., Result],
    repository: Path,
    *more: object,
) -> tuple[int, dict[str, Step]]:
    result = run("verify", repository, "--ladder", *more, "--json")
    (ladder,) = json.loads(result.stdout)["ladder"]
    steps = [
        {k: v for k, v in step.items() if k != "result"} for step in ladder["steps"]
    ]
    assert (
        ladder["breaks_at"]
        == Ladder("small", tuple(Step(**s) for s in steps)).breaks_at
    )
    return result.exit_code, {step["name"]: Step(**step) for step in steps}


def test_ladder_names_the_step_that_a_plugin_breaks(
    published: Path,
    published_once: Path,
    run: Callable[..., Result],
    tmp_path: Path,
) -> None:
    models = tmp_path / "the models"
    models.symlink_to(published_once.parent / "models")
    code, steps = verify_ladder(run, published, "--models", models)
    assert code == 0
    results = {name: step.result for name, step in steps.items()}
    assert results.pop("engine") in ("ok", "not run")
    assert results == {
        "original": "ok",
        "lowered": "ok",
        "network": "ok",
        "endpoint": "not run",
    }
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    result = run(
        "verify", published, "--ladder", "--models", models, "--plugin", plugin
    )
    assert result.exit_code == 3
    assert "FAILED   small  network" in result.output
    assert "small breaks at: network" in result.output
    assert f"next: trt-build bisect '{models}' --only small" in result.stderr


def test_changed_model_file_fails_the_first_step(
    published: Path,
    run: Callable[..., Result],
    tmp_path: Path,
) -> None:
    module = Small()
    torch.nn.init.ones_(module.linear.bias)
    path = tmp_path / "models" / "small.pt"
    path.parent.mkdir()
    save(module, path)
    code, steps = verify_ladder(run, published, "--models", path.parent, "--no-isolate")
    assert code == 3
    assert "not the file that was published" in str(steps["original"].problem)
    assert steps["network"].result == "ok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ladder",), "--models"),
        (("--ladder", "--engine", "--models", "x"), "--engine"),
    ],
)
def test_ladder_option_combinations_are_usage_errors(
    published: Path,
    run: Callable[..., Result],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    result = run("verify", published, *arguments)
    assert result.exit_code == 2 and message in result.output


def parity_of(passes: bool, by: str, device: str) -> ModelParity:
    golden = Golden("p0-opt", {}, {"y": np.ones(3, np.float32)})
    comparison = compare({"y": np.full(3, 1.0 if passes else 2.0, np.float32)}, golden)
    result = GoldenResult("p0-opt", "engine", comparison)
    return ModelParity("small", "python", by, device, None, (result,), has_plan=True)


def test_wrong_plan_fails_only_the_engine_step(
    published: Path,
    published_once: Path,
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine gives wrong outputs; torch gives correct outputs at the endpoint."""

    def engines(repository: Path, models: list[str], **more: Any) -> list[ModelParity]:
        assert models == ["small"]
        return [parity_of(False, "plan", "cuda:0")]

    def endpoint(*given: Any, **more: Any) -> list[ModelParity]:
        return [parity_of(True, "torch", "cpu")]

    monkeypatch.setattr("builder.engine.flavor.has_gpu", lambda: True)
    monkeypatch.setattr("builder.parity.engines.verify_engines", engines)
    monkeypatch.setattr("builder.parity.verification.verify", endpoint)
    models = published_once.parent / "models"
    more = ("--models", models, "--no-isolate", "--url", "localhost:1")
    code, steps = verify_ladder(run, published, *more)
    assert code == 3
    failed = [name for name, step in steps.items() if step.result == "failed"]
    assert failed == ["engine"] and steps["endpoint"].result == "ok"
    assert str(steps["engine"].problem).startswith(
        "golden p0-opt, engine: output 'y': 3 of 3"
    )
    assert steps["endpoint"].note == "answered by torch (cpu)"
