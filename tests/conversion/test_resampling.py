"""Interpolation against torch: by size, by factor, and by factors that give no whole length.

Tolerance: weights are computed in float32 from positions up to 40, so each is off by up to 40 ulp,
5e-6 of values of size 1 to 4.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from builder import TensorSpec, convert
from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, dynamic_axes

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 2e-5}
EXACT: dict[str, Any] = {"rtol": 0, "atol": 0}
SUMMED: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
SPATIAL = {1: (7,), 2: (7, 10), 3: (4, 5, 6)}
MODES = [
    (1, "nearest", None),
    (2, "nearest", None),
    (3, "nearest", None),
    (1, "nearest-exact", None),
    (2, "nearest-exact", None),
    (3, "nearest-exact", None),
    (1, "linear", False),
    (1, "linear", True),
    (2, "bilinear", False),
    (2, "bilinear", True),
    (3, "trilinear", False),
    (3, "trilinear", True),
    (2, "bicubic", False),
    (2, "bicubic", True),
]
FACTORS = [
    *(2, 1.5, 0.7, 1.0),
    *(pytest.param(factor, marks=pytest.mark.slow) for factor in (3.0, 0.5, 2.3, 0.29)),
]


def tolerance(mode: str) -> dict[str, Any]:
    return EXACT if mode.startswith("nearest") else CLOSE


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(("axes", "mode", "align"), MODES)
def test_by_factor(axes: int, mode: str, align: bool | None, factor: float) -> None:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=factor, mode=mode, align_corners=align)

    x = torch.randn(2, 3, *SPATIAL[axes])
    small, odd = (
        torch.randn(1, 3, *(4 for _ in range(axes))),
        torch.randn(3, 3, *(2 * n - 1 for n in SPATIAL[axes])),
    )
    check(scale, x, **tolerance(mode), compile=False)
    spans = {f"s{i}": (4, n, 2 * n + 90) for i, n in enumerate(SPATIAL[axes])}
    check(
        scale,
        x,
        dynamic=dynamic_axes(axes),
        spans=spans,
        more=[(small,), (odd,)],
        **tolerance(mode),
        compile=factor in (2, 1.5),
    )


@pytest.mark.parametrize("factor", [1.01, 1.3, 2.3])
@pytest.mark.parametrize(("axes", "mode", "align"), MODES)
def test_factor_that_repeats_the_elements_of_a_short_axis(
    axes: int, mode: str, align: bool | None, factor: float
) -> None:
    """PyTorch copies 3 elements to 3 although the factor is 1.3, in some modes."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=factor, mode=mode, align_corners=align)

    x, *more = (torch.randn(1, 2, *([n] * axes)) for n in (3, 2, 1, 5))
    check(scale, x, **tolerance(mode), compile=False)
    spans = {f"s{i}": (1, 3, 6) for i in range(axes)}
    check(
        scale,
        x,
        dynamic=dynamic_axes(axes),
        spans=spans,
        more=[(tensor,) for tensor in more],
        **tolerance(mode),
        compile=mode == "bilinear",
    )


@pytest.mark.parametrize("size", [3, 5, 14, 1])
@pytest.mark.parametrize(("axes", "mode", "align"), MODES)
def test_by_size(axes: int, mode: str, align: bool | None, size: int) -> None:
    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(size,) * axes, mode=mode, align_corners=align)

    x = torch.randn(2, 3, *SPATIAL[axes])
    check(resize, x, **tolerance(mode), compile=size == 5)
    check(
        resize,
        x,
        dynamic={0: {0: "n"}},
        more=[(torch.randn(1, 3, *SPATIAL[axes]),)],
        **tolerance(mode),
        compile=False,
    )


@pytest.mark.parametrize(
    ("mode", "align"), [("nearest", None), ("bilinear", False), ("bilinear", True)]
)
def test_to_the_size_of_another_input(mode: str, align: bool | None) -> None:
    class Like(torch.nn.Module):
        def __init__(self, mode: str, align: bool | None) -> None:
            super().__init__()
            self.mode, self.align = mode, align

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (
                F.interpolate(
                    x, size=y.shape[2:], mode=self.mode, align_corners=self.align
                )
                + y
            )

    x, y = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 8, 12)
    more = [
        (torch.randn(1, 3, 2, 3), torch.randn(1, 3, 8, 6)),
        (torch.randn(4, 3, 8, 12), torch.randn(4, 3, 16, 24)),
    ]
    dynamic = {0: {0: "n", 2: "h", 3: "w"}, 1: {0: "n", 2: "H", 3: "W"}}
    check(Like(mode, align), x, y, dynamic=dynamic, more=more, **tolerance(mode))


def test_recomputed_factor_is_the_ratio_of_lengths() -> None:
    for recompute in (False, True):
        check(
            lambda x, r=recompute: F.interpolate(  # type: ignore[misc]
                x,
                scale_factor=1.7,
                mode="bilinear",
                recompute_scale_factor=r,
                align_corners=False,
            ),
            torch.randn(1, 2, 7, 9),
            **CLOSE,
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(4, 20), (3, 3), (7, 11)])
def test_antialiasing(mode: str, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 9, 13)
    check(
        lambda x: F.interpolate(x, size=size, mode=mode, antialias=True),
        x,
        dynamic={0: {0: "n"}},
        **CLOSE,
    )


def test_antialiasing_of_dynamic_axis_is_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="width"):
        check(
            lambda x: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True),
            torch.randn(1, 2, 8, 8),
            dynamic={0: {3: "width"}},
        )


def test_integers_and_half() -> None:
    check(
        lambda x: F.interpolate(x, scale_factor=2),
        torch.randint(0, 255, (1, 3, 4, 5), dtype=torch.uint8),
    )
    check(
        lambda x: F.interpolate(x, scale_factor=2),
        torch.randn(1, 3, 4, 5).half(),
        **EXACT,
    )
    check(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        torch.randn(1, 3, 4, 5).half(),
    )


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    x, grid = torch.randn(2, 3, 6, 7), torch.rand(2, 4, 5, 2) * 3 - 1.5

    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, padding, align)

    dynamic = {0: {0: "n", 2: "h", 3: "w"}, 1: {0: "n", 1: "H"}}
    check(
        sample,
        x,
        grid,
        dynamic=dynamic,
        more=[(torch.randn(1, 3, 9, 8), torch.rand(1, 2, 5, 2) * 3 - 1.5)],
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_grid_sample_of_half_is_refused(dtype: torch.dtype) -> None:
    inputs = torch.randn(1, 3, 6, 7), torch.rand(1, 4, 5, 2)

    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, align_corners=False)

    with pytest.raises(UnsupportedOperators, match="sample in float32"):
        check(sample, *(tensor.to(dtype) for tensor in inputs))
    check(lambda x, g: sample(x.float(), g.float()).to(dtype), *inputs, compile=False)


def test_grid_sample_of_volume_converts_or_is_refused() -> None:
    x, grid = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 3, 4, 5, 3) * 2 - 1
    try:
        check(lambda x, g: F.grid_sample(x, g, align_corners=False), x, grid)
    except UnsupportedOperators as refusal:
        assert not capabilities.current().strongly_typed, (
            "only 8.6's layer samples images alone"
        )
        assert "has no grid sampling with 3 spatial axes" in str(refusal)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 4, 5), (2, 3, 1, 5)])
def test_affine_grid(size: tuple[int, ...], align: bool) -> None:
    axes = len(size) - 2
    theta = torch.randn(2, axes, axes + 1)
    check(lambda t: F.affine_grid(t, list(size), align), theta, **CLOSE)


@pytest.mark.parametrize("align", [False, True])
def test_affine_grid_of_dynamic_size(align: bool) -> None:
    def grids(
        x: torch.Tensor, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        volume = [x.size(0), 1, 3, x.size(2), x.size(3)]
        return (
            F.affine_grid(theta[:, :2, :3], list(x.shape), align),
            F.affine_grid(theta, volume, align),
        )

    def inputs(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(shape), torch.randn(shape[0], 3, 4)

    check(
        grids,
        *inputs(2, 3, 4, 5),
        dynamic={0: {0: "n", 2: "h", 3: "w"}, 1: {0: "n"}},
        more=[inputs(1, 3, 1, 6), inputs(3, 3, 7, 1)],
        compile=align,
        **CLOSE,
    )


def test_integer_factor_needs_no_shape_layers() -> None:
    """With computed sizes TensorRT does not recognize that the operands of the next sum have one
    size.
    """

    class Pyramid(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = torch.nn.Conv2d(3, 3, 3, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(
                self.down(self.down(x)), scale_factor=4.0, mode="nearest"
            )

    spec = TensorSpec(
        "float32",
        ("n", 3, "h", "w"),
        {"n": (1, 2, 4), "h": (8, 16, 40), "w": (8, 16, 40)},
        name="x",
    )
    module, x = Pyramid().eval(), torch.randn(2, 3, 16, 12)
    network = convert(torch.jit.trace(module, x), [spec]).network
    (resize,) = (
        layer
        for layer in map(network.get_layer, range(network.num_layers))
        if layer.type == trt.LayerType.RESIZE
    )
    assert resize.num_inputs == 1
    check(
        module,
        x,
        dynamic={0: {0: "n", 2: "h", 3: "w"}},
        spans={"h": (8, 16, 40), "w": (8, 12, 40)},
        **SUMMED,
    )
