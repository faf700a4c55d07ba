"""The small networks with their inputs, dynamic axes and the sizes to compare at."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.networks import nets
from tests.networks.comparing import Network, Sizes

NHW = {0: {0: "n", 2: "h", 3: "w"}}


def image(sizes: Sizes) -> tuple[torch.Tensor, ...]:
    return (torch.randn(sizes["n"], 3, sizes["h"], sizes["w"]),)


def square(sizes: Sizes) -> tuple[torch.Tensor, ...]:
    return (torch.randn(sizes["n"], 3, 32, 32),)


def tokens(sizes: Sizes) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 50, (sizes["n"], sizes["t"])),)


def _images(make: Callable[[], torch.nn.Module], *hw: tuple[int, int]) -> Network:
    hw = hw or ((64, 64), (48, 80), (33, 47))
    cases = tuple({"n": n, "h": h, "w": w} for n, (h, w) in zip((2, 1, 4), hw, strict=True))
    return Network(make, image, NHW, cases)


def _sequences(make: Callable[[], torch.nn.Module], inputs: Callable[[Sizes], tuple[torch.Tensor, ...]]) -> Network:
    cases = ({"n": 2, "t": 12}, {"n": 1, "t": 3}, {"n": 4, "t": 30})
    return Network(make, inputs, {0: {0: "n", 1: "t"}}, cases)


NETWORKS: dict[str, Network] = {
    "ResNet": _images(nets.ResNet),
    "MobileNetV2": _images(nets.MobileNetV2),
    "U-Net": _images(nets.UNet),
    "DeepLab": _images(nets.DeepLab),
    "CenterNet": _images(nets.CenterNet),
    "LSTM tagger": _sequences(nets.Tagger, tokens),
    "GRU": Network(
        nets.Gru,
        lambda s: (torch.randn(s["n"], s["t"], 10), torch.randn(2, s["n"], 12)),
        {0: {0: "n", 1: "t"}, 1: {1: "n"}},
        ({"n": 2, "t": 12}, {"n": 1, "t": 3}, {"n": 4, "t": 30}),
    ),
    "ViT": Network(nets.ViT, square, {0: {0: "n"}}, ({"n": 2}, {"n": 1}, {"n": 5})),
    "BERT": Network(
        nets.Bert,
        lambda s: (torch.randint(0, 60, (s["n"], s["t"])), (torch.rand(s["n"], s["t"]) > 0.2).long()),
        {0: {0: "n", 1: "t"}, 1: {0: "n", 1: "t"}},
        ({"n": 2, "t": 12}, {"n": 1, "t": 3}, {"n": 4, "t": 30}),
    ),
    "Conformer": _sequences(nets.Conformer, lambda s: (torch.randn(s["n"], s["t"], 16),)),
    "WaveNet": Network(
        nets.WaveNet,
        lambda s: (torch.randn(s["n"], 1, s["t"]),),
        {0: {0: "n", 2: "t"}},
        ({"n": 2, "t": 40}, {"n": 1, "t": 9}, {"n": 4, "t": 100}),
    ),
    "Diffusion": Network(
        nets.Diffusion,
        lambda s: (*image(s), torch.randint(0, 1000, (s["n"],))),
        {**NHW, 1: {0: "n"}},
        ({"n": 2, "h": 16, "w": 16}, {"n": 1, "h": 8, "w": 12}, {"n": 3, "h": 24, "w": 16}),
    ),
}
