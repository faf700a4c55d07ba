"""The networks of the benchmarks, written with torch.nn only and with random weights. Nothing is
downloaded.

Each entry of NETWORKS creates a module in evaluation mode and describes its inputs; dynamic axes
are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import builder

BATCH = {"batch": (1, 8, 32)}


def normalized(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution without bias and its batch normalization."""
    convolution = nn.Conv2d(
        inputs, outputs, size, stride, size // 2, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.parts = nn.ModuleList(
            [normalized(channels, width, 1), normalized(width, width, 3, stride)]
        )
        self.last = normalized(width, out, 1)
        changes = stride != 1 or channels != out
        self.shortcut = (
            normalized(channels, out, 1, stride) if changes else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for part in self.parts:
            y = torch.relu(part(y))
        return torch.relu(self.last(y) + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet whose stages have these numbers of blocks, each stage twice as wide as the one
    before (He et al. 2015, table 1), with the stride in the 3x3 convolution as in common
    implementations.
    """

    def __init__(self, width: int, counts: Sequence[int], classes: int) -> None:
        super().__init__()
        self.stem = normalized(3, width, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, channels = [], width
        for stage, count in enumerate(counts):
            for i in range(count):
                blocks.append(Bottleneck(channels, width, 2 if i == 0 and stage else 1))
                channels = 4 * width
            width *= 2
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(self.pool(torch.relu(self.stem(x))))
        return self.head(features.mean((2, 3)))


class InvertedResidual(nn.Module):
    """Expand, depthwise, squeeze-and-excite, project (Sandler et al. 2018, Tan and Le 2019)."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int, expand: int
    ) -> None:
        super().__init__()
        inner, squeezed = inputs * expand, max(1, inputs // 4)
        self.expand = normalized(inputs, inner, 1) if expand != 1 else nn.Identity()
        self.depthwise = normalized(inner, inner, size, stride, groups=inner)
        self.squeeze, self.excite = (
            nn.Conv2d(inner, squeezed, 1),
            nn.Conv2d(squeezed, inner, 1),
        )
        self.project = normalized(inner, outputs, 1)
        self.expands, self.residual = expand != 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.expand(x)) if self.expands else x
        y = F.silu(self.depthwise(y))
        y = y * torch.sigmoid(
            self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        )
        y = self.project(y)
        return y + x if self.residual else y


class EfficientNetB0(nn.Module):
    """Tan and Le 2019, table 1."""

    STAGES = (
        (1, 16, 1, 3, 1),
        (6, 24, 2, 3, 2),
        (6, 40, 2, 5, 2),
        (6, 80, 3, 3, 2),
        (6, 112, 3, 5, 1),
        (6, 192, 4, 5, 2),
        (6, 320, 1, 3, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        self.stem = normalized(3, 32, 3, 2)
        blocks, channels = [], 32
        for expand, outputs, count, size, stride in self.STAGES:
            for i in range(count):
                blocks.append(
                    InvertedResidual(
                        channels, outputs, size, stride if i == 0 else 1, expand
                    )
                )
                channels = outputs
        self.blocks, self.top, self.head = (
            nn.Sequential(*blocks),
            normalized(channels, 1280, 1),
            nn.Linear(1280, 1000),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.top(self.blocks(F.silu(self.stem(x)))))
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class SqueezeExcite(nn.Module):
    """Scales each channel by the result of two 1x1 convolutions on the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze, self.excite = (
            nn.Conv2d(channels, squeezed, 1),
            nn.Conv2d(squeezed, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(
            self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1))))
        )


class MobileBlock(nn.Module):
    """Expand, depthwise, optional squeeze-and-excite, project (Howard et al. 2019)."""

    def __init__(
        self,
        inputs: int,
        inner: int,
        outputs: int,
        size: int,
        stride: int,
        se: bool,
        hard: bool,
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if hard else nn.ReLU
        parts: list[nn.Module] = (
            [normalized(inputs, inner, 1), activation()] if inner != inputs else []
        )
        parts += [normalized(inner, inner, size, stride, groups=inner), activation()]
        parts += [SqueezeExcite(inner, 8 * round(inner / 32))] if se else []
        self.parts = nn.Sequential(*parts, normalized(inner, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x) + x if self.residual else self.parts(x)


class MobileNetV3(nn.Module):
    """Howard et al. 2019, table 1 (Large)."""

    BLOCKS = (
        (16, 16, 3, 1, False, False),
        (64, 24, 3, 2, False, False),
        (72, 24, 3, 1, False, False),
        (72, 40, 5, 2, True, False),
        (120, 40, 5, 1, True, False),
        (120, 40, 5, 1, True, False),
        (240, 80, 3, 2, False, True),
        (200, 80, 3, 1, False, True),
        (184, 80, 3, 1, False, True),
        (184, 80, 3, 1, False, True),
        (480, 112, 3, 1, True, True),
        (672, 112, 3, 1, True, True),
        (672, 160, 5, 2, True, True),
        (960, 160, 5, 1, True, True),
        (960, 160, 5, 1, True, True),
    )
    """inner and output channels, kernel, stride, squeeze-and-excite, hard swish"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = normalized(3, 16, 3, 2)
        blocks, channels = [], 16
        for inner, outputs, *settings in self.BLOCKS:
            blocks.append(MobileBlock(channels, inner, outputs, *settings))
            channels = outputs
        self.blocks, self.top = nn.Sequential(*blocks), normalized(channels, 960, 1)
        self.hidden, self.head = nn.Linear(960, 1280), nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.top(self.blocks(F.hardswish(self.stem(x)))))
        return self.head(
            F.hardswish(self.hidden(F.adaptive_avg_pool2d(y, 1).flatten(1)))
        )


class Attention(nn.Module):
    """Multi-head self-attention, written out as in implementations of BERT and ViT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.heads, self.size = heads, width // heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size(0), x.size(1), x.size(2)
        q, k, v = (
            part(x).view(batch, length, self.heads, self.size).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = torch.softmax(self.scores(q, k), dim=-1)
        return self.out(
            torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width)
        )

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.transpose(-1, -2)) / self.size**0.5


class PackedAttention(nn.Module):
    """The same with torch's module, which computes queries, keys and values in one product.

    It works over the first axis, as in CLIP, so that neither torch nor a trace uses its fast path.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(0, 1)
        return self.inner(y, y, y, need_weights=False)[0].transpose(0, 1)


class FoldedAttention(Attention):
    """The same with the scale of the scores in the weights of the queries."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        for parameter in self.query.parameters():
            parameter.data.div_(self.size**0.5)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.transpose(-1, -2))


class Block(nn.Module):
    """Attention and a feed-forward part, with normalization after (BERT) or before (ViT)."""

    def __init__(
        self,
        width: int,
        heads: int,
        before: bool,
        attention: type[nn.Module] = Attention,
    ) -> None:
        super().__init__()
        self.attention, self.one, self.two = (
            attention(width, heads),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.up, self.down, self.before = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            before,
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self.attention(self.one(x))
            return x + self.down(F.gelu(self.up(self.two(x))))
        x = self.one(x + self.attention(x))
        return self.two(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """BERT-base: 12 layers of width 768 (Devlin et al. 2019), token and position embeddings, the
    last hidden state.
    """

    ATTENTION: type[nn.Module] = Attention

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(
            *(Block(width, heads, False, self.ATTENTION) for _ in range(layers))
        )

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.size(1), device=ids.device)
        return self.blocks(self.norm(self.words(ids) + self.positions(positions)))


class VisionTransformer(nn.Module):
    """ViT-B/16 at 224 x 224 (Dosovitskiy et al. 2021)."""

    ATTENTION: type[nn.Module] = Attention

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 197, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads, True, self.ATTENTION) for _ in range(layers))
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls.expand(y.size(0), -1, -1), y], dim=1) + self.positions
        return self.head(self.norm(self.blocks(y))[:, 0])


class PackedVisionTransformer(VisionTransformer):
    """With torch's own attention."""

    ATTENTION = PackedAttention


class FoldedVisionTransformer(VisionTransformer):
    """With the scale of the scores in the weights of the queries."""

    ATTENTION = FoldedAttention


class FoldedBert(Bert):
    """With the scale of the scores in the weights of the queries."""

    ATTENTION = FoldedAttention


class UNet(nn.Module):
    """Ronneberger et al. 2015, with padding and batch normalization."""

    WIDTHS = (32, 64, 128, 256)

    def __init__(self) -> None:
        super().__init__()
        pairs = zip((3, *self.WIDTHS), self.WIDTHS, strict=False)
        self.down = nn.ModuleList(self._two(a, b) for a, b in pairs)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2)
            for a, b in zip(self.WIDTHS, self.WIDTHS[1:], strict=False)
        )
        self.join = nn.ModuleList(self._two(2 * a, a) for a in self.WIDTHS[:-1])
        self.last = nn.Conv2d(self.WIDTHS[0], 2, 1)

    @staticmethod
    def _two(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            normalized(inputs, outputs, 3),
            nn.ReLU(),
            normalized(outputs, outputs, 3),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        skipped = [self.down[0](x)]
        for part in self.down[1:]:
            skipped.append(part(F.max_pool2d(skipped[-1], 2)))
        y = skipped.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            y = join(torch.cat([skipped.pop(), up(y)], dim=1))
        return self.last(y)


class Tagger(nn.Module):
    """Embedding, two bidirectional LSTM layers, and a linear head for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10000, 128)
        self.lstm = nn.LSTM(
            128, 256, num_layers=2, batch_first=True, bidirectional=True
        )
        self.head = nn.Linear(512, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class Chain(nn.Module):
    """A chain of `depth` blocks of convolution, batch normalization and ReLU: a graph of 3 * depth
    operators.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            *(nn.Sequential(normalized(8, 8, 3), nn.ReLU()) for _ in range(depth))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


@dataclass(frozen=True)
class Network:
    """A module and its input: `sample(batch)` creates one, `spec` describes it for
    builder.convert.
    """

    make: Callable[[], nn.Module]
    spec: builder.TensorSpec
    high: int = 0
    """Ids below this; 0: normally distributed floats."""

    def module(self) -> nn.Module:
        """The module in evaluation mode, seeded, its batch-norm statistics not trivial."""
        torch.manual_seed(0)
        module = self.make().eval()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.5, 1.5)
        return module.requires_grad_(False)

    def sample(self, batch: int) -> Tensor:
        """A seeded input of that batch size."""
        generator = torch.Generator().manual_seed(batch)
        shape = [batch, *self.spec.shape[1:]]
        if self.high:
            return torch.randint(0, self.high, shape, generator=generator)
        return torch.randn(shape, generator=generator)


def image(size: int = 224) -> builder.TensorSpec:
    """A batch of RGB images."""
    return builder.TensorSpec("float32", ("batch", 3, size, size), dims=BATCH, name="x")


def ids(length: int) -> builder.TensorSpec:
    """A batch of token sequences."""
    return builder.TensorSpec("int64", ("batch", length), dims=BATCH, name="x")


NETWORKS = {
    "resnet50": Network(partial(ResNet, 64, (3, 4, 6, 3), 1000), image()),
    "efficientnet_b0": Network(EfficientNetB0, image()),
    "mobilenet_v3": Network(MobileNetV3, image()),
    "bert_base_128": Network(Bert, ids(128), high=30522),
    "bert_base_384": Network(Bert, ids(384), high=30522),
    "vit_b": Network(VisionTransformer, image()),
    "vit_b_packed": Network(PackedVisionTransformer, image()),
    "bert_base_384_folded": Network(FoldedBert, ids(384), high=30522),
    "vit_b_folded": Network(FoldedVisionTransformer, image()),
    "unet": Network(UNet, image(256)),
    "lstm": Network(Tagger, ids(32), high=10000),
    "chain_4000": Network(
        lambda: Chain(1333),
        builder.TensorSpec(
            "float32", ("batch", 8, 8, 8), dims={"batch": (1, 2, 4)}, name="x"
        ),
    ),
}
