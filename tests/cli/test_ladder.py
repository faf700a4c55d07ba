"""`verify --ladder` as a command: its table, its JSON document and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from builder.diagnosis import Ladder, Step
from tests.cli.conftest import Small, save

PLUGIN = """
import builder
from builder.engine import trt


@builder.converter("aten::relu(Tensor self) -> Tensor", override=True)
def relu(ctx, self):
    return ctx.net.add_activation(self, trt.ActivationType.SIGMOID)
"""


def verified(
    run: Callable[..., Result],
    repository: Path,
    *more: object,
) -> tuple[int, dict[str, Step]]:
    result = run("verify", repository, "--ladder", *more, "--json")
    (ladder,) = json.loads(result.stdout)["ladder"]
    steps = [{k: v for k, v in step.items() if k != "result"} for step in ladder["steps"]]
    assert ladder["breaks_at"] == Ladder("small", tuple(Step(**s) for s in steps)).breaks_at
    return result.exit_code, {step["name"]: Step(**step) for step in steps}


def test_the_command_names_the_step_that_a_plugin_breaks(
    published: Path,
    published_once: Path,
    run: Callable[..., Result],
    tmp_path: Path,
) -> None:
    models = published_once.parent / "models"
    code, steps = verified(run, published, "--models", models)
    assert code == 0
    results = {name: step.result for name, step in steps.items()}
    assert results.pop("engine") in ("ok", "not run")
    assert results == {"original": "ok", "lowered": "ok", "network": "ok", "endpoint": "not run"}
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    result = run("verify", published, "--ladder", "--models", models, "--plugin", plugin)
    assert result.exit_code == 3
    assert "FAILED   small  network" in result.output
    assert "small breaks at: network" in result.output
    assert f"next: trt-build bisect {models} --only small" in result.stderr


def test_another_model_file_breaks_the_first_step(
    published: Path,
    run: Callable[..., Result],
    tmp_path: Path,
) -> None:
    module = Small()
    torch.nn.init.ones_(module.linear.bias)
    path = tmp_path / "models" / "small.pt"
    path.parent.mkdir()
    save(module, path)
    code, steps = verified(run, published, "--models", path.parent, "--no-isolate")
    assert code == 3
    assert "not the file that was published" in str(steps["original"].problem)
    assert steps["network"].result == "ok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--ladder",), "--models"), (("--ladder", "--engine", "--models", "x"), "--engine")],
)
def test_usage_errors(
    published: Path,
    run: Callable[..., Result],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    result = run("verify", published, *arguments)
    assert result.exit_code == 2 and message in result.output
