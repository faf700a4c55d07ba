"""The small networks with their inputs, dynamic axes and the sizes to compare at."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.networks import attending, nets, packed, seeing
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
    cases = tuple(
        {"n": n, "h": h, "w": w} for n, (h, w) in zip((2, 1, 4), hw, strict=True)
    )
    return Network(make, image, NHW, cases)


def _sequences(
    make: Callable[[], torch.nn.Module],
    inputs: Callable[[Sizes], tuple[torch.Tensor, ...]],
) -> Network:
    cases = ({"n": 2, "t": 12}, {"n": 1, "t": 3}, {"n": 4, "t": 30})
    return Network(make, inputs, {0: {0: "n", 1: "t"}}, cases)


def _masked(sizes: Sizes) -> tuple[torch.Tensor, ...]:
    lengths = torch.arange(sizes["t"]) < sizes["t"] - torch.arange(sizes["n"])[
        :, None
    ].clamp(max=sizes["t"] - 1)
    return (*tokens(sizes), lengths.long())


def _uneven(sizes: Sizes) -> tuple[torch.Tensor, ...]:
    """A padded batch, the length of each row in decreasing order, and a state."""
    lengths = torch.linspace(max(sizes["t"] - 1, 1), 1, sizes["n"]).long()
    return (
        torch.randn(sizes["n"], sizes["t"], 10),
        lengths,
        torch.randn(2, sizes["n"], 12),
    )


def _sentences(sizes: Sizes) -> tuple[torch.Tensor, ...]:
    """Words, zeros behind the end of each sentence, in no order of length."""
    (words,) = tokens(sizes)
    lengths = torch.randint(1, sizes["t"] + 1, (sizes["n"], 1))
    return (torch.where(torch.arange(sizes["t"]) < lengths, words.clamp(1), 0),)


MASKED = {0: {0: "n", 1: "t"}, 1: {0: "n", 1: "t"}}
TEXTS = ({"n": 2, "t": 12}, {"n": 1, "t": 3}, {"n": 4, "t": 30})


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
    "GRU with packed state": Network(
        packed.PackedGru,
        _uneven,
        {0: {0: "n", 1: "t"}, 1: {0: "n"}, 2: {1: "n"}},
        TEXTS,
    ),
    "Packed LSTM tagger": _sequences(packed.PackedTagger, _sentences),
    "ViT": Network(nets.ViT, square, {0: {0: "n"}}, ({"n": 2}, {"n": 1}, {"n": 5})),
    "BERT": Network(
        nets.Bert,
        lambda s: (
            torch.randint(0, 60, (s["n"], s["t"])),
            (torch.rand(s["n"], s["t"]) > 0.2).long(),
        ),
        {0: {0: "n", 1: "t"}, 1: {0: "n", 1: "t"}},
        ({"n": 2, "t": 12}, {"n": 1, "t": 3}, {"n": 4, "t": 30}),
    ),
    "Conformer": _sequences(
        nets.Conformer, lambda s: (torch.randn(s["n"], s["t"], 16),)
    ),
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
        (
            {"n": 2, "h": 16, "w": 16},
            {"n": 1, "h": 8, "w": 12},
            {"n": 3, "h": 24, "w": 16},
        ),
    ),
    "GPT (one step)": _sequences(attending.Gpt, tokens),
    "GPT with a cache": Network(
        attending.GptWithCache,
        lambda s: (
            torch.randint(0, 50, (s["n"], 1)),
            *(torch.randn(s["n"], 4, s["t"], 8) for _ in range(2)),
        ),
        {0: {0: "n"}, 1: {0: "n", 2: "t"}, 2: {0: "n", 2: "t"}},
        TEXTS,
    ),
    "Llama": _sequences(attending.Llama, tokens),
    "T5 encoder": Network(attending.T5Encoder, _masked, MASKED, TEXTS),
    "DistilBERT": Network(attending.DistilBert, _masked, MASKED, TEXTS),
    "Swin": _images(attending.Swin, (32, 32), (64, 32), (32, 96)),
    "Whisper encoder": Network(
        attending.WhisperEncoder,
        lambda s: (torch.randn(s["n"], 8, s["t"]),),
        {0: {0: "n", 2: "t"}},
        ({"n": 2, "t": 24}, {"n": 1, "t": 7}, {"n": 3, "t": 100}),
    ),
    "Translator": Network(
        attending.Translator,
        lambda s: (
            torch.randint(0, 60, (s["n"], s["s"])),
            torch.randint(0, 60, (s["n"], s["t"])),
        ),
        {0: {0: "n", 1: "s"}, 1: {0: "n", 1: "t"}},
        (
            {"n": 2, "s": 9, "t": 6},
            {"n": 1, "s": 3, "t": 2},
            {"n": 3, "s": 12, "t": 15},
        ),
    ),
    "Mixture of experts": _sequences(
        attending.Experts, lambda s: (torch.randn(s["n"], s["t"], 32),)
    ),
    "ConvNeXt": _images(seeing.ConvNeXt),
    "YOLO": _images(seeing.Yolo, (64, 64), (48, 80), (40, 56)),
    "Feature pyramid": _images(seeing.Pyramid),
    "PointNet": Network(
        seeing.PointNet,
        lambda s: (torch.randn(s["n"], s["p"], 3),),
        {0: {0: "n", 1: "p"}},
        ({"n": 2, "p": 40}, {"n": 1, "p": 1}, {"n": 3, "p": 100}),
    ),
    "Graph network": Network(
        seeing.GraphNet,
        lambda s: (
            torch.randn(s["nodes"], 6),
            torch.randint(0, s["nodes"], (2, s["edges"])),
        ),
        {0: {0: "nodes"}, 1: {1: "edges"}},
        (
            {"nodes": 10, "edges": 30},
            {"nodes": 3, "edges": 1},
            {"nodes": 20, "edges": 70},
        ),
    ),
    "Recommender": Network(
        seeing.Recommender,
        lambda s: (torch.randn(s["n"], 5), torch.randint(0, 20, (s["n"], 3))),
        {0: {0: "n"}, 1: {0: "n"}},
        ({"n": 4}, {"n": 1}, {"n": 9}),
    ),
    "Super-resolution": _images(seeing.SuperResolution),
    "Forecaster": _sequences(
        seeing.Forecaster, lambda s: (torch.randn(s["n"], s["t"], 2),)
    ),
    "Autoencoder of volumes": Network(
        seeing.Autoencoder3d,
        lambda s: (torch.randn(s["n"], 1, s["h"], s["h"], s["w"]),),
        {0: {0: "n", 4: "w"}},
        ({"n": 2, "h": 8, "w": 8}, {"n": 1, "h": 8, "w": 4}, {"n": 3, "h": 8, "w": 14}),
    ),
}
