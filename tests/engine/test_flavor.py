"""Which flavor `auto` selects, and the reason that is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from builder.cli import main
from builder.engine import flavor
from builder.errors import EnvironmentProblem
from tests.cli.conftest import Small, save

BOTH = ["tensorrt", "tensorrt-rtx"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with these flavors, and a GPU or none."""
    for name in ("TRT_BUILD_FLAVOR", "TRT_BUILD_FLAVOUR"):
        monkeypatch.delenv(name, raising=False)

    def play(installed: list[str], gpu: bool) -> None:
        monkeypatch.setattr(flavor, "installed", lambda: installed)
        monkeypatch.setattr(flavor, "has_gpu", lambda: gpu)

    return play


@pytest.mark.parametrize(
    ("installed", "gpu", "expected", "because"),
    [
        (BOTH, True, "tensorrt", "a CUDA device was found"),
        (BOTH, False, "tensorrt-rtx", "no CUDA device found"),
        (BOTH[1:], True, "tensorrt-rtx", "tensorrt is not installed here"),
        (BOTH[:1], True, "tensorrt", "a CUDA device was found"),
    ],
)
def test_auto_selects_a_usable_flavor_with_a_reason(
    host: Callable[..., None],
    installed: list[str],
    gpu: bool,
    expected: str,
    because: str,
) -> None:
    host(installed, gpu)
    assert (flavor.resolve(), flavor.because()) == (expected, because)
    assert flavor.because(expected) == "as requested"


@pytest.mark.parametrize("name", ["TRT_BUILD_FLAVOR", "TRT_BUILD_FLAVOUR"])
def test_environment_variable_overrides_auto(
    host: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    host(BOTH, True)
    monkeypatch.setenv(name, "tensorrt-rtx")
    assert (flavor.resolve(), flavor.because()) == (
        "tensorrt-rtx",
        "$TRT_BUILD_FLAVOR is set to it",
    )


@pytest.mark.parametrize(("installed", "gpu"), [([], True), (BOTH[:1], False)])
def test_no_usable_flavor_is_an_environment_problem(
    host: Callable[..., None], installed: list[str], gpu: bool
) -> None:
    host(installed, gpu)
    with pytest.raises(EnvironmentProblem, match="no TensorRT that can build here"):
        flavor.resolve()


def test_repo_reports_flavor_and_reason(tmp_path: Path) -> None:
    save(Small(), tmp_path / "small.pt")
    requested = [
        "repo",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        "--json",
        "--no-isolate",
        "--no-store",
    ]
    result = CliRunner().invoke(main, requested)
    used = json.loads(result.stdout)["flavor"]
    assert used == {
        "name": flavor.resolve(),
        "version": flavor.load().__version__,
        "because": flavor.because(),
    }
    assert f"{used['name']} {used['version']}: {used['because']}" in result.stderr


def test_polygraphy_that_was_imported_before_uses_the_flavor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packages such as MONAI import Polygraphy, which then chooses `tensorrt`."""
    from polygraphy.backend import trt as package
    from polygraphy.backend.trt import loader

    monkeypatch.setattr(loader, "trt", object())
    monkeypatch.setattr(flavor, "_loaded", None)
    assert flavor.load() is loader.trt
    assert package.loader is loader
