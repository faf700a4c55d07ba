"""The contract of tests/closed_packages.py finds forbidden imports, and none in trt-build."""

from __future__ import annotations

from pathlib import Path

import pytest

import builder
from tests.closed_packages import violations

BUILDER = Path(builder.__file__).parent
STUB = "from .build import build as build\nfrom . import flavor as flavor\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A package `sample` with the closed package `engine`, which exports `build` and the module
    `flavor`, and the package `cli`.
    """
    root = tmp_path / "sample"
    for package in ("engine", "cli"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text("__all__ = ['main']\n")
    (root / "engine/__init__.pyi").write_text(STUB)
    return root


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from sample.engine.build import build", "sample.engine.build.build"),
        ("from sample.engine import memory", "sample.engine.memory"),
        ("import sample.engine.build", "sample.engine.build"),
        (
            "def f():\n    from sample.engine.flavor import trt",
            "sample.engine.flavor.trt",
        ),
    ],
)
def test_import_of_private_names_is_found(root: Path, text: str, name: str) -> None:
    (root / "cli/repo.py").write_text(text)
    line = len(text.splitlines())
    assert list(violations(root)) == [
        f"sample/cli/repo.py:{line}: {name} is not public"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from sample.engine import build, flavor",
        "from sample import engine",
        "from sample.cli.options import flag",
        "from sample.errors import Error",
    ],
)
def test_public_names_and_own_files_are_allowed(root: Path, text: str) -> None:
    (root / "cli/repo.py").write_text(text)
    assert list(violations(root)) == []


def test_package_without_a_stub_exports_its_all(root: Path) -> None:
    (root / "engine/run.py").write_text("from sample.cli import main, repo")
    assert list(violations(root)) == [
        "sample/engine/run.py:1: sample.cli.repo is not public"
    ]


@pytest.mark.slow
def test_trt_build_satisfies_the_contract() -> None:
    assert list(violations(Path(builder.__file__).parent)) == []


def test_architecture_page_has_every_package_and_module() -> None:
    page = (BUILDER.parent / "docs/architecture.md").read_text(encoding="utf-8")
    parts = {
        path.name for path in BUILDER.iterdir() if (path / "__init__.py").is_file()
    }
    parts |= {path.name for path in BUILDER.glob("[a-z]*.py")}
    assert [part for part in sorted(parts) if f"builder/{part}`" not in page] == []
