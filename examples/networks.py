"""The networks that the examples export: small, in `eval`, with BatchNorm statistics other than 0
and 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, with an in-place ReLU and addition as in torchvision."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResidualCNN(nn.Module):
    """image float32 [batch, 3, height, width] -> logits float32 [batch, 10], for any size from 32
    pixels on.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
        )
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages = nn.Sequential(
            ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)
        )
        self.head = nn.Linear(64, classes)

    def forward(self, image: Tensor) -> Tensor:
        features = self.stages(self.pool(self.stem(image)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(features, (1, 1)), 1))


class TransformerEncoder(nn.Module):
    """tokens [batch, length, 64], padding bool [batch, length] -> hidden [batch, length, 64],
    pooled [batch, 64].

    True in `padding` is a position to leave out. The mask becomes a large negative number, not
    -inf. So a row that is all padding has finite outputs, which a public server needs.
    """

    def __init__(
        self, width: int = 64, heads: int = 4, depth: int = 2, longest: int = 512
    ) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.register_buffer("positions", sinusoids(longest, width))

    def forward(self, tokens: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        x = tokens + self.positions[: tokens.size(1)]
        hidden = self.encoder(x, src_key_padding_mask=padding.to(x.dtype) * -1e4)
        keep = (~padding).unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * keep).sum(1) / keep.sum(1).clamp(min=1.0)
        return hidden, pooled


class TwoTower(nn.Module):
    """history int64 [batch, 8] (0: padding), profile float32 [batch, 16] -> score [batch, 1], taste
    [batch, 32].
    """

    def __init__(self, items: int = 1000, width: int = 32) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width, padding_idx=0)
        self.history_tower = nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, width)
        )
        self.profile_tower = nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, width)
        )

    def forward(self, history: Tensor, profile: Tensor) -> tuple[Tensor, Tensor]:
        taste = F.normalize(self.history_tower(self.items(history).mean(dim=1)), dim=-1)
        score = torch.sigmoid(
            (taste * self.profile_tower(profile)).sum(dim=-1, keepdim=True)
        )
        return score, taste


def sinusoids(length: int, width: int) -> Tensor:
    """float32 [length, width]: the fixed position encoding of "Attention is all you need"."""
    position = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2], table[:, 1::2] = (
        torch.sin(position * rate),
        torch.cos(position * rate),
    )
    return table


def with_trained_statistics(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """Return the model in `eval` mode. Every BatchNorm has statistics and weights like those of a
    trained model.
    """
    model.train()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.uniform_(layer.weight, 0.5, 1.5)
                nn.init.normal_(layer.bias, std=0.3)
        for _ in range(5):
            model(*inputs)
    return model.eval()
