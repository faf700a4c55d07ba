"""Padding against torch: every mode, negative pads, other values, integer and bool tensors, dynamic
axes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from tests.conversion.harness import check
from tests.conversion.test_shape import DTYPES, sample

CONSTANT: list[tuple[tuple[int, ...], tuple[int, ...], float | None]] = [
    ((3,), (1, 2), None),
    ((2, 3), (1, 0), 1.5),
    ((2, 3), (0, 0, 2, 1), -1),
    ((2, 3, 4), (1, 1, 0, 2, 3, 0), 0.25),
    ((2, 3, 4), (-1, -1), 7),
    ((2, 3, 4), (-1, 2, 1, -2), 7),
    ((1, 2, 1, 3, 2), (1, 1, 1, 1, 1, 1), float("-inf")),
    ((2, 3), (0, 0), 1),
    ((1,), (4, 4), 3),
]


@pytest.mark.parametrize(("shape", "pads", "value"), CONSTANT)
def test_constant_padding(
    shape: tuple[int, ...], pads: tuple[int, ...], value: float | None
) -> None:
    check(lambda x: pad(x, pads, value=value), sample(*shape), compile=len(pads) == 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_padded_with_a_value(dtype: torch.dtype) -> None:
    check(lambda x: pad(x, (1, 2), value=1), sample(2, 3, dtype=dtype))


WINDOWS: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("reflect", (2, 4), (3, 1)),
    ("reflect", (1, 2, 5), (2, 0)),
    ("reflect", (2, 3, 4, 5), (1, 2, 3, 0)),
    ("reflect", (1, 2, 3, 2, 4), (1, 3, 1, 1, 2, 1)),
    ("reflect", (2, 3, 4), (-1, 2)),
    ("replicate", (2, 4), (5, 1)),
    ("replicate", (2, 3, 4, 1), (1, 2, 0, 3)),
    ("replicate", (1, 2, 3, 2, 4), (1, 3, 1, 1, 2, 1)),
    ("replicate", (2, 3, 4), (-1, -1)),
    ("circular", (1, 2, 4), (3, 1)),
    ("circular", (2, 3, 4, 5), (1, 2, 3, 0)),
    ("circular", (1, 2, 3, 2, 4), (1, 3, 1, 1, 2, 1)),
]


@pytest.mark.parametrize(("mode", "shape", "pads"), WINDOWS)
def test_reflect_replicate_and_circular_padding(
    mode: str, shape: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    check(lambda x: pad(x, pads, mode=mode), sample(*shape), compile=len(shape) == 4)


OPERATORS: list[tuple[str, list[Any], tuple[int, ...]]] = [
    ("pad", [[1, 2], "constant", None], (2, 3)),
    ("pad", [[1, 2], "reflect", None], (2, 3)),
    ("_pad_circular", [[1, 2]], (2, 2, 3)),
    ("_pad_enum", [[1, 2], 0, None], (2, 3)),
    ("_pad_enum", [[1, 2], 1, None], (2, 3)),
    ("_pad_enum", [[1, 2], 2, None], (2, 2, 3)),
    ("_pad_enum", [[1, 2], 3, 2.5], (2, 2, 3)),
    ("reflection_pad1d", [[1, 2]], (2, 3)),
    ("replication_pad3d", [[1, 2, 0, 0, 1, 0]], (1, 2, 2, 2, 3)),
]


@pytest.mark.parametrize(("name", "arguments", "shape"), OPERATORS)
def test_padding_operators(
    name: str, arguments: list[Any], shape: tuple[int, ...]
) -> None:
    check(
        lambda x: getattr(torch.ops.aten, name)(x, *arguments),
        sample(*shape),
        compile=False,
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_dynamic_axes_are_padded(mode: str) -> None:
    check(
        lambda x: pad(x, (2, 1), mode=mode).flatten(1),
        sample(2, 3, 4),
        dynamic={0: {0: "n", 2: "t"}},
        spans={"n": (1, 2, 4), "t": (3, 4, 9)},
        more=[(sample(1, 3, 3),), (sample(4, 3, 9),)],
    )


def test_network_computes_padding_to_a_multiple() -> None:
    check(
        lambda x: pad(x, (0, (-x.size(1)) % 4), value=5.0),
        sample(2, 3),
        dynamic={0: {1: "t"}},
        spans={"t": (1, 3, 9)},
        more=[(sample(2, 1),), (sample(2, 8),), (sample(2, 9),)],
    )
