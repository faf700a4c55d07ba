"""docs/precision.md agrees with the tables of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.conversion.precision import SCHEMES
from builder.engine import fp8
from builder.manifest.spec import Calibration
from builder.precisions import PRECISIONS
from builder.quantization.statistics import METHODS

TEXT = (Path(__file__).parents[2] / "docs" / "precision.md").read_text(encoding="utf-8")


def test_every_precision_has_a_row_in_the_table() -> None:
    first = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(first))) >= set(PRECISIONS)


@pytest.mark.parametrize("precision", list(SCHEMES))
def test_row_states_bound_of_the_scheme(precision: str) -> None:
    scheme = SCHEMES[precision]
    row = next(
        line for line in TEXT.splitlines() if line.startswith(f"| `{precision}`")
    )
    assert ("30 dB" in row) == (scheme.least_sqnr == 30.0)
    assert ("float32" in row.split("|")[3]) == (scheme.unquantized == "fp32")


def test_document_names_methods_defaults_and_gpus() -> None:
    assert all(f"`{method}`" in TEXT for method in METHODS)
    assert (
        f"({Calibration(()).percentile} by default)" in TEXT
        and f"method: {Calibration(()).method} " in TEXT
    )
    assert f"compute capability {fp8.SINCE[0]}.{fp8.SINCE[1]} or newer" in TEXT
