"""torchvision's operators against doubles of their schemas: torchvision itself is not installed
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from builder.conversion.registry import CONVERTERS
from builder.engine import flavor
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check

NMS = "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
ROI_ALIGN = (
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt"
    " pooled_width, int sampling_ratio, bool aligned) -> Tensor"
)


def keep_best(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """nms as documented: the best box, then each next one that overlaps no selected box by more
    than the threshold.
    """
    kept: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for i in scores.argsort(descending=True, stable=True).tolist():
        overlaps = []
        for j in kept:
            size = (
                torch.minimum(boxes[i, 2:], boxes[j, 2:])
                - torch.maximum(boxes[i, :2], boxes[j, :2])
            ).clamp(min=0)
            overlap = size.prod()
            overlaps.append(float(overlap / (areas[i] + areas[j] - overlap)))
        if all(o <= threshold for o in overlaps):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def align(
    x: Tensor,
    rois: Tensor,
    scale: float,
    height: int,
    width: int,
    ratio: int,
    aligned: bool,
) -> Tensor:
    """roi_align sample by sample."""
    result = torch.zeros(len(rois), x.shape[1], height, width)
    for k, roi in enumerate(rois if ratio > 0 else []):
        x1, y1, x2, y2 = (roi[1:] * scale - (0.5 if aligned else 0.0)).tolist()
        w, h = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
        for i in range(height):
            for j in range(width):
                grid = [
                    (i + (a + 0.5) / ratio, j + (b + 0.5) / ratio)
                    for a in range(ratio)
                    for b in range(ratio)
                ]
                samples = [
                    bilinear(x[int(roi[0])], y1 + v * h / height, x1 + u * w / width)
                    for v, u in grid
                ]
                result[k, :, i, j] = torch.stack(samples).mean(0)
    return result


def bilinear(image: Tensor, y: float, x: float) -> Tensor:
    _, height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return torch.zeros(image.shape[0])
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    dy, dx = y - y0, x - x0
    top = image[:, y0, x0] * (1 - dx) + image[:, y0, x1] * dx
    return top * (1 - dy) + (image[:, y1, x0] * (1 - dx) + image[:, y1, x1] * dx) * dy


ALIVE: list[object] = []
"""torch.jit identifies operators by `id`. The id of a deleted operator may be reused: in another
test a list of numbers of a module was then a function ("builtin cannot be used as a value").
"""


@pytest.fixture(scope="module", autouse=True)
def doubles() -> Iterator[None]:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema, function in ((NMS, keep_best), (ROI_ALIGN, align)):
        library.define(schema)
        library.impl(schema[: schema.index("(")], function, "CompositeExplicitAutograd")
    yield
    ALIVE.extend((torch.ops.torchvision.nms._op, torch.ops.torchvision.roi_align._op))
    library._destroy()


def some_boxes(count: int) -> tuple[Tensor, Tensor]:
    corners = torch.rand(count, 2) * 8
    return torch.cat(
        [corners, corners + torch.rand(count, 2) * 6 + 0.5], 1
    ), torch.randn(count)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a kernel of RTX: the network can be created and evaluated, not compiled."""
    entry = CONVERTERS["torchvision::nms"]
    monkeypatch.setitem(
        CONVERTERS, "torchvision::nms", replace(entry, when=entry.when[1:])
    )


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7])
def test_nms(threshold: float) -> None:
    def nms(boxes: Tensor, scores: Tensor) -> Tensor:
        return torch.ops.torchvision.nms(boxes, scores, threshold)  # type: ignore[no-any-return]

    dynamic, more = {0: {0: "n"}, 1: {0: "n"}}, [some_boxes(1), some_boxes(40)]
    check(nms, *some_boxes(20), dynamic=dynamic, more=more, compile=False)
    check(lambda b, s: b[nms(b, s)], *some_boxes(20), compile=False)


@pytest.mark.skipif(
    flavor.name() != "tensorrt-rtx", reason="other flavors have the kernel"
)
def test_nms_is_refused_without_kernel() -> None:
    with pytest.raises(UnsupportedOperators, match="no kernel"):
        check(lambda b, s: torch.ops.torchvision.nms(b, s, 0.5), *some_boxes(8))


@pytest.mark.usefixtures("kernel")
def test_boxes_beyond_layer_limit_are_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="5000"):
        check(
            lambda b, s: torch.ops.torchvision.nms(b, s, 0.5),
            *some_boxes(8),
            dynamic={0: {0: "n"}, 1: {0: "n"}},
            spans={"n": (1, 8, 6000)},
        )


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("size", "ratio"), [((2, 3), 2), ((1, 1), 1)])
def test_roi_align(size: tuple[int, int], ratio: int, aligned: bool) -> None:
    boxes, _ = some_boxes(5)
    boxes[0] += 40  # beyond the image
    boxes[1] -= 4  # half outside
    rois = torch.cat([torch.tensor([0.0, 1, 1, 0, 1])[:, None], boxes * 2], 1)

    def pool(x: Tensor, rois: Tensor) -> Tensor:
        return torch.ops.torchvision.roi_align(x, rois, 0.5, *size, ratio, aligned)  # type: ignore[no-any-return]

    dynamic = {0: {0: "n", 2: "h", 3: "w"}, 1: {0: "k"}}
    more = [(torch.randn(3, 4, 12, 8), rois[:2])]
    # positions are computed as multiples of 2 / length and back: 20 ulp of a difference of
    # neighbors
    check(
        pool,
        torch.randn(2, 4, 10, 11),
        rois,
        dynamic=dynamic,
        more=more,
        rtol=1e-5,
        atol=2e-5,
    )


def test_roi_align_without_a_sampling_ratio_is_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="sampling_ratio"):
        check(
            lambda x, r: torch.ops.torchvision.roi_align(x, r, 1.0, 2, 2, -1, False),
            torch.randn(1, 2, 8, 8),
            torch.tensor([[0.0, 1, 1, 5, 5]]),
        )
