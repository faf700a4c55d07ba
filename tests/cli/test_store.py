"""The store of a command: a store in memory is refused, and the key is created once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(
    "url", ["memory://", "memory://plans", "simplecache::memory://plans"]
)
@pytest.mark.parametrize("command", ["repo", "explain"])
def test_store_in_memory_is_refused(
    small: Path, tmp_path: Path, run: Run, command: str, url: str
) -> None:
    """Such a store would be lost when the command ends."""
    result = run(command, small, "--out", tmp_path / "out", "--store", url)
    assert result.exit_code == 2
    assert (
        f"error: --store {url}: a store in memory is lost when the command ends"
        in result.stderr
    )
    assert not (tmp_path / "out").exists()


def test_error_names_the_environment_variable_of_the_store(
    small: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_BUILD_STORE", "memory://")
    assert (
        "error: $TRT_BUILD_STORE memory://: a store in memory"
        in run("explain", small).stderr
    )
    assert run("explain", small, "--no-store").exit_code == 0


def test_store_folder_may_be_named_memory(
    small: Path, tmp_path: Path, run: Run
) -> None:
    assert run("explain", small, "--store", tmp_path / "memory").exit_code == 0


def test_first_run_creates_the_key_and_second_run_reuses_plans(
    small: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers sign plans with the key although they may not write to its folder."""
    monkeypatch.delenv("TRT_BUILD_STORE_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for out, state in (("a", "built"), ("b", "reused")):
        store = ("--store", tmp_path / "store")
        result = run("repo", small, "--out", tmp_path / out, *store)
        assert f"small  {state}" in result.stdout, result.stdout
        assert "warning" not in result.stderr, result.stderr
