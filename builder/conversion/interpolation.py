"""PyTorch's interpolation on one axis: names, indices and weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Method:
    """The names of one interpolation in IResizeLayer and PyTorch."""

    mode: str
    coordinates: str
    rounding: str
    aten: str
    align: bool | None = None
    antialias: bool = False

    def aligned(self, align: bool) -> Method:
        """The same, with or without aligned corners."""
        coordinates = "ALIGN_CORNERS" if align else "HALF_PIXEL"
        return replace(self, coordinates=coordinates, align=align)

    def on_axis(
        self, values: torch.Tensor, size: int, scale: float | None
    ) -> torch.Tensor:
        """PyTorch's interpolation of the rows of a matrix (1-d signals) to `size` elements."""
        flags = [] if self.align is None else [self.align]
        operator = getattr(torch.ops.aten, self.aten)
        if self.aten.endswith("1d"):
            return operator(values[None], [size], *flags, scale)[0]  # type: ignore[no-any-return]
        return operator(values[None, :, None], [1, size], *flags, None, scale)[0, :, 0]  # type: ignore[no-any-return]


NEAREST = Method("NEAREST", "ASYMMETRIC", "FLOOR", "upsample_nearest1d")
NEAREST_2D = replace(NEAREST, aten="upsample_nearest2d")
EXACT = Method("NEAREST", "HALF_PIXEL", "HALF_UP", "_upsample_nearest_exact1d")
LINEAR = Method("LINEAR", "HALF_PIXEL", "FLOOR", "upsample_linear1d")
CUBIC = Method("CUBIC", "HALF_PIXEL", "FLOOR", "upsample_bicubic2d")
LINEAR_AA = Method(
    "LINEAR", "HALF_PIXEL", "FLOOR", "_upsample_bilinear2d_aa", antialias=True
)
CUBIC_AA = Method(
    "CUBIC", "HALF_PIXEL", "FLOOR", "_upsample_bicubic2d_aa", antialias=True
)


def is_exact(method: Method, length: int, size: int, factor: float | None) -> bool:
    """Whether PyTorch's float32 arithmetic selects the same elements as exact arithmetic."""
    i = torch.arange(size)
    exact = (
        (2 * i + 1) * length // (2 * size) if method is EXACT else i * length // size
    )
    return bool(torch.equal(selected_indices(method, length, size, factor), exact))


def selected_indices(
    method: Method, length: int, size: int, factor: float | None
) -> torch.Tensor:
    """The element that PyTorch's nearest interpolation selects for each output (float64 represents
    any index).
    """
    positions = torch.arange(length, dtype=torch.float64)
    return method.on_axis(positions[None], size, factor)[0].long()


def repeats(method: Method, factor: float) -> int | None:
    """The ratio of lengths for which PyTorch repeats each element, although the factor is larger
    and the result differs (UpSampleKernel.cpp): 3 elements by 1.3 are the same 3 elements.
    """
    if method is NEAREST_2D and 2 < factor < 2.5:
        return 2
    copies = method is NEAREST_2D or method.aten == LINEAR.aten
    return 1 if copies and 1 < factor < 1.5 else None


def taps(
    method: Method, size: int, factor: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Indices (not yet clamped at the end) and weights of each tap, from PyTorch's UpSample.h, in
    float32.
    """
    i = torch.arange(size, dtype=torch.float32)
    scale = torch.tensor(1.0 / factor, dtype=torch.float32)
    if method.mode == "NEAREST":
        at = (i + 0.5) * scale if method is EXACT else i * scale
        return [at.floor().long()], [torch.ones(size)]
    at = (i + 0.5) * scale - 0.5
    if method.mode == "LINEAR":
        at = at.clamp(min=0)
    floor = at.floor()
    t = at - floor
    offsets: tuple[int, ...]
    if method.mode == "LINEAR":
        offsets = (0, 1)
        weights = [1 - t, t]
    else:
        offsets = (-1, 0, 1, 2)
        weights = [_cubic((t - offset).abs()) for offset in offsets]
    first = floor.long()
    return [(first + offset).clamp(min=0) for offset in offsets], weights


def _cubic(x: torch.Tensor, a: float = -0.75) -> torch.Tensor:
    """Keys' cubic convolution weight at distance x."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, far)
