"""Operators refused with their reason: none of them is converted after all, and the reason reaches the user."""

from __future__ import annotations

import pytest
import torch

from builder.conversion.refusals import REASONS, reason
from builder.conversion.registry import CONVERTERS, EVALUATORS
from builder.errors import UnsupportedOperators
from tests.conversion.harness import convert


def test_nothing_is_both_converted_and_refused() -> None:
    known = {key.removeprefix("aten::") for key in (*CONVERTERS, *EVALUATORS)}
    assert not known & set(REASONS)


@pytest.mark.parametrize("name", sorted(REASONS))
def test_every_refused_name_is_an_operator_of_torch(name: str) -> None:
    operator, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{operator}")
    assert any(s.overload_name == overload for s in schemas) if overload else schemas


def test_the_reason_is_told_with_the_line() -> None:
    with pytest.raises(UnsupportedOperators, match="factors, inverts or solves a matrix"):
        convert(lambda x: torch.linalg.inv(x), [torch.eye(3)])


def test_an_operator_that_nobody_thought_of_says_so() -> None:
    assert reason("aten::some_new_thing.overload") == "no converter is registered for this operator"
