"""Normalizations against torch: with and without statistics, affine or not, ranks 2 to 5, dynamic
axes.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.conversion.harness import check

SHAPES = [(4, 6), (2, 6, 5), (2, 6, 3, 4), (3, 6, 2, 2, 3), (1, 6, 1, 1)]
GENERATOR = torch.Generator()
SUMS = 1e-5
"""Statistics are sums of up to 72 squares of values near 3, in another order than torch's: 72 *
2^-24 at worst, 4e-6, and the difference x - mean multiplies it by |mean| / deviation, about 2.
"""


def sample(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR.manual_seed(seed)) * 1.5 + 3


def batch_norm(rank: int, **options: bool) -> nn.Module:
    module = {
        2: nn.BatchNorm1d,
        3: nn.BatchNorm1d,
        4: nn.BatchNorm2d,
        5: nn.BatchNorm3d,
    }[rank](6, **options)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(sample(6, seed=len(name)).abs() + 0.1)
    return module.eval()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_by_running_statistics(shape: tuple[int, ...], affine: bool) -> None:
    module = batch_norm(len(shape), affine=affine)
    check(
        module,
        sample(*shape),
        dynamic={0: {0: "n"}},
        more=[(sample(1, *shape[1:]),)],
        rtol=SUMS,
        atol=SUMS,
    )


@pytest.mark.parametrize("shape", SHAPES[:-1])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_without_running_statistics_uses_the_batch(
    shape: tuple[int, ...], affine: bool
) -> None:
    module = batch_norm(len(shape), affine=affine, track_running_stats=False)
    check(
        module, sample(*shape), dynamic={0: {0: "n"}}, rtol=SUMS, atol=SUMS, trace=True
    )


def test_batch_norm_with_computed_coefficients() -> None:
    def normalize(
        x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        return F.batch_norm(x, m, v, w, None, eps=1e-3)

    check(
        normalize,
        sample(2, 3, 4, 4),
        sample(3),
        sample(3),
        sample(3).abs(),
        rtol=SUMS,
        atol=SUMS,
    )


def test_batch_norm_in_half() -> None:
    """One rounding of scale, shift and product each, of values near 8: 3 * 8 * 2^-11."""
    check(batch_norm(4).half(), sample(2, 6, 3, 4).half(), rtol=4e-3, atol=1.2e-2)


@pytest.mark.parametrize("shape", SHAPES[1:-1])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
def test_instance_norm(shape: tuple[int, ...], affine: bool, track: bool) -> None:
    kind = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}[
        len(shape)
    ]
    module = kind(6, affine=affine, track_running_stats=track)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(sample(6, seed=len(name)).abs() + 0.1)
    dynamic = {0: {0: "n", 2: "w"}}
    check(
        module,
        sample(*shape),
        dynamic=dynamic,
        rtol=SUMS,
        atol=SUMS,
        trace=True,
        spans={"w": (2, 3, 8)},
    )


@pytest.mark.parametrize(
    ("shape", "normal"),
    [((7,), (7,)), ((3, 7), (7,)), ((2, 1, 3, 5), (3, 5)), ((2, 3, 2, 2, 4), (4,))],
)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(
    shape: tuple[int, ...], normal: tuple[int, ...], affine: bool
) -> None:
    weight, bias = (sample(*normal, seed=s) if affine else None for s in (1, 2))
    dynamic = (
        {0: {0: "n", **({1: "m"} if len(shape) > 3 else {})}}
        if len(shape) > 1
        else None
    )
    check(
        lambda x: F.layer_norm(x, normal, weight, bias),
        sample(*shape),
        dynamic=dynamic,
        rtol=SUMS,
        atol=SUMS,
    )
    check(
        lambda x: F.layer_norm(x, normal, weight),
        sample(*shape),
        compile=False,
        rtol=SUMS,
        atol=SUMS,
    )


def test_layer_norm_has_no_cancellation() -> None:
    """Values of 1e4 with a deviation of 1e-1: E[x^2] - E[x]^2 would lose everything. The mean of 64
    floats near 1e4 is good to their spacing, 1e-3, which the division by 0.1 makes 1e-2.
    """
    x = 1e4 + 0.1 * sample(2, 64)
    check(lambda x: F.layer_norm(x, (64,)), x, rtol=0, atol=2e-2)


def test_layer_norm_in_half_is_computed_in_float32() -> None:
    check(lambda x: F.layer_norm(x, (64,)), (sample(3, 64) * 100).half())


def test_native_layer_norm_returns_its_statistics() -> None:
    weight = sample(5)
    check(
        lambda x: torch.native_layer_norm(x, (5,), weight, None, 1e-5),
        sample(2, 3, 5),
        rtol=SUMS,
        atol=SUMS,
    )


def test_native_batch_norm() -> None:
    mean, variance = sample(3), sample(3).abs()
    check(
        lambda x: torch.native_batch_norm(
            x, None, None, mean, variance, False, 0.1, 1e-5
        )[0],
        sample(2, 3, 4, 4),
        rtol=SUMS,
        atol=SUMS,
    )


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        (shape, groups)
        for shape in SHAPES
        for groups in (1, 2, 6)
        # with one value a group torch gives 0 / 0.003, all rounding
        if torch.Size(shape[1:]).numel() > groups
    ],
)
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    weight, bias = sample(6, seed=1), sample(6, seed=2)
    check(
        lambda x: F.group_norm(x, groups, weight, bias),
        sample(*shape),
        dynamic={0: {0: "n"}},
        more=[(sample(1, *shape[1:]),)],
        rtol=SUMS,
        atol=SUMS,
    )


def test_group_norm_of_dynamic_height_and_width() -> None:
    check(
        lambda x: F.group_norm(x, 3),
        sample(2, 6, 4, 5),
        dynamic={0: {0: "n", 2: "h", 3: "w"}},
        more=[(sample(1, 6, 2, 9),)],
        rtol=SUMS,
        atol=SUMS,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(dtype: torch.dtype, eps: float | None) -> None:
    weight = sample(5).to(dtype)
    check(
        lambda x: F.rms_norm(x, (5,), weight, eps),
        sample(2, 3, 5).to(dtype),
        dynamic={0: {0: "n", 1: "m"}},
    )
    check(
        lambda x: F.rms_norm(x, (3, 5), None, eps),
        sample(2, 3, 5).to(dtype),
        compile=False,
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_weight_norm(dim: int) -> None:
    g = torch.ops.aten.norm_except_dim(sample(3, 4, 2), 2, dim)
    check(lambda v: torch._weight_norm(v, g, dim), sample(3, 4, 2), rtol=SUMS)


def test_local_response_norm() -> None:
    check(nn.LocalResponseNorm(3), sample(2, 5, 4, 4), dynamic={0: {0: "n"}}, rtol=SUMS)
