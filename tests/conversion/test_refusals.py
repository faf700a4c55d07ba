"""Operators that are refused: none of them is converted, and the reason is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from builder.conversion.refusals import REASONS, reason
from builder.conversion.registry import CONVERTERS, EVALUATORS
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert


def test_no_operator_is_both_converted_and_refused() -> None:
    known = {key.removeprefix("aten::") for key in (*CONVERTERS, *EVALUATORS)}
    assert not known & set(REASONS)


def test_every_refused_name_is_a_torch_operator() -> None:
    assert len(REASONS) > 100
    assert [name for name in REASONS if not known(name)] == []


def known(name: str) -> bool:
    """Whether torch has the operator, with the overload if one is named."""
    operator, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{operator}")
    return (
        any(s.overload_name == overload for s in schemas) if overload else bool(schemas)
    )


def test_refusal_reason_is_reported() -> None:
    with pytest.raises(
        UnsupportedOperators, match="factors, inverts or solves a matrix"
    ):
        convert(lambda x: torch.linalg.inv(x), [torch.eye(3)])


def test_unknown_operator_is_reported() -> None:
    assert (
        reason("aten::some_new_thing.overload")
        == "no converter is registered for this operator"
    )


@torch.jit.script
def floor(y: Tensor) -> int:
    return 7 // y


@torch.jit.script
def floor_of_a_fraction(y: Tensor) -> float:
    return 7.5 // y


@torch.jit.script
def truth(y: Tensor) -> bool:
    return bool(y)


@torch.jit.script
def item(y: Tensor) -> float:
    return float(y.item())


@pytest.mark.parametrize(
    ("function", "y"),
    [
        (floor, torch.tensor([1, 2, 3])),
        (floor, torch.tensor([[2]], dtype=torch.int32)),
        (floor, torch.tensor(2.0)),
        (floor_of_a_fraction, torch.tensor([1, 2])),
        (truth, torch.tensor([1, 2])),
        (item, torch.ones(2, 3)),
    ],
)
def test_tensor_read_as_number_is_refused_like_in_torch(
    function: Callable[[Tensor], object], y: Tensor
) -> None:
    """This was a defect of trt-build, with a message of TensorRT. With one element, an engine
    returned other outputs than torch.
    """
    with pytest.raises(RuntimeError):
        function(y)
    with pytest.raises(UnsupportedOperators, match="which torch also refuses") as error:
        convert(function.graph, [y])  # type: ignore[attr-defined]
    assert "test_refusals.py:" in error.value.operators[0].where


def test_a_tensor_without_axes_is_a_number() -> None:
    check(floor.graph, torch.tensor(2), more=[(torch.tensor(-2),)])
