"""Which networks are compiled. Of the fast tests, all with a new setting are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import hardtanh

from builder.engine import flavor
from tests.conversion import compiling
from tests.conversion.harness import convert

X = torch.ones(2, 3)


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(x.size(0)):
            y = y * 2
        return y


@pytest.fixture(autouse=True)
def only_rtx() -> None:
    if flavor.name() == "tensorrt":
        pytest.skip("compiles every network")


@pytest.mark.parametrize(
    ("choice", "function", "x", "compiles"),
    [
        ("kinds", lambda x: hardtanh(x, -1, 0.5), X, False),
        ("settings", lambda x: hardtanh(x, -1, 0.5), X, True),
        ("kinds", torch.relu, X, True),
        ("kinds", lambda x: hardtanh(x, -1, 1), X.half(), True),
        ("kinds", lambda x: hardtanh(x, -1, 1), X[0], True),
        ("kinds", lambda x: hardtanh(x, -1, 1), X[:0], True),
        ("all", lambda x: hardtanh(x, -1, 1), X, True),
        ("0", torch.relu, X, False),
    ],
)
def test_networks_with_a_new_feature_are_compiled(
    choice: str,
    function: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    compiles: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "COMPILED", set())
    monkeypatch.setattr(compiling, "SHARED", None)
    monkeypatch.setenv(compiling.VARIABLE, choice)
    compiling.done(convert(lambda x: hardtanh(x, -1, 1), [X]).network)
    assert compiling.should_compile(convert(function, [x]).network) == compiles


@pytest.mark.parametrize("choice", ["kinds", "settings"])
def test_equal_loops_have_equal_features(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "COMPILED", set())
    monkeypatch.setattr(compiling, "SHARED", None)
    monkeypatch.setenv(compiling.VARIABLE, choice)
    first, second = (
        convert(Doubled(), [X], dynamic={0: {0: "n"}}).network for _ in range(2)
    )
    assert compiling.should_compile(first)
    compiling.done(first)
    assert not compiling.should_compile(second)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_setting_of_the_fast_tests_is_compiled() -> None:
    """The fast tests of operators and layers, with all networks that have new settings compiled."""
    folder = Path(__file__).parent
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-m", "not slow and not docker and not gpu"),
        *(folder, folder.with_name("reference")),
    ]
    environment = {**os.environ, compiling.VARIABLE: "settings"}
    result = subprocess.run(
        command, env=environment, cwd=folder.parents[1], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout
