"""Inputs of other ranks and dtypes for the cases of `tests.lowering.cases`."""

from __future__ import annotations

from typing import Any

import torch

from tests.lowering.cases import floats

Inputs = tuple[Any, ...]
_HALF, _LOW, _DOUBLE = torch.float16, torch.bfloat16, torch.float64


def _elementwise(*dtypes: torch.dtype) -> list[Inputs]:
    """Tensors of no axes, of no elements, of five axes, and of two axes in other dtypes."""
    shapes = [(), (0, 4), (2, 1, 3, 1, 2)]
    return [(floats(*shape) * 4,) for shape in shapes] + [
        ((floats(3, 4) * 4).to(dtype),) for dtype in dtypes
    ]


def _ints(dtype: torch.dtype, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


_PAIRS: list[Inputs] = [
    (torch.tensor(7.5), torch.tensor(-2.0)),
    (floats(2, 1, 3) * 9, floats(4, 1) * 2),
    (floats(2, 3).to(_DOUBLE) * 9, floats(3)),
    (_ints(torch.int8, 7, -7, 6), _ints(torch.int8, 3, 3, -4)),
    (_ints(torch.int64, 7, -7, 6), torch.tensor([2.5, -2.5, 4.0])),
]
_ATTENTION: list[Inputs] = [
    tuple(floats(5, 8) for _ in range(3)),
    (floats(2, 5, 8), floats(2, 6, 8), floats(2, 6, 3)),
    tuple(floats(2, 1, 3, 5, 8).to(_DOUBLE) for _ in range(3)),
]
CORNER_CASES: dict[str, list[Inputs]] = {
    "unpack-silu": _elementwise(_HALF, _LOW, _DOUBLE),
    "unpack-rsqrt": [(x.abs() + 1,) for (x,) in _elementwise(_HALF, _DOUBLE)]
    + [(_ints(torch.int64, 1, 4, 9),)],
    "unpack-floor-divide": _PAIRS,
    "unpack-scaled-dot-product-attention": _ATTENTION,
    "unpack-aliases": [
        (floats(2, 1, 3), floats(4, 1)),
        (_ints(torch.int32, 7, -7), _ints(torch.int32, 2, 2)),
        (torch.tensor(1.5), floats(2, 2).to(_HALF)),
    ],
    "unpack-addmm": [
        (floats(3, 4), floats(4, 3), torch.tensor(2.0)),
        (floats(3, 4), floats(4, 3), floats(3, 1)),
        tuple(t.to(_DOUBLE) for t in (floats(3, 4), floats(4, 3), floats(3))),
        (floats(0, 4), floats(4, 3), floats(3)),
    ],
    "unpack-type-as": [
        (floats(2, 3), _ints(torch.int32, 1, 2, 3)),
        (floats(2, 3), floats(3).to(_HALF)),
        (_ints(torch.int64, 1, 2), torch.tensor(True)),
    ],
    "unpack-select-scatter": [
        (floats(2, 3, 4), floats(3, 4), 0),
        (floats(2, 3, 4), floats(3, 4), 1),
        (_ints(torch.int64, 1, 2, 3), torch.tensor(9), -3),
    ],
    "tile-to-repeat": [
        (floats(4),),
        (floats(2, 3, 4, 1),),
        (torch.tensor(5),),
        (_ints(torch.int8, 1, 2),),
    ],
    "view-to-reshape": [
        (floats(12), floats(3, 4)),
        (floats(2, 1, 6), floats(12)),
        (floats(0, 4), floats(0)),
    ],
    "fuse-linear": [(floats(4),), (floats(2, 3, 5, 4),), (floats(0, 4),)],
    "fuse-addmm-branches": [(floats(4),), (floats(2, 3, 4),)],
    "unify-to": [
        (floats(2, 3), _ints(torch.int64, 1, 2, 3)),
        (floats(3).to(_HALF), floats(3).to(_LOW)),
    ],
    "remove-casts": [
        (_ints(torch.int64, 1, -2),),
        (torch.tensor(1.5),),
        (floats(2, 3).to(_HALF),),
    ],
    "peephole": [(floats(4, 3),), (floats(2, 6).to(_DOUBLE),)],
    "remove-full-slices": [
        (floats(1, 2),),
        (floats(2, 3, 4, 5),),
        (_ints(torch.int64, 1, 2, 3, 4).reshape(2, 2),),
    ],
    "functionalize": [
        (floats(1, 1),),
        (floats(2, 3, 4),),
        (_ints(torch.int32, 1, 2, 3, 4).reshape(2, 2),),
    ],
    "remove-dropout": _elementwise(_HALF, _DOUBLE),
    "fold-known-facts": [
        (torch.tensor(1.0),),
        (_ints(torch.int64, -1, 1),),
        (floats(0, 3),),
    ],
    "fold-sizes": [(floats(3, 2, 2),), (floats(5),), (_ints(torch.int64, 1, 2),)],
    "fold-scalar-tensors": [(floats(4),), (floats(2, 3, 4),)],
    "fold-scalar-chains": [
        (floats(2),),
        (floats(5, 1, 2),),
        (_ints(torch.int64, 3, 4),),
    ],
    "eliminate-common-subexpressions": _elementwise(_HALF, _DOUBLE),
    "split-optionals": [
        (torch.tensor([1.0, -3.0, 1.0]),),
        (floats(3).to(_HALF),),
        (_ints(torch.int64, 1, 2),),
    ],
    "renormalize-embeddings": [
        (torch.tensor(1),),
        (torch.tensor([0], dtype=torch.int32),),
        (torch.zeros(0, 2, dtype=torch.int64),),
    ],
    "unify-fake-quantize": [
        (torch.tensor(1.7),),
        (floats(2, 3, 4) * 100,),
        (floats(0, 3),),
    ],
}
# For passes whose cases need different inputs, by the title of the case.
BY_TITLE: dict[tuple[str, str], list[Inputs]] = {
    ("fold-sizes", "unpacked sizes"): [(floats(5, 1),), (floats(0, 2).to(_HALF),)],
    ("unpack-scaled-dot-product-attention", "bool mask"): [
        (floats(5, 8), floats(6, 8), floats(6, 8), floats(5, 6) > 0),
        (
            floats(2, 3, 5, 8),
            floats(2, 3, 6, 8),
            floats(2, 3, 6, 8),
            floats(2, 1, 1, 6) > 0,
        ),
    ],
    ("unpack-scaled-dot-product-attention", "float mask"): [
        (floats(5, 8), floats(6, 8), floats(6, 8), floats(5, 6)),
        (
            floats(2, 5, 8),
            floats(2, 6, 8),
            floats(2, 6, 8),
            torch.full((2, 5, 6), -float("inf")),
        ),
    ],
    ("unpack-scaled-dot-product-attention", "grouped"): [
        (floats(6, 5, 8), floats(2, 4, 8), floats(2, 4, 8)),
        (floats(3, 5, 8), floats(1, 4, 8), floats(1, 4, 8)),
    ],
    ("unpack-pad", "constant"): [
        (floats(4),),
        (torch.tensor([[1, 2]]),),
        (floats(2, 2, 3).to(_HALF),),
    ],
    ("unpack-pad", "reflect"): [
        (floats(2, 3, 4, 5),),
        (floats(1, 1, 2, 2, 3).to(_DOUBLE),),
    ],
    ("unpack-pad", "replicate"): [
        (floats(2, 3, 4),),
        (floats(1, 1, 1, 1).to(_DOUBLE),),
    ],
    ("unpack-pad", "circular"): [(floats(2, 3, 4),), (floats(1, 2, 2, 3).to(_HALF),)],
    ("unify-convolutions", "conv2d grouped"): [
        (floats(0, 4, 9, 9),),
        (floats(2, 4, 3, 5),),
    ],
    ("unify-convolutions", "conv transposed"): [(floats(3, 2, 1, 1),)],
    ("fuse-linear", "integers stay"): [
        (torch.tensor([1, 2, 3]),),
        (torch.ones(2, 2, 3, dtype=torch.int64),),
    ],
    ("fuse-linear", "addmm"): [(floats(0, 4),), (floats(1, 4),)],
}
