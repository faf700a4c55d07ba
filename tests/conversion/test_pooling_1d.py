"""One-dimensional pooling with two dynamic axes: the image that TensorRT pools has a third."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.conversion.harness import check

POOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: F.max_pool1d(x, 2),
    "max with indices": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "max, padded": lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True),
    "average": lambda x: F.avg_pool1d(x, 2),
    "average, padded": lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
    "power average": lambda x: F.lp_pool1d(x.abs(), 2, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool1d(x, 1),
    "adaptive maximum": lambda x: F.adaptive_max_pool1d(x, 1),
    "adaptive average of equal windows": lambda x: F.adaptive_avg_pool1d(x, 2),
    "area": lambda x: F.interpolate(
        x if x.dim() == 3 else x[None], scale_factor=0.5, mode="area"
    ),
}
SHAPES: dict[str, tuple[tuple[int, ...], dict[int, str]]] = {
    "[b, t, 8]": ((3, 4, 8), {0: "b", 1: "t"}),
    "[c, t]": ((4, 8), {0: "c", 1: "t"}),
    "[1, c, t]": ((1, 4, 8), {1: "c", 2: "t"}),
    "[b, 4, t]": ((2, 4, 8), {0: "b", 2: "t"}),
    "[b, c, t]": ((2, 4, 8), {0: "b", 1: "c", 2: "t"}),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pool", POOLS)
def test_dynamic_axes(pool: str, shape: str) -> None:
    sizes, axes = SHAPES[shape]
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(3))
    other = torch.randn([n * 2 if i in axes else n for i, n in enumerate(sizes)])
    check(
        POOLS[pool],
        x,
        dynamic={0: axes},
        more=[(other,)],
        rtol=1e-5,
        compile=pool == "max",
    )
