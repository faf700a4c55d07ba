"""An SVG of a partition: each segment is a box with its operators, each boundary tensor an arrow
with its shape.

It is drawn from top to bottom in execution order. Graphviz is not used: it is a system package that
users would have to install. A box lists a few nodes one by one, and many nodes as counts by
operator, so that a graph of thousands of nodes fits on one page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from builder.conversion import module_scope
from builder.manifest import TensorSpec
from builder.partition.split import Partition, Segment
from builder.partition.view import is_free

MOST_LINES = 40
LINE = 16
PADDING = 12
GAP = 56
WIDTH = 520
LANE = 14
MARGIN = 24
LETTER = 7.3
"""Maximum width of a character of the 12 pixel monospace font."""
LONGEST = 480
"""Pixels for a line beside the boxes. The middle of a longer line is replaced by an ellipsis."""
COLORS = {
    "tensorrt": ("#eaf5e3", "#4a8f29"),
    "torch": ("#fdeee6", "#d5541f"),
    "end": ("#eef2f7", "#5b6b7f"),
}


@dataclass
class Box:
    """One segment, or the model's inputs or outputs; `y` is the coordinate of its top."""

    kind: str
    title: str
    lines: list[str]
    reads: tuple[str, ...]
    outputs: tuple[str, ...]
    y: int = 0
    name: str = ""
    side: int = 0
    """Number of lines at its right, for values from boxes further up."""

    @property
    def height(self) -> int:
        return 2 * PADDING + LINE * max(1 + len(self.lines), self.side)


@dataclass(frozen=True)
class Arrow:
    """Values from one box to a later one: lane 0 runs straight down to the next box; others run
    beside the boxes between and enter at line `row` of the target's right side.
    """

    source: int
    target: int
    labels: list[str]
    lane: int
    row: int = 0


def svg(partition: Partition) -> str:
    """The picture as the text of an SVG file."""
    specs = _specs(partition)
    boxes = list(_boxes(partition, specs))
    arrows = list(_arrows(boxes, specs))
    y = MARGIN
    for box in boxes:
        box.y = y
        y += box.height + GAP
    lanes = max((arrow.lane for arrow in arrows), default=0) + 1
    column = MARGIN + WIDTH + LANE * lanes
    labels = [line for arrow in arrows if arrow.lane for line in arrow.labels]
    longest = max((LETTER * len(line) for line in labels), default=0.0)
    width = column + int(min(longest, LONGEST)) + MARGIN
    root = _picture(width, y)
    for box in boxes:
        _draw_box(root, box)
    for arrow in arrows:
        _draw_arrow(root, boxes[arrow.source], boxes[arrow.target], arrow, column)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _picture(width: int, height: int) -> ElementTree.Element:
    """A picture without content."""
    root = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        width=str(width),
        height=str(height),
        viewBox=f"0 0 {width} {height}",
    )
    style = (
        "text{font:12px ui-monospace,monospace;fill:#1c2430;white-space:pre}.t{font-weight:bold}"
        "path{fill:none;stroke:#5b6b7f}"
    )
    ElementTree.SubElement(root, "style").text = style
    return root


def _specs(partition: Partition) -> dict[str, TensorSpec | None]:
    specs: dict[str, TensorSpec | None] = {}
    for segment in partition.segments:
        specs.update(zip(segment.inputs, segment.specs, strict=True))
        specs.update(zip(segment.outputs, segment.output_specs, strict=True))
    return specs


def _labels(name: str, specs: dict[str, TensorSpec | None]) -> str:
    spec = specs.get(name)
    if spec:
        return f"{name}: {spec.dtype}[{', '.join(map(str, spec.shape))}]"
    return f"{name}: depends on data"


def _boxes(partition: Partition, specs: dict[str, TensorSpec | None]) -> Iterator[Box]:
    yield Box(
        "end",
        "inputs",
        [_labels(name, specs) for name in partition.inputs],
        (),
        partition.inputs,
        name="the inputs",
    )
    for number, segment in enumerate(partition.segments):
        title = (
            f"{number}  {segment.kind}   {segment.nodes} nodes, {segment.flops / 1e6:.3g} Mflop"
            " at opt"
        )
        yield Box(
            segment.kind,
            title,
            _lines(segment),
            segment.inputs,
            segment.outputs,
            name=str(number),
        )
    yield Box(
        "end",
        "outputs",
        [_labels(name, specs) for name in partition.outputs],
        partition.outputs,
        (),
    )


def _lines(segment: Segment) -> list[str]:
    nodes = [node for node in segment.lowered.graph.nodes() if not is_free(node)]
    if len(nodes) <= MOST_LINES:
        return [
            f"{node.kind()}  {module_scope(node, segment.lowered.containers)}".rstrip()
            for node in nodes
        ]
    counts = Counter(node.kind() for node in nodes).most_common()
    lines = [f"{count:5d} x {kind}" for kind, count in counts[:MOST_LINES]]
    if len(counts) > MOST_LINES:
        lines.append(f"      and {len(counts) - MOST_LINES} operators more")
    return lines


def _arrows(
    boxes: Sequence[Box], specs: dict[str, TensorSpec | None]
) -> Iterator[Arrow]:
    """Every arrow. Records the number of lines at the side of each box."""
    producer = {
        name: number for number, box in enumerate(boxes) for name in box.outputs
    }
    lanes: list[int] = []
    for number, box in enumerate(boxes):
        groups: dict[int, list[str]] = {}
        for name in box.reads:
            groups.setdefault(producer[name], []).append(_labels(name, specs))
        for source, labels in sorted(groups.items(), reverse=True):
            lines = labels
            if len(labels) > 3:
                lines = [*labels[:2], f"and {len(labels) - 2} values more"]
            if source == number - 1:
                yield Arrow(source, number, lines, 0)
                continue
            lane = _free_lane(lanes, source)
            lanes[lane] = number
            yield Arrow(
                source,
                number,
                [f"{line}   from {boxes[source].name}" for line in lines],
                lane + 1,
                box.side,
            )
            box.side += len(lines)


def _free_lane(lanes: list[int], source: int) -> int:
    """The first lane whose last arrow ends at or above the source; a new one if there is none."""
    for lane, end in enumerate(lanes):
        if end <= source:
            return lane
    lanes.append(0)
    return len(lanes) - 1


def _draw_box(root: ElementTree.Element, box: Box) -> None:
    fill, stroke = COLORS[box.kind]
    attributes = {
        "x": MARGIN,
        "y": box.y,
        "width": WIDTH,
        "height": box.height,
        "rx": 6,
    }
    ElementTree.SubElement(
        root,
        "rect",
        {name: str(value) for name, value in attributes.items()},
        fill=fill,
        stroke=stroke,
    )
    for row, line in enumerate([box.title, *box.lines]):
        text = _fit(line, WIDTH - 2 * PADDING)
        _text(
            root,
            MARGIN + PADDING,
            box.y + PADDING + LINE * row + 11,
            text,
            "t" if row == 0 else "",
        )


def _draw_arrow(
    root: ElementTree.Element, source: Box, target: Box, arrow: Arrow, column: int
) -> None:
    """Draw an arrow straight down with its values beside it, or around the right with its values in
    the column after all lanes.
    """
    top = source.y + source.height
    bottom = target.y
    edge = MARGIN + WIDTH
    if arrow.lane == 0:
        x = MARGIN + WIDTH // 4
        path = f"M{x} {top} L{x} {bottom}"
        head = f"{x - 4},{bottom - 7} {x + 4},{bottom - 7} {x},{bottom}"
        text_x = x + 8
        text_y = top + 14
        step = 13
        width = edge - x - 8
    else:
        x = edge + LANE * arrow.lane
        start = top - PADDING
        end = bottom + PADDING + LINE * arrow.row + 7
        path = f"M{edge} {start} L{x} {start} L{x} {end} L{edge} {end}"
        head = f"{edge + 7},{end - 4} {edge + 7},{end + 4} {edge},{end}"
        text_x = column
        text_y = end + 4
        step = LINE
        width = LONGEST
    ElementTree.SubElement(root, "path", d=path)
    ElementTree.SubElement(root, "polygon", points=head, fill="#5b6b7f")
    for row, line in enumerate(arrow.labels):
        _text(root, text_x, text_y + step * row, _fit(line, width))


def _fit(words: str, width: float) -> str:
    """The text; if it is wider than this many pixels, its middle is removed."""
    most = int(width / LETTER)
    if len(words) <= most:
        return words
    return f"{words[: most // 2 - 1]}\u2026{words[len(words) - most // 2 :]}"


def _text(
    root: ElementTree.Element, x: int, y: int, words: str, style: str = ""
) -> None:
    element = ElementTree.SubElement(
        root, "text", {"x": str(x), "y": str(y)} | ({"class": style} if style else {})
    )
    element.text = words
