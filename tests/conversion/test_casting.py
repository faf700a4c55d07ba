"""Conversions of dtype against torch: truncation, truth, wrap-around, every form of `to`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_shape import sample

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
]
VALUES = torch.tensor([-2.7, -1.0, -0.4, 0.0, 0.4, 1.0, 2.5, 99.9])


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_casts_between_all_dtypes_match_torch(
    source: torch.dtype, target: torch.dtype
) -> None:
    values = (
        VALUES.abs()
        if torch.uint8 in (source, target) and target != torch.bool
        else VALUES
    )
    check(
        lambda x: x.to(target),
        values.to(source),
        compile=target in (torch.bool, torch.uint8) and source != target,
    )


@pytest.mark.parametrize(
    ("source", "target"),
    [(torch.int64, torch.uint8), (torch.int32, torch.int8), (torch.int8, torch.uint8)],
)
def test_integers_wrap_around(source: torch.dtype, target: torch.dtype) -> None:
    check(
        lambda x: x.to(target),
        torch.tensor([-129, -128, -1, 0, 127, 128, 255, 256, 300]).to(source),
    )


def test_operands_that_promote_to_int16_are_refused() -> None:
    """With int32 the result would not wrap around."""
    signed, unsigned = torch.ones(3, dtype=torch.int8), torch.ones(3, dtype=torch.uint8)
    with pytest.raises(UnsupportedOperators, match="operands promote to int16"):
        convert(lambda a, b: ((a + b) * 1000).float(), [signed, unsigned])


FORMS: dict[str, Callable[..., Any]] = {
    "float": lambda x: x.float(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "int": lambda x: x.int(),
    "long": lambda x: x.long(),
    "bool": lambda x: x.bool(),
    "byte": lambda x: x.abs().byte(),
    "a device": lambda x: x.to("cpu"),
    "a device and a dtype": lambda x: x.to("cpu", torch.int32),
    "another tensor": lambda x: x.to(torch.zeros(1, dtype=torch.int32)),
    "another computed tensor": lambda x: x.to(x.long()[:1]),
    "type_as": lambda x: x.type_as(torch.zeros(1, dtype=torch.float16)),
    "cpu": lambda x: x.cpu().relu(),
    "_cast_Float": lambda x: torch.ops.aten._cast_Float(x.int()),
    "_cast_Half": lambda x: torch.ops.aten._cast_Half(x),
    "_cast_Int": lambda x: torch.ops.aten._cast_Int(x),
    "_cast_Long": lambda x: torch.ops.aten._cast_Long(x),
    "_to_copy": lambda x: torch.ops.aten._to_copy(x, dtype=torch.int32),
    "dtype_layout": lambda x: torch.ops.aten.to.dtype_layout(x, dtype=torch.float16),
    "nothing": lambda x: x.to(torch.float32).relu(),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_to(name: str) -> None:
    check(FORMS[name], sample(2, 3), compile=False)


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.to(device=y.device, dtype=y.dtype)
        if x.dtype == torch.int64:
            x = x + 1
        return x.to(torch.device("cpu")).to(y)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_scripted_moves_read_devices_and_dtypes(dtype: torch.dtype) -> None:
    check(Scripted(), sample(2, 3), sample(2, 3, dtype=dtype))


def test_narrowed_float64_warns_with_source_line() -> None:
    conversion = check(
        lambda x: x.to(torch.float64).float(),
        sample(2, 3, dtype=torch.int32),
        compile=False,
    )
    assert any("float64" in w and "test_casting.py" in w for w in conversion.warnings)


class Third(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("third", torch.ones(2, 3, dtype=torch.float64) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.third).float()


def test_narrowed_float64_constant_warns_with_source_line() -> None:
    conversion = check(Third(), sample(2, 3), compile=False)
    assert any(
        "test_casting.py" in w and "self.third" in w and "float64" in w
        for w in conversion.warnings
    )


def test_unsupported_dtypes_are_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="no complex64"):
        convert(
            lambda x: torch.view_as_real(torch.tanh(x.to(torch.complex64))),
            [sample(2, 3)],
        )


def test_cast_preserves_dynamic_axis() -> None:
    check(
        lambda x: x.half().view(x.size(0), -1),
        sample(2, 3, 2),
        dynamic={0: {0: "n"}},
        more=[(sample(4, 3, 2),)],
    )
