"""The picture: well formed, complete while small, one page when large."""

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
    """`length` additions and an FFT in their middle; the input is read again at the end."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(self.length // 2):
            y = torch.relu(y)
        y = torch.fft.fft(y).abs()
        for _ in range(self.length // 2):
            y = torch.neg(y)
        return y + x


def drawn(length: int) -> tuple[Partition, ElementTree.Element]:
    module = torch.jit.trace(Chain(length), torch.ones(2, 4))
    spec = builder.TensorSpec("float32", ("b", 4), dims=BATCH, name="x")
    parts = split(builder.lower(module), [spec], [BATCH], Fallback(min_block_size=1))
    return parts, ElementTree.fromstring(svg(parts))


def words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_a_small_graph_shows_every_node_and_every_value_that_crosses() -> None:
    parts, root = drawn(8)
    assert len(list(root.iter(f"{SVG}rect"))) == len(parts.segments) + 2
    assert sum("aten::relu" in text for text in words(root)) == 4
    crossing = {name for segment in parts.segments for name in segment.inputs}
    assert all(any(text.startswith(f"{name}: float32[b, 4]") for text in words(root)) for name in crossing)


@pytest.mark.parametrize("length", [10, 2000])
def test_it_stays_a_page(length: int) -> None:
    _, root = drawn(length)
    assert int(root.attrib["height"]) < 2000
    if length == 2000:
        assert any("1000 x aten::relu" in text for text in words(root))


def test_boxes_do_not_overlap_and_arrows_lead_down() -> None:
    _, root = drawn(8)
    boxes = [(int(r.attrib["y"]), int(r.attrib["height"])) for r in root.iter(f"{SVG}rect")]
    assert all(y + height < below for (y, height), (below, _) in itertools.pairwise(boxes))
    skips = [path.attrib["d"] for path in root.iter(f"{SVG}path") if path.attrib["d"].count("L") == 3]
    assert skips, "the input that is read again at the end passes beside the boxes between"
