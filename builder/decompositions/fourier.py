"""Fourier transforms of one axis as products with matrices of cosines and sines.

A matrix has as many elements as the square of the length, so longer axes keep torch's transform.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LONGEST = 2048
"""The longest transform that becomes a matrix product: its two matrices have 34 MB."""


def _waves(rows: int, columns: int, length: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, columns] cos and sin of 2 pi k n / length, in the dtype of x. Phases are reduced as
    integers. Sines of multiples of pi are exactly 0, as in torch.
    """
    row = torch.arange(rows, device=x.device)[:, None]
    phases = row * torch.arange(columns, device=x.device) % length
    phases = torch.where(2 * phases > length, phases - length, phases)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    angles = phases.to(dtype) * (2 * math.pi / length)
    is_zero = 2 * phases % length == 0
    sines = torch.where(is_zero, 0.0, torch.sin(angles))
    return torch.cos(angles).to(x.dtype), sines.to(x.dtype)


def _scale(norm: str, length: int, inverse: bool) -> float:
    """The factor of a transform with this normalization."""
    if norm == "ortho":
        root: float = length**-0.5
        return root
    if (norm == "forward") != inverse:
        return 1.0 / length
    return 1.0


def rfft(x: Tensor, n: int | None, dim: int, norm: str) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of torch.fft.rfft of a real tensor."""
    length = x.size(dim) if n is None else n
    if length > LONGEST:
        z = torch.fft.rfft(x, n, dim, norm)
        return torch.real(z), torch.imag(z)
    if not x.is_floating_point():
        x = x.to(torch.float32)
    samples = x.narrow(dim, 0, min(x.size(dim), length)).movedim(dim, -1)
    cosines, sines = _waves(samples.size(-1), length // 2 + 1, length, x)
    scale = _scale(norm, length, False)
    return (
        torch.matmul(samples, cosines * scale).movedim(-1, dim),
        torch.matmul(samples, sines * -scale).movedim(-1, dim),
    )


def irfft(re: Tensor, im: Tensor, n: int | None, dim: int, norm: str) -> Tensor:
    """torch.fft.irfft of a tensor with this real and imaginary part."""
    length = 2 * (re.size(dim) - 1) if n is None else n
    if length > LONGEST:
        x: Tensor = torch.fft.irfft(torch.complex(re, im), n, dim, norm)
        return x
    bins = min(re.size(dim), length // 2 + 1)
    cosines, sines = _waves(bins, length, length, re)
    # all bins but the first and, for an even length, the last also stand for their conjugates
    is_single = 2 * torch.arange(bins, device=re.device)[:, None] % length == 0
    weights = torch.where(is_single, 1.0, 2.0).to(re.dtype)
    weights = weights * _scale(norm, length, True)
    re = re.narrow(dim, 0, bins).movedim(dim, -1)
    im = im.narrow(dim, 0, bins).movedim(dim, -1)
    product = torch.matmul(re, cosines * weights) - torch.matmul(im, sines * weights)
    return product.movedim(-1, dim)


def _pair(z: Tensor) -> tuple[Tensor, Tensor]:
    return torch.real(z), torch.imag(z)


def _long(
    z: Tensor, n: int | None, dim: int, norm: str, inverse: bool
) -> tuple[Tensor, Tensor]:
    """The transform of a long axis, which torch runs."""
    if inverse:
        return _pair(torch.fft.ifft(z, n, dim, norm))
    return _pair(torch.fft.fft(z, n, dim, norm))


def _matrices(
    x: Tensor, length: int, norm: str, inverse: bool
) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of the transform of the last axis of x."""
    cosines, sines = _waves(x.size(-1), length, length, x)
    scale = _scale(norm, length, inverse)
    return cosines * scale, sines * (scale if inverse else -scale)


def fft_of_real(
    x: Tensor, n: int | None, dim: int, norm: str, inverse: bool
) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of torch.fft.fft of a real tensor, or of ifft."""
    length = x.size(dim) if n is None else n
    if length > LONGEST:
        return _long(x, n, dim, norm, inverse)
    if not x.is_floating_point():
        x = x.to(torch.float32)
    samples = x.narrow(dim, 0, min(x.size(dim), length)).movedim(dim, -1)
    cosines, sines = _matrices(samples, length, norm, inverse)
    return (
        torch.matmul(samples, cosines).movedim(-1, dim),
        torch.matmul(samples, sines).movedim(-1, dim),
    )


def fft(
    re: Tensor, im: Tensor, n: int | None, dim: int, norm: str, inverse: bool
) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of torch.fft.fft of a complex tensor, or of ifft."""
    length = re.size(dim) if n is None else n
    if length > LONGEST:
        return _long(torch.complex(re, im), n, dim, norm, inverse)
    count = min(re.size(dim), length)
    re = re.narrow(dim, 0, count).movedim(dim, -1)
    im = im.narrow(dim, 0, count).movedim(dim, -1)
    cosines, sines = _matrices(re, length, norm, inverse)
    return (
        (torch.matmul(re, cosines) - torch.matmul(im, sines)).movedim(-1, dim),
        (torch.matmul(re, sines) + torch.matmul(im, cosines)).movedim(-1, dim),
    )
