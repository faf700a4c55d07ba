"""Non-maximum suppression, written out for boxes whose overlaps are known."""

from __future__ import annotations

import torch

from builder.engine.flavor import trt
from networks import constant, evaluate, exactly

BOXES = torch.tensor(
    [
        [
            [0.0, 0, 10, 10],
            [0, 0, 10, 9],
            [20, 20, 30, 30],
            [10, 10, 0, 0],
            [20, 20, 30, 29],
            [50, 50, 60, 60],
        ]
    ]
)


def suppressed(limit, iou=None, threshold=None, **settings):
    def build(net, boxes, scores):
        layer = net.add_nms(boxes, scores, constant(net, limit, torch.int32))
        for i, value in ((3, iou), (4, threshold)):
            if value is not None:
                layer.set_input(i, constant(net, value))
        for name, value in settings.items():
            setattr(layer, name, value)
        return [layer.get_output(0), layer.get_output(1)]

    # RTX makes the layer but has nothing that runs it, as with non-zero
    return lambda *inputs: evaluate(build, *inputs, compiled=False)


def test_nms_removes_overlapping_boxes_of_the_same_class_only():
    scores = torch.zeros(1, 6, 2)
    scores[0, :, 0] = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.75, 0.2])
    scores[0, 1, 1] = 0.85
    rows, count = suppressed(6, 0.5, 0.2)(BOXES, scores)
    exactly(rows, torch.tensor([[0, 0, 0], [0, 1, 1], [0, 0, 4]], dtype=torch.int32))
    exactly(count, torch.tensor(3, dtype=torch.int32))


def test_nms_limits_boxes_per_class_and_top_k_boxes():
    scores = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.3, 0.7]).reshape(1, 6, 1)
    rows, _ = suppressed(2, 0.5, 0.0)(BOXES, scores)
    exactly(rows[:, 2], torch.tensor([0, 2], dtype=torch.int32))
    rows, count = suppressed(6, 0.5, 0.0, topk_box_limit=1)(BOXES, scores)
    assert rows.tolist() == [[0, 0, 0]] and int(count) == 1


def test_nms_accepts_center_size_boxes_and_empty_selections():
    boxes = torch.tensor(
        [[[5.0, 5, 10, 10], [5, 5, 10, 8], [40, 40, 10, 10], [10, 5, 10, 10]]]
    )
    scores = torch.tensor([0.5, 0.9, 0.4, 0.3]).reshape(1, 4, 1)
    rows, _ = suppressed(
        3, 0.5, bounding_box_format=trt.BoundingBoxFormat.CENTER_SIZES
    )(boxes, scores)
    exactly(rows, torch.tensor([[0, 0, 1], [0, 0, 2], [0, 0, 3]], dtype=torch.int32))
    rows, count = suppressed(3, 0.5, 0.95)(boxes, scores)
    assert rows.shape == (0, 3) and int(count) == 0
