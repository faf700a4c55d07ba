"""The padding of convolution, deconvolution and pooling, by PaddingMode's documentation."""

from __future__ import annotations

from builder.engine import ILayer

Pads = list[tuple[int, int]]


def window_padding(
    layer: ILayer, lengths: list[int], window: list[int], stride: list[int]
) -> tuple[Pads, Pads]:
    """Padding before and after each spatial axis, and how far the last window exceeds it (if
    rounding up).

    `window` is dilated. SAME modes: O = ceil(I / S), P = (O - 1) * S + window - I, split in half.
    An odd element is added after (SAME_UPPER) or before (SAME_LOWER). Rounding up: O = ceil((I +
    before + after - window) / S) + 1.
    """
    mode = layer.padding_mode.name
    pads = []
    excesses = []
    for i, (length, size, step) in enumerate(zip(lengths, window, stride, strict=True)):
        before, after = _pads(layer, mode, i, length, size, step)
        pads.append((before, after))
        excess = 0
        if mode.endswith("ROUND_UP"):
            excess = -(length + before + after - size) % step
        excesses.append((0, excess))
    return pads, excesses


def _pads(
    layer: ILayer, mode: str, axis: int, length: int, size: int, step: int
) -> tuple[int, int]:
    if mode.startswith("CAFFE"):
        return layer.pre_padding[axis], layer.pre_padding[axis]
    if not mode.startswith("SAME"):
        return layer.pre_padding[axis], layer.post_padding[axis]
    return _halves(mode, max((length - 1) // step * step + size - length, 0))


def _halves(mode: str, total: int) -> tuple[int, int]:
    small = total // 2
    large = total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def trimming(layer: ILayer, window: list[int], stride: list[int]) -> Pads:
    """The elements to trim from a full deconvolution before and after: the padding, or P =
    max(window - S, 0) for SAME.
    """
    mode = layer.padding_mode.name
    if not mode.startswith("SAME"):
        return [
            _pads(layer, mode, i, 0, size, step)
            for i, (size, step) in enumerate(zip(window, stride, strict=True))
        ]
    return [
        _halves(mode, max(size - step, 0))
        for size, step in zip(window, stride, strict=True)
    ]


def dilated(window: list[int], dilation: list[int]) -> list[int]:
    """The extent of a window with this dilation."""
    return [step * (size - 1) + 1 for size, step in zip(window, dilation, strict=True)]


def torch_pads(pads: Pads) -> list[int]:
    """The padding for torch.nn.functional.pad, which takes the last axis first."""
    return [amount for pair in reversed(pads) for amount in pair]
