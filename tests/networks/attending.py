"""Small attention networks of the kinds that transformers has, in plain torch.nn that
torch.jit.script takes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS = 32, 4


def split_heads(x: Tensor, heads: int = HEADS) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class CausalBlock(nn.Module):
    """GPT-2's: one projection for queries, keys and values; normalized before; tanh GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.one(x)).chunk(3, -1)
        q, k, v = split_heads(q), split_heads(k), split_heads(v)
        x = x + self.out(
            join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        )
        return x + self.down(F.gelu(self.up(self.two(x)), approximate="tanh"))


class Gpt(nn.Module):
    """One step: the logits of the next token, the embedding's weights used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(60, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks, self.norm = (
            nn.Sequential(CausalBlock(), CausalBlock()),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.norm(self.blocks(self.words(tokens) + self.places(places)))
        return F.linear(x[:, -1], self.words.weight)


class GptWithCache(nn.Module):
    """One token with the keys and values of earlier tokens. Returns them with its own added."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.block = (
            nn.Embedding(60, WIDTH),
            nn.Embedding(64, WIDTH),
            CausalBlock(),
        )

    def forward(
        self, token: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = self.words(token) + self.places(torch.full_like(token, keys.size(2)))
        q, k, v = self.block.qkv(self.block.one(x)).chunk(3, -1)
        keys = torch.cat([keys, split_heads(k)], 2)
        values = torch.cat([values, split_heads(v)], 2)
        y = F.scaled_dot_product_attention(split_heads(q), keys, values)
        x = x + self.block.out(join_heads(y))
        x = x + self.block.down(
            F.gelu(self.block.up(self.block.two(x)), approximate="tanh")
        )
        return F.linear(x[:, -1], self.words.weight), keys, values


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Llama(nn.Module):
    """Rotary positions, grouped queries, root-mean-square norms, SwiGLU (Touvron et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.groups = WIDTH // HEADS, HEADS // 2
        self.words, self.norms = (
            nn.Embedding(60, WIDTH),
            nn.ModuleList(RmsNorm() for _ in range(3)),
        )
        self.query, self.out = (
            nn.Linear(WIDTH, WIDTH, False),
            nn.Linear(WIDTH, WIDTH, False),
        )
        self.key, self.value = (
            nn.Linear(WIDTH, WIDTH // 2, False),
            nn.Linear(WIDTH, WIDTH // 2, False),
        )
        self.gate, self.up, self.down = (
            nn.Linear(WIDTH, 64),
            nn.Linear(WIDTH, 64),
            nn.Linear(64, WIDTH),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        size = self.size
        frequencies = 1.0 / 10000.0 ** (
            torch.arange(0, size, 2, device=tokens.device).float() / size
        )
        angles = torch.outer(
            torch.arange(tokens.size(1), device=tokens.device).float(), frequencies
        )
        cos, sin = (
            torch.cat([angles, angles], -1).cos(),
            torch.cat([angles, angles], -1).sin(),
        )
        x = self.words(tokens)
        y = self.norms[0](x)
        q = rotate(split_heads(self.query(y)), cos, sin)
        k = rotate(split_heads(self.key(y), self.groups), cos, sin)
        k, v = (
            k.repeat_interleave(2, 1),
            split_heads(self.value(y), self.groups).repeat_interleave(2, 1),
        )
        hidden = torch.ones(
            x.size(1), x.size(1), dtype=torch.bool, device=x.device
        ).triu(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(size)).masked_fill(
            hidden, float("-inf")
        )
        x = x + self.out(join_heads(torch.softmax(scores, -1) @ v))
        y = self.norms[1](x)
        return self.norms[2](x + self.down(F.silu(self.gate(y)) * self.up(y)))


class T5Encoder(nn.Module):
    """Scores with a learned bias for the bucket of each distance, no other positions (Raffel et al.
    2020).
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(60, WIDTH), nn.Embedding(16, HEADS)
        self.norms = nn.ModuleList(RmsNorm() for _ in range(3))
        self.qkv, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH, False),
            nn.Linear(WIDTH, WIDTH, False),
        )
        self.up, self.down = nn.Linear(WIDTH, 64, False), nn.Linear(64, WIDTH, False)

    def buckets(self, length: int) -> Tensor:
        """16 of them: half for each direction, exact up to 4, then logarithmic up to 32."""
        places = torch.arange(length)
        distance = places[None, :] - places[:, None]
        side, distance = (distance > 0).long() * 8, distance.abs()
        far = 4 + (torch.log(distance.float() / 4) / math.log(32 / 4) * 4).to(
            torch.long
        )
        return side + torch.where(distance < 4, distance, torch.clamp(far, max=7))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens)
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        scores = split_heads(q) @ split_heads(k).transpose(-1, -2)
        scores = scores + self.bias(self.buckets(tokens.size(1))).permute(2, 0, 1)[None]
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -3.0e38)
        x = x + self.out(join_heads(torch.softmax(scores, -1) @ split_heads(v)))
        return self.norms[2](x + self.down(torch.relu(self.up(self.norms[1](x)))))


class WindowBlock(nn.Module):
    """Attention within windows of 4 x 4; a shift moves them across the edges (Liu et al., 2021)."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift, self.heads = shift, HEADS
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.table = nn.Parameter(torch.randn(49, HEADS) * 0.1)
        at = torch.stack(
            torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        ).flatten(1)
        relative = at[:, :, None] - at[:, None, :] + 3
        self.register_buffer("index", relative[0] * 7 + relative[1])

    def hidden(self, height: int, width: int) -> Tensor:
        """Pairs that a shift moves into one window from opposite edges: [windows, 16, 16]."""
        rows, columns = torch.arange(height), torch.arange(width)
        rows = (rows >= height - 4).long() + (rows >= height - self.shift).long()
        columns = (columns >= width - 4).long() + (columns >= width - self.shift).long()
        regions = (rows[:, None] * 3 + columns[None, :])[None, :, :, None]
        regions = self.windows(regions).squeeze(-1)
        return (regions[:, None, :] != regions[:, :, None]).float() * -100.0

    def windows(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        x = x.view(batch, height // 4, 4, width // 4, 4, channels)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        y = self.one(x)
        if self.shift > 0:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        q, k, v = self.qkv(self.windows(y)).chunk(3, -1)
        scores = (
            split_heads(q)
            @ split_heads(k).transpose(-1, -2)
            / math.sqrt(channels // self.heads)
        )
        scores = (
            scores
            + self.table[self.index.view(-1)]
            .view(16, 16, self.heads)
            .permute(2, 0, 1)[None]
        )
        if self.shift > 0:
            mask = self.hidden(height, width)
            scores = (
                scores.view(batch, mask.size(0), self.heads, 16, 16)
                + mask[None, :, None]
            )
            scores = scores.view(-1, self.heads, 16, 16)
        y = self.out(join_heads(torch.softmax(scores, -1) @ split_heads(v)))
        y = y.view(batch, height // 4, width // 4, 4, 4, channels)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, channels)
        if self.shift > 0:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.down(F.gelu(self.up(self.two(x))))


class Swin(nn.Module):
    """Patches, a plain and a shifted block, patches merged two by two."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.blocks = (
            nn.Conv2d(3, WIDTH, 4, 4),
            nn.Sequential(WindowBlock(0), WindowBlock(2)),
        )
        self.norm, self.merge, self.head = (
            nn.LayerNorm(4 * WIDTH),
            nn.Linear(4 * WIDTH, 48),
            nn.Linear(48, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.patches(x).permute(0, 2, 3, 1))
        corners = [
            y[:, 0::2, 0::2],
            y[:, 1::2, 0::2],
            y[:, 0::2, 1::2],
            y[:, 1::2, 1::2],
        ]
        return self.head(self.merge(self.norm(torch.cat(corners, -1))).mean([1, 2]))


class WhisperEncoder(nn.Module):
    """Two convolutions over the spectrogram, sinusoids, torch.nn's encoder (Radford et al.
    2022).
    """

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Conv1d(8, WIDTH, 3, padding=1),
            nn.Conv1d(WIDTH, WIDTH, 3, 2, 1),
        )
        angles = torch.arange(64)[:, None] * torch.exp(
            -math.log(10000) / 15 * torch.arange(16)
        )
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 64, batch_first=True, norm_first=True, activation=F.gelu
        )
        self.encoder = nn.TransformerEncoder(
            layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.two(F.gelu(self.one(x)))).transpose(1, 2)
        return self.encoder(y + self.places[: y.size(1)])


class DistilBert(nn.Module):
    """torch.nn's encoder with a padding mask, and the logits of a classifier over the first
    token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = (
            nn.Embedding(60, WIDTH),
            nn.Embedding(64, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 64, batch_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pre, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        x = self.norm(self.words(tokens) + self.places(places))
        x = self.encoder(x, src_key_padding_mask=mask == 0)
        return self.classifier(torch.relu(self.pre(x[:, 0])))


class Translator(nn.Module):
    """torch.nn.Transformer, encoder and decoder, with a causal mask over the target.
    `tgt_is_causal` states that the mask is causal. Without it a scripted nn.Transformer compares
    the mask's values at run time, and the result decides whether an argument is None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(60, WIDTH)
        self.transformer = nn.Transformer(WIDTH, HEADS, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(WIDTH, 60)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.size(1)
        mask = torch.full([length, length], float("-inf"), device=target.device).triu(1)
        return self.head(
            self.transformer(
                self.words(source),
                self.words(target),
                tgt_mask=mask,
                tgt_is_causal=True,
            )
        )


class Experts(nn.Module):
    """A mixture of four experts, of which each token takes the two best."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.up, self.down = (
            nn.Parameter(torch.randn(4, WIDTH, 48) / 6),
            nn.Parameter(torch.randn(4, 48, WIDTH) / 7),
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(torch.softmax(self.gate(x), -1), 2, -1)
        shares = torch.zeros_like(self.gate(x)).scatter(
            -1, chosen, weights / weights.sum(-1, keepdim=True)
        )
        hidden = F.silu(torch.einsum("ntc,ech->neth", x, self.up))
        return x + torch.einsum("neth,ehc,nte->ntc", hidden, self.down, shares)
