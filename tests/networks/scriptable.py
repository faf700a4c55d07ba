"""Change pytorchcv's modules so that torch.jit.script compiles them, with the same weights and
outputs.

The compiler fails for two reasons. Branches that are never taken name submodules that only other
settings have: an `nn.Identity` replaces these. Some code is Python that TorchScript does not
support: each such class gets another forward here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def prepare(module: nn.Module) -> nn.Module:
    """Change the module in place and return it. Its classes keep their new forwards."""
    for part in list(module.modules()):
        kind = type(part)
        if not kind.__module__.startswith("pytorchcv."):
            continue
        if kind.__name__ in FORWARDS:
            kind.forward = FORWARDS[kind.__name__]  # type: ignore[assignment]
        if kind.__name__ == "Hourglass":
            _hourglass(part)
        for name in _named_in_forward(kind):
            if not hasattr(part, name):
                setattr(part, name, nn.Identity())
    return module


def _named_in_forward(kind: type[nn.Module]) -> set[str]:
    """The attributes of self that the forward reads."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind.forward)))
    attributes = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    ]
    return {a.attr for a in attributes if a.value.id == "self"}  # type: ignore[attr-defined]


def _hourglass(part: Any) -> None:
    """The upsampling path in the order of execution: TorchScript indexes a list of modules only by
    constants.
    """
    depth = part.depth
    part.ups = nn.ModuleList(part.up_seq[depth - 1 - i] for i in range(depth))
    part.skips = nn.ModuleList(part.skip_seq[depth - 1 - i] for i in range(depth))


def _linear_bottleneck(self: Any, x: Tensor) -> Tensor:
    y = self.conv1(x) if self.use_exp_conv else x
    y = self.conv3(self.conv2(y))
    return x + y if self.residual else y


def _mobile_v3(self: Any, x: Tensor) -> Tensor:
    y = self.exp_conv(x) if self.use_exp_conv else x
    y = self.conv1(y)
    if self.use_se:
        y = self.se(y)
    y = self.conv2(y)
    return x + y if self.residual else y


def _effi_separable(self: Any, x: Tensor) -> Tensor:
    y = self.pw_conv(self.se(self.dw_conv(x)))
    return y + x if self.residual else y


def _effi_inverted(self: Any, x: Tensor) -> Tensor:
    y = self.conv2(self.conv1(x))
    if self.use_se:
        y = self.se(y)
    y = self.conv3(y)
    return y + x if self.residual else y


def _effi_init(self: Any, x: Tensor) -> Tensor:
    return self.conv(x)  # type: ignore[no-any-return]


def _pre_activated(self: Any, x: Tensor) -> Tensor:
    if self.use_bn:
        x = self.bn(x)
    if self.activate:
        x = self.activ(x)
    return self.conv(x)  # type: ignore[no-any-return]


def _concurrent(self: Any, x: Tensor) -> Tensor:
    parts = []
    for module in self:
        parts.append(module(x))
    return torch.cat(parts, self.axis)


def _channel_shuffle(self: Any, x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    x = x.view(batch, self.groups, channels // self.groups, height, width)
    return x.transpose(1, 2).contiguous().view(batch, channels, height, width)


def _walk_hourglass(self: Any, x: Tensor) -> Tensor:
    kept = [x]
    for down in self.down_seq:
        x = down(x)
        kept.append(x)
    kept.pop()
    for up, skip in zip(self.ups, self.skips):  # noqa: B905  (TorchScript has no strict=)
        x = torch.cat([up(x), skip(kept.pop())], 1)
    return x


def _interpolation(self: Any, x: Tensor) -> Tensor:
    size = [x.shape[2] * self.scale_factor, x.shape[3] * self.scale_factor]
    return F.interpolate(
        x, size=size, mode="bilinear", align_corners=self.align_corners
    )


def _two_outputs(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    kept = []
    for module in self:
        x = module(x)
        if hasattr(module, "do_output"):
            kept.append(x)
    return x, kept[0]


def _aspp_average(self: Any, x: Tensor) -> Tensor:
    size = [x.shape[2], x.shape[3]]
    return F.interpolate(
        self.conv(self.pool(x)), size=size, mode="bilinear", align_corners=True
    )


def _deeplab_head(self: Any, x: Tensor, out_size: list[int]) -> Tensor:
    x = self.conv2(self.dropout(self.conv1(x)))
    return F.interpolate(x, size=out_size, mode="bilinear", align_corners=True)


def _deeplab(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    size = [x.shape[2], x.shape[3]]
    deep, middle = self.backbone(x)
    return self.final_block(self.pool(deep), size), self.aux_block(middle, size)


def _centernet_decoded(self: Any, x: Tensor) -> Tensor:
    heatmap, sizes, offsets = x[:, :-4], x[:, -4:-2], x[:, -2:]
    batch, _, height, width = heatmap.shape
    scores, indices = heatmap.reshape(batch, -1).topk(self.topk)
    classes = (indices / (height * width)).to(torch.float32)
    cells = indices.fmod(height * width)
    offsets = offsets.permute(0, 2, 3, 1).reshape(batch, -1, 2)
    sizes = sizes.permute(0, 2, 3, 1).reshape(batch, -1, 2)
    xs = cells.fmod(width).to(torch.float32) + torch.gather(offsets[:, :, 0], -1, cells)
    ys = (cells / width).to(torch.float32) + torch.gather(offsets[:, :, 1], -1, cells)
    w, h = (
        0.5 * torch.gather(sizes[:, :, 0], -1, cells),
        0.5 * torch.gather(sizes[:, :, 1], -1, cells),
    )
    boxes = torch.stack((xs - w, ys - h, xs + w, ys + h), -1) * self.scale
    return torch.cat((boxes, classes.unsqueeze(-1), scores.unsqueeze(-1)), -1)


def _centernet(self: Any, x: Tensor) -> Tensor:
    return self.heatmap_max_det(self.decoder(self.backbone(x)))  # type: ignore[no-any-return]


FORWARDS: dict[str, Callable[..., Any]] = {
    "LinearBottleneck": _linear_bottleneck,
    "MobileNetV3Unit": _mobile_v3,
    "EffiDwsConvUnit": _effi_separable,
    "EffiInvResUnit": _effi_inverted,
    "EffiInitBlock": _effi_init,
    "PreConvBlock": _pre_activated,
    "Concurrent": _concurrent,
    "ChannelShuffle": _channel_shuffle,
    "Hourglass": _walk_hourglass,
    "InterpolationBlock": _interpolation,
    "MultiOutputSequential": _two_outputs,
    "ASPPAvgBranch": _aspp_average,
    "DeepLabv3FinalBlock": _deeplab_head,
    "DeepLabv3": _deeplab,
    "CenterNetHeatmapMaxDet": _centernet_decoded,
    "CenterNet": _centernet,
}
"""By class name, the forward for the settings that tests/networks/published.py has."""
