"""Small models of a user, and the command line as a process or in this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from builder.cli import main

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "builder"]


def manifest_of(width: int, opt: int = 2, largest: int = 8) -> str:
    """The manifest of a model from x [batch, width] to y."""
    return f"""\
inputs:
  - {{name: x, dtype: float32, shape: [batch, {width}]}}
dims:
  batch: {{min: 1, opt: {opt}, max: {largest}}}
outputs: [y]
"""


MANIFEST = manifest_of(4)


class Small(torch.nn.Module):
    """A model whose weights are the same in every test."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class TakesList(torch.nn.Module):
    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        return xs[0] + xs[1]


def save(module: torch.nn.Module, path: Path, manifest: str | None = MANIFEST) -> Path:
    torch.manual_seed(0)
    torch.jit.script(module).save(str(path))
    if manifest is not None:
        path.with_suffix(".yaml").write_text(manifest)
    return path


def save_small(parent: Path) -> Path:
    """A models folder with one small model, `small`."""
    folder = parent / "models"
    folder.mkdir()
    save(Small(), folder / "small.pt")
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return save_small(tmp_path)


@pytest.fixture(scope="session")
def published_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with `small`, built once for all tests. `published` is a copy for one test."""
    folder = tmp_path_factory.mktemp("published")
    save_small(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRT_BUILD_CACHE", str(folder / "cache"))
        arguments = [
            "repo",
            str(folder / "models"),
            "--out",
            str(folder / "repository"),
        ]
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder / "repository"


@pytest.fixture
def published(published_once: Path, tmp_path: Path) -> Path:
    """A copy of the repository with `small` that the test may change."""
    return shutil.copytree(published_once, tmp_path / "repository", symlinks=True)


WITHOUT_WORKERS = {name: {"isolate": False} for name in ("check", "init", "repo")}
"""Defaults of options. A worker loads TensorRT, which takes longer than a small build."""


def _run(*arguments: object, default_map: dict[str, dict[str, bool]]) -> Result:
    return CliRunner().invoke(
        main,
        [str(argument) for argument in arguments],
        catch_exceptions=False,
        default_map=default_map,
    )


@pytest.fixture
def run() -> Callable[..., Result]:
    """The command line in this process, also for the model unless `--isolate` is given.
    `result.output` has both streams; `stdout` and `stderr` have one each.
    """
    return partial(_run, default_map=WITHOUT_WORKERS)


@pytest.fixture
def run_with_workers() -> Callable[..., Result]:
    """The command line in this process, with its own defaults: models run in workers."""
    return partial(_run, default_map={})


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in another interpreter, which must end without an error."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )


def start(*arguments: object, **more: str) -> subprocess.Popen[str]:
    """Start the command line as a separate process with piped streams."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment(**more),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
    )
