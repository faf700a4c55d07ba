"""Clamps, selections, and tests for finite numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.engine.capabilities import Capabilities
from tests.conversion.harness import check

INF, NAN = float("inf"), float("nan")
ODD = torch.tensor([-INF, -3.0, -0.0, 0.5, 7.0, INF, NAN])
INTEGERS = torch.tensor([-9, -1, 0, 1, 4, 9])


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-1, 2),
        (-1.5, 2.5),
        (None, 0.5),
        (0, None),
        (3.0, -2.0),
        (-1, 1.5),
        (-1.5, INF),
        (-INF, 2.5),
    ],
)
@pytest.mark.parametrize("x", [ODD, INTEGERS, INTEGERS.int(), ODD.half()])
def test_clamp_by_numbers(low: Any, high: Any, x: torch.Tensor) -> None:
    """Integers with fractional limits become floats; the upper limit wins where they cross; NaN
    stays.
    """
    check(lambda x: torch.clamp(x, low, high), x)


def test_clamp_of_small_integers() -> None:
    check(
        lambda x: torch.clamp(x, 3, 100), torch.tensor([0, 5, 200], dtype=torch.uint8)
    )


@pytest.mark.parametrize("x", [ODD[:6], INTEGERS])
def test_clamp_by_tensors(x: torch.Tensor) -> None:
    low, high = (
        torch.tensor([[-1.0], [0.5]]),
        torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
    )
    check(lambda x, a, b: torch.clamp(x, a, b), x, low, high, dynamic={1: {0: "n"}})
    check(lambda x, a: torch.clamp(x, min=a), x, low, compile=False)
    check(lambda x, b: torch.clamp(x, max=b), x, high.long(), compile=False)


@pytest.mark.parametrize("x", [ODD, INTEGERS])
@pytest.mark.parametrize("limit", [1, 0.5])
def test_one_sided_clamps(x: torch.Tensor, limit: float) -> None:
    check(lambda x: torch.clamp_min(x, limit), x)
    check(lambda x: torch.clamp_max(x, limit), x)
    check(lambda x, t: torch.clamp_min(x, t), x, torch.tensor(limit), compile=False)
    check(lambda x, t: torch.clamp_max(x, t), x, torch.tensor([limit]), compile=False)


@pytest.mark.parametrize(
    "x", [ODD[:6].reshape(2, 3), INTEGERS.reshape(2, 3), INTEGERS.reshape(2, 3) > 0]
)
def test_masked_fill(x: torch.Tensor) -> None:
    mask = torch.tensor([[True, False, True]])
    value = (
        1 if x.dtype == torch.bool else -5
    )  # tracing a bool value fails in torch itself
    check(lambda x, m: x.masked_fill(m, value), x, mask, dynamic={0: {0: "n"}})
    check(lambda x, m, v: x.masked_fill(m, v), x, mask, torch.tensor(value).to(x.dtype))
    check(lambda x, m: x.masked_fill(m, value), x[0], mask.expand(4, 3), compile=False)


def test_masked_fill_by_infinity_and_by_a_computed_mask() -> None:
    check(lambda x: x.masked_fill(x > 0, -INF), ODD)
    check(lambda x: x.masked_fill(x > 0, -INF), ODD.half())


@pytest.mark.parametrize(
    "condition", [torch.tensor([[True], [False]]), torch.tensor(True)]
)
def test_where_promotes_and_broadcasts(condition: torch.Tensor) -> None:
    check(lambda c, x, y: torch.where(c, x, y), condition, INTEGERS, ODD[:6])
    check(
        lambda c, x, y: torch.where(c, x, y),
        condition,
        INTEGERS,
        torch.tensor(2),
        compile=False,
    )
    check(lambda c, x: torch.where(c, x, 2), condition, INTEGERS)
    check(lambda c, x: torch.where(c, x, 2.5), condition, INTEGERS, compile=False)
    check(lambda c, x: torch.where(c, 2.5, x), condition, ODD.half(), compile=False)
    check(lambda c: torch.where(c, 1, 2.5), condition)
    check(lambda c: torch.where(c, 1, 2), condition, compile=False)


FINITE: dict[str, Callable[[Any], Any]] = {
    name: lambda x, n=name: getattr(torch, n)(x)
    for name in ("isfinite", "isnan", "isinf", "isposinf", "isneginf", "nan_to_num")
}


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize(
    "x", [ODD, ODD.half(), INTEGERS, INTEGERS > 0, torch.tensor(NAN)]
)
def test_finite_or_not(name: str, x: torch.Tensor) -> None:
    check(FINITE[name], x, dynamic={0: {0: "n"}} if x.dim() else None)


def test_nan_to_num_with_replacements() -> None:
    check(lambda x: torch.nan_to_num(x, 1.5, 9.0, -9.0), ODD)


OTHERS = torch.tensor([NAN, -3.0, 0.5, -2.0, 7.5, NAN, NAN])


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extremes_and_nan(name: str) -> None:
    check(lambda x, y: getattr(torch, name)(x, y), ODD, OTHERS)
    check(
        lambda x, y: getattr(torch, name)(x, y),
        INTEGERS,
        INTEGERS.flip(0).int(),
        compile=False,
    )
    check(
        lambda x, y: getattr(torch, name)(x, y),
        INTEGERS > 0,
        INTEGERS > 3,
        compile=False,
    )


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0, -0.7, 2.0])
def test_lerp(weight: float) -> None:
    a, b = torch.tensor([1.0, -3.0, 1e4]), torch.tensor([[2.0], [5.0]])
    check(lambda a, b: torch.lerp(a, b, weight), a, b)
    check(torch.lerp, a, b.expand(2, 3), torch.full((2, 3), weight))
    check(
        torch.lerp, a.half() / 100, b.half(), torch.tensor(weight).half(), compile=False
    )


def test_addcmul_and_addcdiv() -> None:
    x, a, b = (
        torch.tensor([1.0, 2.0]),
        torch.tensor([[3.0], [-1.0]]),
        torch.tensor([0.3, 7.0]),
    )
    for value in (1, -0.5):
        check(lambda x, a, b, v=value: torch.addcmul(x, a, b, value=v), x, a, b)
        check(lambda x, a, b, v=value: torch.addcdiv(x, a, b, value=v), x, a, b)
    check(
        lambda x, a, b: torch.addcmul(x, a, b, value=3),
        *(torch.tensor([2, -4]) for _ in range(3)),
    )


@pytest.mark.parametrize(
    ("tensors", "value"),
    [
        ((torch.tensor([1.0]), *[torch.tensor([300.0]).half()] * 2), 1),
        ((torch.tensor([1]).int(), *[torch.tensor([44], dtype=torch.int8)] * 2), 1),
        ([torch.tensor([100, 1, -7], dtype=torch.int8)] * 3, 3),
        ([torch.tensor([100, 1, 200], dtype=torch.uint8)] * 3, -2),
        ((torch.tensor([1]), torch.tensor([1.5]), torch.tensor([2.5])), 2),
        ((torch.tensor([1.0]), *[torch.tensor([1e20])] * 2), 1e-10),
        ((torch.tensor([1.0]), *[torch.tensor([1e30])] * 2), 0),
    ],
)
def test_addcmul_promotes_first_and_multiplies_by_the_value_first(
    tensors: Any, value: float
) -> None:
    check(lambda *x: torch.addcmul(*x, value=value), *tensors, compile=False)
    if tensors[1].is_floating_point():
        x, a, b = tensors
        check(lambda *x: torch.addcdiv(*x, value=value), x, a, 1 / b, compile=False)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name: str) -> None:
    """Integers compared with fractional numbers are compared as floats; NaN is unequal to all and
    ordered with none.
    """
    compare = getattr(torch, name)
    check(lambda x: compare(x, 0.5), INTEGERS)
    check(lambda x: compare(x, -1), INTEGERS)
    check(compare, ODD, torch.full_like(ODD, 0.5))
    check(compare, ODD, OTHERS, compile=False)
    check(compare, INTEGERS > 0, INTEGERS > 3, compile=False)
    check(compare, INTEGERS, ODD[:6], compile=False)
    unsigned = torch.tensor([3, 255], dtype=torch.uint8)
    check(lambda x: compare(x, 300), unsigned, compile=False)
    check(compare, torch.tensor([-1, 7, 3]).to(torch.int8), unsigned[[1, 0, 0]])


@pytest.mark.parametrize("name", ["isnan", "isinf", "nan_to_num", "fmax"])
def test_nan_handling_without_native_operations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT 8.6 has no ISNAN: only NaN differs from itself."""
    missing: list[str] = []

    def none(self: Capabilities, layer: str, operation: str) -> bool:
        missing.append(operation)
        return False

    monkeypatch.setattr(Capabilities, "has_operation", none)
    inputs = (ODD, OTHERS) if name == "fmax" else (ODD,)
    check(lambda *x: getattr(torch, name)(*x), *inputs)
    assert set(missing) == {"ISINF" if name == "isinf" else "ISNAN"}


def test_limits_from_dynamic_sizes() -> None:
    check(
        lambda x: torch.clamp(x, max=x.size(0) - 2),
        torch.arange(12.0).reshape(6, 2),
        dynamic={0: {0: "n"}},
        more=[(torch.arange(6.0).reshape(3, 2),)],
    )
