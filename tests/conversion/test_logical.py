"""Logic of booleans and of bits."""

from __future__ import annotations

import pytest
import torch

from builder.engine import capabilities
from tests.conversion.harness import check

A = torch.tensor([[0, 1, -1, 12], [-128, 127, 100, -77]])
B = torch.tensor([[5, 3, -8, 10], [127, -128, 0, 99]])
WIDE = torch.tensor([2**62 + 5, -(2**63), 2**63 - 1, -1])


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.uint8])
def test_logic_of_any_dtype(name: str, dtype: torch.dtype) -> None:
    operation = getattr(torch, name)
    check(
        operation,
        A.to(dtype),
        B.to(dtype)[:1],
        dynamic={0: {0: "n"}},
        compile=dtype != torch.uint8,
    )
    check(operation, A.to(dtype), B[:1] > 3, compile=False)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.float32, torch.float16]
)
def test_negation(dtype: torch.dtype) -> None:
    check(torch.logical_not, A.to(dtype))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.int32, torch.int8, torch.uint8]
)
def test_bits(name: str, dtype: torch.dtype) -> None:
    operation = getattr(torch, name)
    check(operation, A.to(dtype), B.to(dtype), dynamic={0: {0: "n"}, 1: {0: "n"}})
    if dtype != torch.bool:
        for mask in (5, 15, 127, 0):
            check(lambda x, m=mask: operation(x, m), A.to(dtype), compile=False)


def test_all_64_bits() -> None:
    if not capabilities.current().has_int64:
        pytest.skip("8.6 has no int64")
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        check(getattr(torch, name), WIDE, WIDE.flip(0))
    check(lambda x: x & (2**63 - 1), WIDE)
    check(lambda x: x & 0xFF, WIDE)


def test_operators_of_python() -> None:
    check(lambda a, b: (a & b) | (a ^ b), A > 0, B > 0)
    check(lambda a, b: ~(a & b), A, B)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8])
def test_inversion(dtype: torch.dtype) -> None:
    check(torch.bitwise_not, A.to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts(name: str, dtype: torch.dtype) -> None:
    """Shifts by zero, by all, by too many, and by a negative number of bits, after which only the
    sign remains.
    """
    operation = getattr(torch, name)
    positions = [0, 1, 3, 7, torch.iinfo(dtype).bits - 1, torch.iinfo(dtype).bits]
    positions += [-1] if dtype.is_signed else []
    for value in (93, -93) if dtype.is_signed else (93, 200):
        check(
            operation,
            torch.full((len(positions),), value, dtype=dtype),
            torch.tensor(positions, dtype=dtype),
        )
    check(lambda x: x << 2, A.to(dtype), compile=False)
    check(lambda x: x >> 1, A.to(dtype), compile=False)
