"""Assertions on the results of verify."""

from __future__ import annotations

from builder.parity import ModelParity

TWO_PROFILES = {"p0-opt", "p1-opt", "p1-min", "p1-max", "p1-odd"}
"""Goldens of a model whose first profile has one size."""


def assert_passed(parity: ModelParity) -> None:
    """Assert that the model passed, and show what did not."""
    wrong = [(r.golden, r.error, r.problems) for r in parity.results if not r.passed]
    assert parity.passed, (parity.name, parity.problems, wrong, parity.why)
