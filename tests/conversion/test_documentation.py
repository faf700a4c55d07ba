"""docs/operators.md matches the registries."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from builder.conversion.registry import CONVERTERS, EVALUATORS
from tests.conversion.special_values import GROUPS

SCRIPT = Path(__file__).resolve().parents[2] / "docs/generate.py"


@pytest.fixture
def generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operator_page_is_current(generate: Any) -> None:
    assert generate.PAGE.read_text() == generate.page(), (
        "run: python docs/generate.py operators"
    )


def test_operator_page_lists_every_operator(generate: Any) -> None:
    page = generate.page()
    assert not [
        key
        for key in (*CONVERTERS, *EVALUATORS)
        if f"`{generate.split_key(key)[0]}`" not in page
    ]


def test_operators_with_pytorchs_answer_for_nan_are_tested(generate: Any) -> None:
    names = {name.split()[0] for functions, _ in GROUPS.values() for name in functions}
    assert set(generate.AS_PYTORCH) <= names


def test_outdated_page_is_detected(
    generate: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "PAGE", tmp_path / "operators.md")
    assert generate.main(["operators", "--check"]) == 1
    assert generate.main(["operators"]) == 0
    assert generate.main(["operators", "--check"]) == 0


def test_operator_page_shows_opinfo_results(
    generate: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    store = tmp_path / "operators.json"
    store.write_text(
        '{"nn.functional.unfold": "x", "flip": "passed: 12 passed, 0 refused, 0 failed"}'
    )
    monkeypatch.setattr(generate, "STORE", store)
    row = next(
        line for line in generate.page().splitlines() if line.startswith("| `flip` |")
    )
    assert row.endswith("| passed: 12 passed, 0 refused, 0 failed |")
