"""Layers whose output length depends on values (INonZeroLayer, INMSLayer)."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import output_dtype
from builder.reference.registry import evaluates


@evaluates("NON_ZERO")
def non_zero(layer: ILayer, x: Tensor) -> Tensor:
    """The positions of x's nonzero elements: one column for each, one row for each axis, in
    row-major order.
    """
    return x.nonzero().T.to(output_dtype(layer))


@evaluates("NMS")
def nms(
    layer: ILayer,
    boxes: Tensor,
    scores: Tensor,
    per_class: Tensor,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows of (batch, class, box), by batch and then by descending score, and their number.

    A box needs a score above the threshold. Its intersection over union with every selected box of
    its class must be at most the other threshold. Before selection, each batch item keeps its
    `topk_box_limit` best candidates. TensorRT does not specify the order of equal scores; here the
    lower box, then the lower class is first.
    """
    limit = int(per_class)
    iou_limit = 0.0 if iou_threshold is None else float(iou_threshold)
    score_limit = 0.0 if score_threshold is None else float(score_threshold)
    corners = _corners(boxes.float(), layer.bounding_box_format.name)
    rows: list[list[int]] = []
    for batch in range(scores.shape[0]):
        order = _candidates(scores[batch].float(), score_limit, layer.topk_box_limit)
        for box, label in _select(order, corners[batch], limit, iou_limit):
            rows.append([batch, label, box])
    selected = torch.tensor(rows, dtype=output_dtype(layer)).reshape(-1, 3)
    return selected, torch.tensor(len(rows), dtype=output_dtype(layer, 1))


def _corners(boxes: Tensor, form: str) -> Tensor:
    """(x1, y1, x2, y2) with x1 <= x2 and y1 <= y2."""
    first = boxes[..., :2]
    second = boxes[..., 2:]
    if form == "CENTER_SIZES":
        first, second = first - second / 2, first + second / 2
    return torch.cat(
        [torch.minimum(first, second), torch.maximum(first, second)], dim=-1
    )


def _candidates(scores: Tensor, threshold: float, limit: int) -> list[tuple[int, int]]:
    """The best `limit` (box, class) pairs with a score above the threshold, by descending score."""
    order = torch.sort(scores.reshape(-1), descending=True, stable=True).indices
    order = order[scores.reshape(-1)[order] > threshold][:limit]
    return [divmod(position, scores.shape[1]) for position in order.tolist()]


def _select(
    order: list[tuple[int, int]], corners: Tensor, limit: int, iou_limit: float
) -> list[tuple[int, int]]:
    selected: list[tuple[int, int]] = []
    by_class: dict[int, list[Tensor]] = {}
    for box, label in order:
        corner = corners[box] if corners.dim() == 2 else corners[box, label]
        same_class = by_class.setdefault(label, [])
        if len(same_class) < limit and all(
            _iou(corner, previous) <= iou_limit for previous in same_class
        ):
            same_class.append(corner)
            selected.append((box, label))
    return selected


def _iou(a: Tensor, b: Tensor) -> float:
    ends = torch.minimum(a[2:], b[2:])
    overlap = ends - torch.maximum(a[:2], b[:2])
    width, height = overlap.clamp(min=0).tolist()
    union = _area(a) + _area(b) - width * height
    return width * height / union if union > 0 else 0.0


def _area(corners: Tensor) -> float:
    left, top, right, bottom = corners
    return float((right - left) * (bottom - top))
