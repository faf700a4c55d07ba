"""NaN, infinities, ties and the limits of the ranges give outputs like those of PyTorch, except for
listed operators.
"""

from __future__ import annotations

import pytest
import torch

from builder.engine import capabilities
from tests.conversion import opinfo, special_values
from tests.conversion.special_values import DIFFERENT, GROUPS, SAMPLES, UNDEFINED

pytestmark = pytest.mark.skipif(
    not capabilities.current().strongly_typed,
    reason="8.6 has neither int64 nor bfloat16",
)


@pytest.mark.parametrize("group", GROUPS)
def test_special_values(group: str) -> None:
    found = special_values.differences(group)
    assert set(found) == set(DIFFERENT.get(group, ())), found


@pytest.mark.parametrize("group", GROUPS)
def test_layers_that_lose_nan(group: str) -> None:
    """What TensorRT does with NaN is not documented: other operators must not depend on it."""
    with special_values.nan_lost():
        found = special_values.differences(group)
    accepted = {*DIFFERENT.get(group, ()), *UNDEFINED.get(group, ())}
    assert set(found) == accepted, found


def test_special_values_detect_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.reference.layers import elementwise

    monkeypatch.setitem(elementwise.UNARY, "ISNAN", lambda x: x.isinf())
    assert "isnan" in special_values.differences("numbers")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({*opinfo.operators()} - special_values.NO_SAMPLES)
)
def test_special_values_in_torchs_samples(name: str) -> None:
    if not opinfo.known(name):
        pytest.skip(f"torch {torch.__version__} has no samples of {name}")
    found = special_values.sample_differences(name)
    assert bool(found) == (name in SAMPLES), "\n".join(found)
