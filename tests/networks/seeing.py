"""Small networks for images, points, graphs and tables that nets.py does not have."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.networks.nets import conv_bn


class ConvNeXtBlock(nn.Module):
    """Depthwise 7 x 7, a norm over the channels, an inverted bottleneck, a scale for each channel
    (Liu et al. 2022).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = (
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            nn.LayerNorm(width, eps=1e-6),
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.stages = nn.Sequential(
            ConvNeXtBlock(16), nn.Conv2d(16, 32, 2, 2), ConvNeXtBlock(32)
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean([-2, -1])))


class Yolo(nn.Module):
    """Two scales joined by upsampling, boxes decoded on grids of any size, the best of them
    gathered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_bn(3, 8, 3, 2), nn.SiLU(), conv_bn(8, 16, 3, 2), nn.SiLU()
        )
        self.deep = nn.Sequential(conv_bn(16, 16, 3, 2), nn.SiLU())
        self.pools = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in (3, 5))
        self.mix, self.join = nn.Conv2d(48, 16, 1), nn.Conv2d(32, 16, 1)
        self.heads = nn.ModuleList(nn.Conv2d(16, 2 * 8, 1) for _ in range(2))
        self.register_buffer(
            "anchors",
            torch.tensor([[[4.0, 6.0], [9.0, 7.0]], [[16.0, 20.0], [30.0, 28.0]]]),
        )

    def decode(self, y: Tensor, anchors: Tensor, stride: float) -> Tensor:
        batch, _, height, width = y.shape
        y = y.view(batch, 2, 8, height, width).permute(0, 1, 3, 4, 2).sigmoid()
        rows, columns = torch.meshgrid(
            torch.arange(height), torch.arange(width), indexing="ij"
        )
        grid = torch.stack([columns, rows], -1).to(y.dtype)
        centers = (y[..., 0:2] * 2 - 0.5 + grid) * stride
        sizes = (y[..., 2:4] * 2) ** 2 * anchors[None, :, None, None]
        corners = torch.cat([centers - sizes / 2, centers + sizes / 2], -1)
        return torch.cat([corners, y[..., 4:]], -1).flatten(1, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = self.stem(x)
        deep = self.deep(fine)
        pooled = [deep]
        for pool in self.pools:
            pooled.append(pool(deep))
        deep = self.mix(torch.cat(pooled, 1))
        fine = self.join(
            torch.cat([fine, F.interpolate(deep, scale_factor=2.0, mode="nearest")], 1)
        )
        boxes = torch.cat(
            [
                self.decode(self.heads[0](fine), self.anchors[0], 4.0),
                self.decode(self.heads[1](deep), self.anchors[1], 8.0),
            ],
            1,
        )
        scores, labels = (boxes[..., 5:] * boxes[..., 4:5]).max(-1)
        best, places = scores.topk(10, 1)
        chosen = boxes[..., :4].gather(1, places[..., None].expand(-1, -1, 4))
        return chosen, best, labels.gather(1, places)


class Pyramid(nn.Module):
    """Features of three scales, each added to the coarser one resized to its size (Lin et al.
    2017).
    """

    def __init__(self) -> None:
        super().__init__()
        widths = [8, 12, 16]
        self.stages = nn.ModuleList(
            conv_bn(a, b, 3, 2) for a, b in zip([3, 8, 12], widths, strict=True)
        )
        self.sides = nn.ModuleList(nn.Conv2d(w, 8, 1) for w in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for stage, side in zip(self.stages, self.sides):  # noqa: B905  (TorchScript has no strict=)
            x = F.relu(stage(x))
            features.append(side(x))
        for i in [1, 0]:
            features[i] = features[i] + F.interpolate(
                features[i + 1], size=features[i].shape[-2:], mode="nearest"
            )
        outputs = []
        for i, smooth in enumerate(self.smooth):
            outputs.append(smooth(features[i]))
        return outputs


class PointNet(nn.Module):
    """A transform computed from the points, a function of each point, the maximum over all (Qi et
    al. 2017).
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.matrix = nn.Linear(16, 9)
        self.each = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1)
        )
        self.segment = nn.Conv1d(64, 5, 1)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        x = points.transpose(1, 2)
        matrix = (
            self.matrix(torch.max(self.turn(x), 2)[0]).view(-1, 3, 3)
            + torch.eye(3)[None]
        )
        x = self.each(torch.bmm(points, matrix).transpose(1, 2))
        whole = torch.max(x, 2, keepdim=True)[0]
        return self.segment(
            torch.cat([x, whole.expand(-1, -1, x.size(2))], 1)
        ).transpose(1, 2), whole.squeeze(2)


class GraphNet(nn.Module):
    """Messages along edges, summed at their ends and divided by their number; then the mean of all
    nodes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.message, self.own = (
            nn.Linear(6, 16),
            nn.Linear(32, 16),
            nn.Linear(16, 16),
        )
        self.head = nn.Linear(16, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.inlet(nodes))
        source, target = edges[0], edges[1]
        messages = torch.relu(self.message(torch.cat([x[source], x[target]], 1)))
        sums = torch.zeros_like(x).index_add(0, target, messages)
        counts = torch.zeros_like(x[:, :1]).index_add(
            0, target, torch.ones_like(messages[:, :1])
        )
        x = torch.relu(self.own(x) + sums / counts.clamp(min=1.0))
        return self.head(x), x.mean(0)


class Recommender(nn.Module):
    """Embeddings of categories, dense features, the products of all pairs (DLRM, Naumov et al.
    2019).
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 8) for n in (20, 30, 40))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tril_indices(4, 4, -1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = [x]
        for i, table in enumerate(self.tables):
            rows.append(table(categories[:, i]))
        stacked = torch.stack(rows, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[
            :, self.pairs[0], self.pairs[1]
        ]
        return torch.sigmoid(self.top(torch.cat([x, products], 1))).squeeze(1)


class SuperResolution(nn.Module):
    """Convolutions at low resolution, pixels shuffled out of channels, added to a bicubic
    enlargement.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2),
            nn.PReLU(16),
            nn.Conv2d(16, 12, 3, padding=1),
        )
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        whole = F.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False)
        return torch.clamp(whole + self.shuffle(self.body(x)), 0.0, 1.0)


class Forecaster(nn.Module):
    """A series normalized by its own statistics, a GRU, attention over its states, and the
    statistics put back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.score, self.head = (
            nn.GRU(2, 12, batch_first=True),
            nn.Linear(12, 1),
            nn.Linear(24, 8),
        )

    def forward(self, series: Tensor) -> Tensor:
        mean, deviation = (
            series.mean(1, keepdim=True),
            series.std(1, keepdim=True, unbiased=False) + 1e-5,
        )
        states, last = self.gru((series - mean) / deviation)
        context = (torch.softmax(self.score(states), 1) * states).sum(1)
        forecast = self.head(torch.cat([context, last[-1]], 1)).unflatten(1, (4, 2))
        return forecast * deviation + mean


class Autoencoder3d(nn.Module):
    """A volume made smaller and whole again: 3-D convolutions, instance norms, transposed
    convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv3d(1, 8, 3, 2, 1),
            nn.InstanceNorm3d(8, affine=True),
            nn.LeakyReLU(0.1),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose3d(8, 4, 2, 2), nn.ELU(), nn.Conv3d(4, 1, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))
