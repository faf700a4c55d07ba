"""A package's public names are imported on first use, and a file's own names can be replaced."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from builder.conversion.registry import CONVERTERS, EVALUATORS
from tests.cli.conftest import python

STUB = """from . import other as other
from .build import Plan as Plan
from .build import build as build
"""
INIT = "from builder.exports import lazy\n__getattr__, __dir__ = lazy(__name__, __file__)\n"
FILE = "class Plan: ...\ndef build(): return 1\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "__init__.pyi").write_text(STUB)
    (folder / "build.py").write_text(FILE)
    (folder / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("planted")
    for name in [name for name in sys.modules if name.partition(".")[0] == "planted"]:
        del sys.modules[name]


def test_files_are_imported_on_first_use(package: ModuleType) -> None:
    assert "planted.build" not in sys.modules
    from planted import Plan  # type: ignore[import-not-found]

    assert Plan.__module__ == "planted.build"
    assert "planted.other" not in sys.modules


def test_module_does_not_hide_function_with_its_name(package: ModuleType) -> None:
    importlib.import_module("planted.build")
    assert package.build() == 1
    assert package.other is sys.modules["planted.other"]


def test_replacing_a_function_in_its_file_affects_package(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert package.build() == 1
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["planted.build"], "build", lambda: 2)
        assert package.build() == 2
    assert package.build() == 1


def test_function_can_be_replaced_in_the_package(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(package, "build", lambda: 3)
        assert package.build() == 3
    assert package.build() == 1


def test_only_public_names_are_listed_and_found(package: ModuleType) -> None:
    with pytest.raises(
        AttributeError, match="module 'planted' has no attribute 'missing'"
    ):
        _ = package.missing
    assert {"Plan", "build", "other"} <= set(dir(package))


@pytest.mark.slow
def test_every_public_name_exists() -> None:
    """In a separate process: all packages are imported."""
    code = """
import importlib
from pathlib import Path
import builder
from builder import exports
root = Path(builder.__file__).parent
for stub in sorted(root.rglob("__init__.pyi")):
    package = importlib.import_module(".".join(["builder", *stub.parent.relative_to(root).parts]))
    for name in exports.names(stub):
        getattr(package, name)
    print(package.__name__)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert "builder.engine.tensorrt8" in process.stdout.split()


@pytest.mark.slow
def test_any_conversion_file_registers_all_converters() -> None:
    """In a separate process: it imports one file, as a worker or a plugin may."""
    code = "from builder.conversion.registry import CONVERTERS, EVALUATORS\n"
    code += "print(len(CONVERTERS), len(EVALUATORS))"
    done = python(code)
    converters, evaluators = map(int, done.stdout.split())
    assert (converters, evaluators) == (len(CONVERTERS), len(EVALUATORS))
    assert converters > 600 and evaluators > 400
