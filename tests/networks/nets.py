"""Small networks of the families that people serve, in plain torch.nn: every idiom, few weights."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_bn(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(outputs),
    )


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            conv_bn(inputs, outputs, 3, stride),
            conv_bn(outputs, outputs),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else conv_bn(inputs, outputs, 1, stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(
            self.second(F.relu(self.first(x))) + self.shortcut(x), inplace=True
        )


class ResNet(nn.Module):
    """ResNet-18's plan at an eighth of its width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_bn(3, 8, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        widths = [8, 8, 16, 32, 64]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    ResidualBlock(a, b, 1 if i == 0 else 2), ResidualBlock(b, b, 1)
                )
                for i, (a, b) in enumerate(itertools.pairwise(widths))
            )
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.residual = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            conv_bn(inputs, hidden, 1),
            nn.ReLU6(),
            conv_bn(hidden, hidden, 3, stride, hidden),
            nn.ReLU6(),
            conv_bn(hidden, outputs, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(nn.Module):
    """Inverted residuals with depthwise convolutions, relu6, and an average over height and
    width.
    """

    def __init__(self) -> None:
        super().__init__()
        plan = [
            (8, 8, 1, 1),
            (8, 12, 2, 6),
            (12, 12, 1, 6),
            (12, 16, 2, 6),
            (16, 16, 1, 6),
        ]
        self.features = nn.Sequential(
            conv_bn(3, 8, 3, 2),
            nn.ReLU6(),
            *(InvertedResidual(*row) for row in plan),
            conv_bn(16, 32, 1),
            nn.ReLU6(),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class UNet(nn.Module):
    """Down by pooling, up by transposed convolution and by interpolation to the size of the
    skip.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = (
            conv_bn(3, 8),
            conv_bn(8, 16),
            conv_bn(16, 16),
        )
        self.up = nn.ConvTranspose2d(16, 16, 2, 2)
        self.merge2, self.merge1 = conv_bn(32, 8), conv_bn(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = self.up(F.relu(self.middle(F.max_pool2d(b, 2))))
        c = F.interpolate(c, size=b.shape[2:], mode="nearest")
        d = F.relu(self.merge2(torch.cat([b, c], 1)))
        e = F.interpolate(d, size=a.shape[2:], mode="bilinear", align_corners=False)
        return self.head(F.relu(self.merge1(torch.cat([a, e], 1))))


class DeepLab(nn.Module):
    """Atrous spatial pyramid pooling and a head that goes back to the input's size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(3, 16, 3, 2), nn.ReLU(), conv_bn(16, 16, 3, 2), nn.ReLU()
        )
        self.branches = nn.ModuleList(
            nn.Conv2d(16, 8, 3, padding=d, dilation=d) for d in (1, 2, 3)
        )
        self.pooled = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU()
        )
        self.head = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        parts = [branch(y) for branch in self.branches]
        parts.append(
            F.interpolate(
                self.pooled(y), size=y.shape[-2:], mode="bilinear", align_corners=False
            )
        )
        return F.interpolate(
            self.head(torch.cat(parts, 1)),
            size=x.shape[-2:],
            mode="bilinear",
            align_corners=True,
        )


class CenterNet(nn.Module):
    """Heat maps and offsets, decoded: local maxima, the best of them, and their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(3, 16, 3, 2), nn.ReLU(), conv_bn(16, 16, 3, 2), nn.ReLU()
        )
        self.heat, self.offset = nn.Conv2d(16, 3, 1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.body(x)
        heat = torch.sigmoid(self.heat(y))
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat).float()
        batch, _, height, width = heat.shape
        scores, places = torch.topk(heat.reshape(batch, -1), 5)
        cells = places % (height * width)
        offsets = self.offset(y).flatten(2).transpose(1, 2)
        offsets = offsets.gather(1, cells.unsqueeze(-1).expand(-1, -1, 2))
        rows, columns = torch.div(cells, width, rounding_mode="floor"), cells % width
        centers = torch.stack(
            [columns.float() + offsets[..., 0], rows.float() + offsets[..., 1]], -1
        )
        return centers, scores, torch.div(places, height * width, rounding_mode="floor")


class Tagger(nn.Module):
    """Embedding, two bidirectional LSTM layers, a tag for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 16, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return F.log_softmax(self.head(states), -1)


class Gru(nn.Module):
    """A GRU that starts from the state that it receives and returns the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(10, 12, 2, batch_first=True)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, state = self.gru(x, state)
        return torch.tanh(y), state


class ViT(nn.Module):
    """Patches, a class token, learned positions, and torch.nn's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.positions
        return self.head(self.encoder(y)[:, 0])


class Bert(nn.Module):
    """Embeddings with positions, attention with a padding mask, a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(60, 32), nn.Embedding(64, 32)
        self.norm = nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (
            nn.Linear(32, 32) for _ in range(4)
        )
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.pooler = nn.Linear(32, 32)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), 4, 8).permute(0, 2, 1, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(positions)[None])
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        scores = (
            self.heads(self.query(x))
            @ self.heads(self.key(x)).transpose(-1, -2)
            / math.sqrt(8)
        )
        y = torch.softmax(scores + bias, -1) @ self.heads(self.value(x))
        y = y.permute(0, 2, 1, 3).contiguous().view(x.size(0), x.size(1), 32)
        x = self.norms[0](x + self.out(y))
        x = self.norms[1](x + self.down(F.gelu(self.up(x))))
        return x, torch.tanh(self.pooler(x[:, 0]))


class Conformer(nn.Module):
    """Half-step feed-forwards around attention and a gated depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(5))
        self.ff1 = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.ff2 = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.pointwise1, self.pointwise2 = nn.Conv1d(16, 32, 1), nn.Conv1d(16, 16, 1)
        self.depthwise, self.batch = (
            nn.Conv1d(16, 16, 7, padding=3, groups=16),
            nn.BatchNorm1d(16),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(self.norms[0](x))
        y = self.norms[1](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.pointwise1(self.norms[2](x).transpose(1, 2)), 1)
        y = self.pointwise2(F.silu(self.batch(self.depthwise(y))))
        x = x + y.transpose(1, 2)
        return self.norms[4](x + 0.5 * self.ff2(self.norms[3](x)))


class WaveNet(nn.Module):
    """Causal dilated convolutions with gates, residuals and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.dilations = [1, 2, 4, 8]
        self.stem, self.head = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(8, 16, 2, dilation=d) for d in self.dilations
        )
        self.mixes = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in self.dilations)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips = torch.zeros_like(x)
        for i, (gate, mix) in enumerate(zip(self.gates, self.mixes)):  # noqa: B905  (TorchScript has no strict=)
            a, b = gate(F.pad(x, [self.dilations[i], 0])).chunk(2, dim=1)
            y = mix(torch.tanh(a) * torch.sigmoid(b))
            skips = skips + y
            x = x + y
        return self.head(F.relu(skips))


class Diffusion(nn.Module):
    """A small denoiser: sinusoidal time, group norm, attention over the image, down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.inlet, self.down = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 16, 3, 2, 1),
        )
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)
        self.qkv, self.proj = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
        self.outlet = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        frequencies = torch.exp(
            torch.arange(8, dtype=torch.float32) * (-math.log(10000.0) / 8)
        )
        angles = t.float()[:, None] * frequencies[None]
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        a = self.inlet(x)
        y = self.down(F.silu(self.norm1(a))) + embedding[:, :, None, None]
        batch, channels, height, width = y.shape
        q, k, v = (
            self.qkv(self.norm2(y))
            .reshape(batch, 3, channels, height * width)
            .unbind(1)
        )
        attention = torch.softmax(
            torch.einsum("bci,bcj->bij", q, k) / math.sqrt(channels), -1
        )
        y = y + self.proj(
            torch.einsum("bij,bcj->bci", attention, v).reshape(
                batch, channels, height, width
            )
        )
        return self.outlet(
            torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), a], 1)
        )
