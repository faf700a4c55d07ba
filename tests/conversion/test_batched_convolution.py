"""Convolutions with a kernel for each sample of a dynamic batch, which is their `groups`.

Tolerance: as in test_convolution.py; gains of random weights multiply it in the generator's block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check

TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
PAIR: dict[str, Any] = {
    "dynamic": {0: {0: "n", 2: "h"}, 1: {0: "n"}},
    "spans": {"n": (1, 2, 4), "h": (5, 7, 9)},
}
SIZES = [(1, 5), (4, 9)]
"""The batches and heights of the other requests."""


def samples(
    batch: int, height: int, weight: tuple[int, ...], axes: int
) -> tuple[Tensor, ...]:
    """An input of 4 channels, a kernel for each sample, and biases for 6 channels."""
    spatial = (height, 6)[:axes]
    kernels = torch.randn(batch, *weight, *(3, 2)[:axes])
    return torch.randn(batch, 4, *spatial), kernels, torch.randn(batch, 6)


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "stride=2, padding=1",
        "padding=2, dilation=2",
        "padding='same'",
        "stride=3, padding='valid'",
    ],
)
@pytest.mark.parametrize("axes", [1, 2])
def test_kernels_of_a_dynamic_batch(axes: int, settings: str) -> None:
    inputs = [samples(*size, (6, 4), axes) for size in ((2, 7), *SIZES)]
    source = f"""
def f(x: Tensor, weight: Tensor, bias: Tensor):
    n = x.size(0)
    images = x.reshape([1, -1] + x.shape[2:])
    weight = weight.reshape([n * 6, 4] + weight.shape[3:])
    y = torch.nn.functional.conv{axes}d(
        images, weight, bias.reshape(-1), groups=n, {settings}
    )
    return y.reshape([n, 6] + y.shape[2:])
"""
    check_source(source, inputs)


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "stride=2, padding=1",
        "padding=1, dilation=2",
        "stride=2, dilation=2",
        "stride=3, output_padding=2",
        "stride=3, padding=1, output_padding=2",
    ],
)
@pytest.mark.parametrize("axes", [1, 2])
def test_transposed_kernels_of_a_dynamic_batch(axes: int, settings: str) -> None:
    inputs = [samples(*size, (4, 6), axes) for size in ((2, 7), *SIZES)]
    source = f"""
def f(x: Tensor, weight: Tensor, bias: Tensor):
    n = x.size(0)
    images = x.reshape([1, -1] + x.shape[2:])
    weight = weight.reshape([n * 4, 6] + weight.shape[3:])
    y = torch.nn.functional.conv_transpose{axes}d(
        images, weight, bias.reshape(-1), groups=n, {settings}
    )
    return y.reshape([n, 6] + y.shape[2:])
"""
    check_source(source, inputs)


def check_source(source: str, inputs: Sequence[tuple[Tensor, ...]]) -> None:
    """Compare with the TorchScript function `f` of a text."""
    function = torch.jit.CompilationUnit(source).f
    dynamic = {**PAIR["dynamic"], 2: {0: "n"}}
    options = PAIR | TOLERANCE | {"dynamic": dynamic, "more": inputs[1:]}
    check(function.graph, *inputs[0], expected=function, **options)


class DepthwiseCorrelation(nn.Module):
    """xcorr_depthwise of SiamRPN++: every channel of every sample is a group."""

    def forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        batch, channels = kernel.size(0), kernel.size(1)
        x = x.view(1, batch * channels, x.size(2), x.size(3))
        kernel = kernel.view(batch * channels, 1, kernel.size(2), kernel.size(3))
        out = F.conv2d(x, kernel, groups=batch * channels)
        return out.view(batch, channels, out.size(2), out.size(3))


class TemplateCorrelation(nn.Module):
    """SiamFC: a dynamic number of templates is the weight, without groups."""

    def forward(self, x: Tensor, templates: Tensor) -> Tensor:
        return F.conv2d(x, templates)


@pytest.mark.parametrize("module", [DepthwiseCorrelation(), TemplateCorrelation()])
def test_correlation_with_templates(module: nn.Module) -> None:
    requests = [
        (torch.randn(n, 4, h, 7), torch.randn(n, 4, 3, 3)) for n, h in ((2, 7), *SIZES)
    ]
    check(module, *requests[0], **PAIR, more=requests[1:], **TOLERANCE)


class Modulated(nn.Module):
    """ModulatedConv2d of StyleGAN2: the style scales the kernel's inputs, and demodulation
    normalizes its outputs. `up` doubles the size with a transposed convolution and a blur.
    """

    def __init__(self, inputs: int, outputs: int, length: int, up: bool, demod: bool):
        super().__init__()
        self.inputs, self.outputs, self.length = inputs, outputs, length
        self.up, self.demod = up, demod
        self.scale = (inputs * length**2) ** -0.5
        self.weight = nn.Parameter(torch.randn(1, outputs, inputs, length, length))
        self.style = nn.Linear(8, inputs)
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
        blur = taps[None] * taps[:, None]
        self.blur = nn.Parameter(4 * blur[None, None] / blur.sum())

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        weight = self.scale * self.weight * self.style(style).view(batch, 1, -1, 1, 1)
        if self.demod:
            norm = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8)
            weight = weight * norm.view(batch, self.outputs, 1, 1, 1)
        x = x.view(1, batch * self.inputs, height, width)
        window = (self.length, self.length)
        if self.up:
            weight = weight.transpose(1, 2).reshape(-1, self.outputs, *window)
            out = F.conv_transpose2d(x, weight, padding=0, stride=2, groups=batch)
            out = out.view(batch, self.outputs, out.size(2), out.size(3))
            flat = F.pad(out.reshape(-1, 1, out.size(2), out.size(3)), (1, 1, 1, 1))
            flat = F.conv2d(flat, self.blur)
            return flat.view(batch, self.outputs, flat.size(2), flat.size(3))
        weight = weight.view(batch * self.outputs, self.inputs, *window)
        out = F.conv2d(x, weight, padding=self.length // 2, groups=batch)
        return out.view(batch, self.outputs, out.size(2), out.size(3))


class GeneratorBlock(nn.Module):
    """Two styled convolutions and the projection to RGB, as in StyleGAN2's synthesis network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = Modulated(6, 4, 3, up=True, demod=True)
        self.conv1 = Modulated(4, 4, 3, up=False, demod=True)
        self.to_rgb = Modulated(4, 3, 1, up=False, demod=False)
        self.strength = nn.Parameter(torch.tensor([0.3, 0.2]))
        self.bias = nn.Parameter(torch.randn(2, 1, 4, 1, 1))

    def activated(self, x: Tensor, noise: Tensor, layer: int) -> Tensor:
        x = x + self.strength[layer] * noise + self.bias[layer]
        return F.leaky_relu(x, 0.2) * 2**0.5

    def forward(
        self, x: Tensor, style: Tensor, noise: Tensor, rgb: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = self.activated(self.conv0(x, style), noise, 0)
        x = self.activated(self.conv1(x, style), noise, 1)
        skip = F.interpolate(rgb, scale_factor=2.0, mode="bilinear")
        return x, skip + self.to_rgb(x, style)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_block_of_the_stylegan2_generator(dtype: torch.dtype) -> None:
    module = GeneratorBlock().to(dtype)

    def request(batch: int, height: int) -> tuple[Tensor, ...]:
        shapes = [(6, height, 6), (8,), (1, 2 * height, 12), (3, height, 6)]
        return tuple(torch.randn(batch, *shape).to(dtype) for shape in shapes)

    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    check(
        module,
        *request(2, 7),
        dynamic={index: {0: "n"} for index in range(4)},
        spans={"n": (1, 2, 4)},
        more=[request(1, 7), request(4, 7)],
        rtol=tolerance,
        atol=tolerance,
    )


def test_groups_that_a_trace_fixed_are_refused() -> None:
    """Torch raises an error for another batch than the traced one."""
    inputs = (torch.randn(2, 4, 7, 7), torch.randn(2, 4, 3, 3))
    with pytest.raises(UnsupportedOperators, match="not known to fit its weight"):
        check(DepthwiseCorrelation(), *inputs, **PAIR, trace=True)
    check(DepthwiseCorrelation(), *inputs, trace=True, **TOLERANCE)


def test_three_spatial_axes_are_refused() -> None:
    inputs = (torch.randn(2, 4, 7, 5, 5), torch.randn(2, 4, 3, 3, 3))
    with pytest.raises(UnsupportedOperators, match="one or two spatial axes"):
        check(lambda x, weight: F.conv3d(x, weight), *inputs, **PAIR)
