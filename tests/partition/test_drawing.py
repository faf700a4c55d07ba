"""The drawing is well-formed, complete for small graphs, and one page for large graphs."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import builder
from builder.manifest.spec import Fallback
from builder.partition import Partition, split, svg

SVG = "{http://www.w3.org/2000/svg}"
BATCH = {"b": (1, 2, 3)}


class Chain(nn.Module):
    """`length` additions and a Bessel function in the middle; the input is read again later."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(self.length // 2):
            y = torch.relu(y)
        y = torch.special.bessel_j0(y)
        for _ in range(self.length // 2):
            y = torch.neg(y)
        return y + x


def drawn(length: int) -> tuple[Partition, ElementTree.Element]:
    module = torch.jit.trace(Chain(length), torch.ones(2, 4))
    spec = builder.TensorSpec("float32", ("b", 4), dims=BATCH, name="x")
    parts = split(builder.lower(module), [spec], [BATCH], Fallback(min_block_size=1))
    return parts, ElementTree.fromstring(svg(parts))


def texts_of(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_drawing_shows_every_node_and_boundary_tensor() -> None:
    parts, root = drawn(8)
    assert len(list(root.iter(f"{SVG}rect"))) == len(parts.segments) + 2
    assert sum("aten::relu" in text for text in texts_of(root)) == 4
    crossing = {name for segment in parts.segments for name in segment.inputs}
    assert all(
        any(text.startswith(f"{name}: float32[b, 4]") for text in texts_of(root))
        for name in crossing
    )


@pytest.mark.parametrize("length", [10, 2000])
def test_drawing_height_is_limited(length: int) -> None:
    _, root = drawn(length)
    assert int(root.attrib["height"]) < 2000
    if length == 2000:
        assert any("1000 x aten::relu" in text for text in texts_of(root))


def test_boxes_do_not_overlap_and_arrows_point_down() -> None:
    _, root = drawn(8)
    boxes = [
        (int(r.attrib["y"]), int(r.attrib["height"])) for r in root.iter(f"{SVG}rect")
    ]
    assert all(
        y + height < below for (y, height), (below, _) in itertools.pairwise(boxes)
    )
    skips = [
        path.attrib["d"]
        for path in root.iter(f"{SVG}path")
        if path.attrib["d"].count("L") == 3
    ]
    assert skips, (
        "the input that is read again at the end passes beside the boxes between"
    )


class Skips(nn.Module):
    """Every engine's output is read again at the end, as in a U-Net, and names are long."""

    def __init__(self) -> None:
        super().__init__()
        self.stages_of_the_encoder_with_a_long_name = nn.ModuleList(
            nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))) for _ in range(9)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a_value_whose_name_is_longer_than_what_a_line_of_the_picture_can_hold = x
        skips = []
        for stage in self.stages_of_the_encoder_with_a_long_name:
            deep = stage(
                a_value_whose_name_is_longer_than_what_a_line_of_the_picture_can_hold
            )
            skips.append(deep)
            a_value_whose_name_is_longer_than_what_a_line_of_the_picture_can_hold = (
                torch.special.bessel_j0(deep)
            )
        return torch.cat(skips, dim=1)


def text_boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of each line of text, in a font of 12 pixels."""
    texts = [
        (float(t.attrib["x"]), float(t.attrib["y"]), len(t.text or ""))
        for t in root.iter(f"{SVG}text")
    ]
    return [(x, y - 10, x + 7.2 * letters, y + 2) for x, y, letters in texts]


@pytest.mark.parametrize("script", [True, False])
def test_text_does_not_overlap_or_leave_the_drawing(script: bool) -> None:
    module = (
        torch.jit.script(Skips())
        if script
        else torch.jit.trace(Skips(), torch.ones(2, 4))
    )
    spec = builder.TensorSpec("float32", ("b", 4), dims=BATCH, name="x")
    parts = split(builder.lower(module), [spec], [BATCH], Fallback(min_block_size=1))
    assert sum(segment.kind == "torch" for segment in parts.segments) == 8
    root = ElementTree.fromstring(svg(parts))
    texts = texts_of(root)
    assert all(texts) and any("\u2026" in text for text in texts) is script
    boxes, width = text_boxes(root), float(root.attrib["width"])
    assert all(right <= width for _, _, right, _ in boxes)
    for one, other in itertools.combinations(boxes, 2):
        beside = (
            one[2] <= other[0]
            or other[2] <= one[0]
            or one[3] <= other[1]
            or other[3] <= one[1]
        )
        assert beside, (one, other)
