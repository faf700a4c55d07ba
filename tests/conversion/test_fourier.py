"""Fourier transforms of real and complex numbers, as products with matrices of cosines and sines.

Tolerance: sums of up to n products of size 1 in another order, so n * 6e-8 of the largest value;
1e-5 for the lengths of these tests.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.decompositions import fourier
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert

TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
PARTS = "torch.view_as_real(z)"
EXPRESSIONS = {
    "rfft": ("torch.fft.rfft(x)", PARTS),
    "another axis": ("torch.fft.rfft(x, dim=1, norm='ortho')", PARTS),
    "fewer samples": ("torch.fft.rfft(x, n=4, dim=1, norm='forward')", PARTS),
    "more samples": ("torch.fft.rfft(x, 2 * x.size(1), dim=-2)", PARTS),
    "two axes": ("torch.fft.rfft2(x, norm='ortho')", PARTS),
    "sizes of two axes": ("torch.fft.rfft2(x, s=[x.size(1), 3])", PARTS),
    "several axes": ("torch.fft.rfftn(x, dim=[0, 2, 1], norm='forward')", PARTS),
    "irfft": ("torch.complex(x, y)", "torch.fft.irfft(z)"),
    "odd length": ("torch.complex(x, y)", "torch.fft.irfft(z, n=9, dim=-1)"),
    "irfft of an axis": (
        "torch.fft.rfft(x, dim=1)",
        "torch.fft.irfft(z * 2, n=x.size(1), dim=1, norm='ortho')",
    ),
    "fewer bins": ("torch.complex(x, y)", "torch.fft.irfft(z, n=5, dim=1)"),
    "a real spectrum": ("x", "torch.fft.irfft(z, n=6, norm='forward')"),
    "irfft of two axes": (
        "torch.fft.rfft2(x)",
        "torch.fft.irfft2(z, s=[x.size(1), x.size(2)])",
    ),
    "irfft of several axes": (
        "torch.fft.rfftn(x, dim=[0, 1])",
        "torch.fft.irfftn(z, s=[-1, x.size(1)], dim=[0, 1], norm='ortho')",
    ),
    "fft": ("torch.fft.fft(x)", PARTS),
    "fft of an axis": ("torch.fft.fft(x, dim=1, norm='ortho')", PARTS),
    "fft of fewer samples": ("torch.fft.fft(x, n=4, dim=1, norm='forward')", PARTS),
    "fft of more samples": ("torch.fft.fft(x, 2 * x.size(1), dim=-2)", PARTS),
    "fft of complex numbers": ("torch.fft.fft(torch.complex(x, y), dim=1)", PARTS),
    "fft of two axes": ("torch.fft.fft2(x, s=[x.size(1), 3])", PARTS),
    "fft of several axes": ("torch.fft.fftn(x, dim=[0, 2, 1], norm='forward')", PARTS),
    "ifft": ("torch.fft.ifft(torch.complex(x, y), dim=1)", PARTS),
    "ifft of real numbers": (
        "torch.fft.ifft(x, n=9, dim=1, norm='forward') * 2",
        PARTS,
    ),
    "ifft of two axes": ("torch.fft.ifft2(torch.complex(x, y), norm='ortho')", PARTS),
    "ifft of several axes": ("torch.fft.ifftn(x, s=[-1, 8], dim=[0, 1])", PARTS),
    "there and back": ("torch.fft.ifft(torch.fft.fft(x, dim=1), dim=1)", PARTS),
    "FNet": ("torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2)", "z.real"),
    "windows": ("torch.fft.rfft(x.unfold(1, 4, 3))", PARTS),
}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_transform(name: str, *, dynamic: bool) -> None:
    spectrum, result = EXPRESSIONS[name]
    source = f"def f(x, y):\n    z = {spectrum}\n    return {result}\n"
    function = torch.jit.CompilationUnit(source).f
    axes = {0: {0: "n", 1: "t"}, 1: {0: "n", 1: "t"}}
    sizes = [(1, 4), (3, 9)] if dynamic else []
    check(
        function.graph,
        *(torch.randn(2, 8, 6) for _ in range(2)),
        dynamic=axes if dynamic else {},
        spans={"n": (1, 2, 3), "t": (4, 8, 9)},
        more=[(torch.randn(n, t, 6), torch.randn(n, t, 6)) for n, t in sizes],
        expected=function,
        **TOLERANCE,
    )


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 1), (2, 1, 3, 8, 2)])
def test_ranks_and_axes_of_size_1(shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):

        def parts(x: Tensor, axis: int = axis) -> Tensor:
            half = torch.view_as_real(torch.fft.rfft(x, dim=axis))
            z = torch.fft.fft(torch.fft.ifft(x, dim=axis) * 2j, dim=axis)
            return torch.cat([half.flatten(), torch.view_as_real(z).flatten()])

        check(parts, torch.randn(shape), **TOLERANCE, compile=not axis)


def test_integers_are_transformed_as_floats() -> None:
    x = torch.randint(-9, 9, (3, 8))
    for transform in (torch.fft.rfft, torch.fft.fft, torch.fft.ifft):
        check(lambda x, f=transform: f(x).abs(), x, **TOLERANCE, compile=False)


def test_imaginary_part_of_real_bins_is_exactly_0() -> None:
    """Their angle is 0 or pi, which the sign of a rounding error would change."""

    def angles(x: Tensor) -> Tensor:
        z = torch.fft.rfft(x)
        return torch.stack([z[..., 0].angle(), z[..., -1].angle()])

    dynamic = {0: {1: "t"}}
    more = [(torch.randn(9, 30),)]
    check(angles, torch.randn(9, 16), dynamic=dynamic, more=more, compile=False)


class FNet(nn.Module):
    """The mixing of tokens and features in FNet."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fftn(x, dim=(1, 2)).real


class GlobalFilter(nn.Module):
    """The filter of GFNet, on a map of any height."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 3, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1], x.shape[2]
        z = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        z = z * torch.view_as_complex(self.weight)
        return torch.fft.irfft2(z, s=(height, width), dim=(1, 2), norm="ortho")


class FourierUnit(nn.Module):
    """Fast Fourier convolution of LaMa: the parts are channels of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, height, width = x.shape[0], x.shape[2], x.shape[3]
        z = torch.fft.rfftn(x, dim=(-2, -1), norm="ortho")
        parts = torch.stack((z.real, z.imag), dim=-1)
        parts = parts.permute(0, 1, 4, 2, 3).reshape(n, 6, height, -1)
        parts = torch.relu(self.convolution(parts))
        parts = parts.view(n, 3, 2, height, -1).permute(0, 1, 3, 4, 2).contiguous()
        z = torch.view_as_complex(parts)
        return torch.fft.irfftn(z, s=(height, width), dim=(-2, -1), norm="ortho")


class LongConvolution(nn.Module):
    """The convolution of Hyena and S4 with a kernel as long as the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 64))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        kernel = torch.fft.rfft(self.kernel[:, :length], n=2 * length) / length
        spectrum = torch.fft.rfft(x, n=2 * length)
        return torch.fft.irfft(spectrum * kernel, n=2 * length)[..., :length]


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize(
    ("module", "shape", "axis"),
    [
        (FNet(), (2, 7, 8), 1),
        (GlobalFilter(), (2, 7, 4, 3), 1),
        (FourierUnit(), (2, 3, 8, 6), 2),
        (LongConvolution(), (2, 3, 16), 2),
    ],
)
def test_layer(
    module: nn.Module, shape: tuple[int, ...], axis: int, *, trace: bool
) -> None:
    requests = [
        (torch.randn(*shape[:axis], length, *shape[axis + 1 :]),)
        for length in (1, 2 * shape[axis])
    ]
    check(
        module,
        torch.randn(shape),
        dynamic={0: {axis: "t"}},
        more=requests,
        trace=trace,
        rtol=2e-5,
        atol=2e-5,
    )


def test_exported_layer() -> None:
    x = torch.randn(2, 3, 16)
    axes = ({2: torch.export.Dim("t", min=2, max=32)},)
    module = LongConvolution()
    program = torch.export.export(module, (x,), dynamic_shapes=axes)
    spec = builder.TensorSpec("float32", (2, 3, "t"), dims={"t": (2, 16, 32)})
    conversion = builder.convert(program, [spec])
    for length in (2, 16, 31):
        x = torch.randn(2, 3, length)
        (result,) = builder.reference.run(conversion, [x])
        torch.testing.assert_close(result, module(x), **TOLERANCE)


def test_error_of_the_longest_transform() -> None:
    """Relative to the exact transform, the error is at most 4 times that of torch's."""
    x = torch.randn(16, fourier.LONGEST)
    exact = torch.fft.rfft(x.double())
    parts = fourier.rfft(x, None, -1, "backward")
    errors = [
        (spectrum - exact).abs().square().mean().sqrt()
        for spectrum in (torch.complex(*parts), torch.fft.rfft(x))
    ]
    assert errors[0] < 4 * errors[1]


def error(spectrum: Tensor, exact: Tensor) -> Tensor:
    return (spectrum - exact).abs().square().mean().sqrt()


@pytest.mark.parametrize("length", [1, 2, 3, 17, 256, 1023, fourier.LONGEST])
@pytest.mark.parametrize("inverse", [True, False])
def test_error_of_the_complex_transform(length: int, *, inverse: bool) -> None:
    """Relative to torch's transform in float64, the error is at most 4e-7 of the root mean
    square. That of torch's transform in float32 is half as large.
    """
    x, y = torch.randn(2, 16, length)
    transform = torch.fft.ifft if inverse else torch.fft.fft
    for z, parts in (
        (torch.complex(x, y), fourier.fft(x, y, None, -1, "backward", inverse)),
        (x, fourier.fft_of_real(x, None, -1, "backward", inverse)),
    ):
        exact = transform(z.to(torch.complex128))
        assert error(torch.complex(*parts), exact) < 4e-7 * error(exact, exact * 0)


@pytest.mark.parametrize("dynamic", [True, False])
def test_longer_axes_are_transformed_by_torch(*, dynamic: bool) -> None:
    """A dynamic axis that may be longer keeps both."""
    length = fourier.LONGEST + 2
    module = torch.jit.script(LongSpectrum())
    with pytest.raises(UnsupportedOperators, match=r"fft_rfft|prim::If"):
        convert(
            module,
            [torch.randn(1, length)],
            dynamic={0: {1: "t"}} if dynamic else {},
            spans={"t": (1, length, length)},
        )
    lowered = builder.lower(module)
    x = torch.randn(1, length)
    torch.testing.assert_close(lowered.run(x)[0], module(x), rtol=0, atol=0)


class LongSpectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * 2).abs()
