"""Modules with complex numbers, as networks of real ones: rotary embeddings and spectra."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import builder
from tests.conversion.harness import check, convert
from tests.lowering.test_complex import Rotary, sample


def test_a_rotary_embedding_of_any_length() -> None:
    more = [(sample(3, 9, 2, 8),), (sample(1, 1, 2, 8),)]
    check(Rotary(), sample(2, 5, 2, 8), dynamic={0: {0: "n", 1: "t"}}, more=more)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"n_fft": 16},
    "hop": {"n_fft": 16, "hop_length": 5},
    "window": {"n_fft": 16, "hop_length": 4, "window": torch.hann_window(16)},
    "short window": {
        "n_fft": 16,
        "hop_length": 4,
        "win_length": 11,
        "window": torch.hamming_window(11),
    },
    "short frames": {"n_fft": 16, "win_length": 8},
    "odd": {"n_fft": 15, "hop_length": 2},
    "both sides": {"n_fft": 16, "onesided": False},
    "normalized": {"n_fft": 16, "normalized": True},
    "at the edge": {"n_fft": 16, "center": False},
    "constant edge": {"n_fft": 16, "pad_mode": "constant"},
}


class Spectrum(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.stft(x, return_complex=True, **self.settings)
        # real: its angles are 0 and pi, which the sign of an imaginary 0 would turn
        first = z.select(-2, 0)
        return torch.view_as_real(z), z.abs().pow(2.0), first.angle()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("shape", [(2, 60), (60,)])
def test_a_spectrum(name: str, shape: tuple[int, ...]) -> None:
    """16 products are summed: 1e-5 of values up to 10."""
    last = len(shape) - 1
    more = [(sample(*shape[:-1], 37),), (sample(*shape[:-1], 16),)]
    check(
        Spectrum(**SETTINGS[name]),
        sample(*shape),
        more=more,
        trace=True,
        rtol=1e-5,
        atol=1e-5,
        dynamic={0: {last: "t"}},
        spans={"t": (16, 60, 100)},
        compile=name in ("window", "both sides"),
    )


class Mel(nn.Module):
    """The first layers of speech models: a power spectrum in bands, as logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer(
            "bands", torch.rand(10, 33, generator=torch.Generator().manual_seed(0))
        )

    def forward(self, x: Tensor) -> Tensor:
        z = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        return torch.log10(torch.clamp(self.bands @ z.abs().pow(2), min=1e-10))


def test_bands_of_a_scripted_spectrum() -> None:
    check(
        Mel(),
        sample(2, 400),
        dynamic={0: {0: "n", 1: "t"}},
        more=[(sample(1, 333),)],
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_spectrum_stays_in_float32() -> None:
    conversion = builder.convert(
        torch.jit.script(Mel()),
        [builder.TensorSpec("float32", (2, 400))],
        precision="fp16",
    )
    layers = [
        conversion.network.get_layer(i) for i in range(conversion.network.num_layers)
    ]
    (wave,) = [layer for layer in layers if layer.type.name == "CONVOLUTION"]
    assert wave.get_output(0).dtype.name == "FLOAT"


def test_computed_window_is_refused() -> None:
    def windowed(x: Tensor, w: Tensor) -> Tensor:
        return torch.stft(x, 16, window=w, return_complex=True).abs()

    with pytest.raises(builder.TrtBuildError, match="aten::stft"):
        convert(windowed, [sample(2, 60), sample(16)])
