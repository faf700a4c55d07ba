"""Short-time Fourier transforms: a convolution with sines and cosines."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.convolution import Convolution, convolve
from builder.conversion.refusals import REASONS
from builder.conversion.registry import converter
from builder.engine import ITensor


def _real(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    if call.return_complex is not False:
        return REASONS["complex"]
    if call.window is not None and call.window.is_complex():
        return REASONS["complex"]
    if call.align_to_window:
        return "its frames are aligned to the window"
    return None


@converter(
    "aten::stft",
    when=_real,
    note=(
        "real and imaginary parts as a last axis: lowering requests them for a complex result"
    ),
)
def stft(
    ctx: ConversionContext,
    x: ITensor,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: torch.Tensor | None,
    normalized: bool,
    onesided: bool | None,
) -> ITensor:
    """The Fourier transform of every `hop_length`-th frame of `n_fft` samples under the window
    (torch.stft)
    """
    bins = n_fft if onesided is False else n_fft // 2 + 1
    scale = n_fft**-0.5 if normalized else 1.0
    waves = (
        scale * _waves(n_fft, bins) * _centered(window, win_length or n_fft, n_fft)
    ).to(ctx.dtype(x))
    hop = n_fft // 4 if hop_length is None else hop_length
    flat = ctx.rank(x) == 1
    signal = ctx.unsqueeze(x, [0, 1] if flat else [1])
    frames = Convolution.of(waves[:, None], None, hop, 0, 1, 1)
    # N, 2 bins, T
    parts = convolve(ctx, signal, frames)
    sizes = [ctx.size(parts, 0), 2, bins, ctx.size(parts, 2)]
    spectrum = ctx.permute(ctx.reshape(parts, sizes), [0, 2, 3, 1])
    if flat:
        return ctx.squeeze(spectrum, [0])
    return spectrum


def _waves(n_fft: int, bins: int) -> torch.Tensor:
    """[2 bins, n_fft]: cos and -sin of 2 pi k n / n_fft, with the angles reduced as integers. The
    sines of multiples of pi are exactly 0, so that real results have an imaginary part of 0, as in
    torch.
    """
    phases = torch.outer(torch.arange(bins), torch.arange(n_fft)) % n_fft
    angles = phases.double() * (2 * torch.pi / n_fft)
    return torch.cat(
        [angles.cos(), torch.where(2 * phases % n_fft == 0, 0.0, -angles.sin())]
    )


def _centered(window: torch.Tensor | None, length: int, n_fft: int) -> torch.Tensor:
    """The window (ones by default), padded with zeros to the length of a frame."""
    values = torch.ones(length, dtype=torch.float64)
    if window is not None:
        values = window.double()
    before = (n_fft - length) // 2
    return torch.nn.functional.pad(values, [before, n_fft - length - before])
