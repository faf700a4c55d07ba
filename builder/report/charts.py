"""Plots as shapes with coordinates, which templates/chart.html.jinja writes as inline SVG.

A mark has the JSON pointer of its value in the report as `data-at`, and the value itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH = 360.0
"""Width of every plot in viewBox units: about the pixels of a narrow screen."""
ROW = 17.0
MOST_ROWS = 40
MOST_SEGMENTS = 30
MOST_OUTPUTS = 3
MOST_SIZES = 16
NAME_LENGTH = 26
SERIES = ("p50", "p90", "p99")
ERROR_BINS = (
    "none",
    "≤ 1e-6",
    "≤ 1e-5",
    "≤ 1e-4",
    "≤ 1e-3",
    "≤ 1 %",
    "≤ 10 %",
    "≤ 100 %",
    "above",
)
"""Bins of errors as shares of the tolerance: see parity.Spread."""


@dataclass(frozen=True)
class Shape:
    """One SVG element; `note` is its tooltip."""

    tag: str
    attributes: Mapping[str, Any]
    text: str = ""
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A plot with its `title`, and its content as text for screen readers."""

    title: str
    description: str
    height: float
    shapes: tuple[Shape, ...]
    legend: tuple[tuple[str, str], ...] = ()
    """(class, word) of each series."""
    width: float = WIDTH


@dataclass
class _Drawing:
    """Collects shapes; coordinates are rounded to one decimal."""

    shapes: list[Shape] = field(default_factory=list)

    def add(
        self, tag: str, text: str = "", note: str = "", **attributes: object
    ) -> None:
        labels = {}
        for key, value in attributes.items():
            if isinstance(value, float) and not key.startswith("data"):
                value = f"{value:.1f}"
            labels[key.rstrip("_").replace("_", "-")] = value
        self.shapes.append(Shape(tag, labels, text, note))

    def text(self, x: float, y: float, text: str, kind: str = "", **more: Any) -> None:
        self.add("text", text, x=x, y=y, class_=f"label {kind}".strip(), **more)

    def bar(
        self, x: float, y: float, width: float, kind: str, note: str, **data: Any
    ) -> None:
        at = data["at"]
        value = data["value"]
        self.add(
            "rect",
            "",
            note,
            x=x,
            y=y,
            width=max(width, 0.5),
            height=ROW - 5.0,
            class_=kind,
            data_at=at,
            data_value=value,
        )


def of(model: Mapping[str, Any], at: str) -> dict[str, list[Chart]]:
    """Return the plots of a model by report section. `at` is the JSON pointer of the model in the
    report. A plot without data is left out.
    """
    result = model["result"]
    verify = model["verify"]
    spread = list(((verify or {}).get("spread") or {}).items())[:MOST_OUTPUTS]
    where = f"{at}/verify/spread/"
    errors: list[Chart] = []
    for name, data in spread:
        errors += _scatter(name, data, f"{where}{escaped(name)}")
        errors += _histogram(name, data, f"{where}{escaped(name)}/counts")
    load: list[Chart] = []
    for number, bench in enumerate(model["bench"]):
        load += _latency(bench, f"{at}/bench/{number}/levels")
        load += _batches(bench, f"{at}/bench/{number}/levels")
    passes = result.get("lowering") or ()
    return {
        "lowering": list(_waterfall(passes, f"{at}/result/lowering")),
        "seconds": list(_phases(model["phases"], f"{at}/phases")),
        "segments": list(_segments(model["graph"])),
        "dtypes": list(_dtypes(result.get("dtypes") or ())),
        "errors": errors,
        "load": load,
    }


def escaped(key: str) -> str:
    """Escape a key for use in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def short(name: str, length: int = NAME_LENGTH) -> str:
    """Shorten a long name by leaving out its middle."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    tail = length - 1 - head
    return f"{name[:head]}…{name[len(name) - tail :]}"


def _waterfall(passes: Sequence[Mapping[str, Any]], at: str) -> Iterator[Chart]:
    """Plot the nodes before and after each pass. A colored part shows the removed or added
    nodes.
    """
    if not passes:
        return
    changed = [abs(entry["after"] - entry["before"]) for entry in passes]
    largest = sorted(range(len(passes)), key=lambda index: -changed[index])
    rows = sorted(largest[:MOST_ROWS])
    left = 130.0
    right = WIDTH - 78.0
    most = max(max(entry["before"], entry["after"]) for entry in passes)
    scale = (right - left) / most
    drawing = _Drawing()
    for row, index in enumerate(rows):
        entry = passes[index]
        y = row * ROW
        spot = f"{at}/{index}"
        before = entry["before"]
        after = entry["after"]
        drawing.text(0.0, y + 11.0, short(entry["name"], 20))
        note = f"{entry['name']}: {before} to {after} nodes"
        same = min(before, after) * scale
        difference = changed[index] * scale
        kind = "fewer" if after < before else "more"
        drawing.bar(left, y, same, "base", note, at=f"{spot}/after", value=after)
        drawing.bar(
            left + same, y, difference, kind, note, at=f"{spot}/before", value=before
        )
        drawing.text(right + 4.0, y + 11.0, f"{after} ({after - before:+d})", "number")
    words = _waterfall_words(passes, len(passes) - len(rows))
    legend = (("fewer", "removed"), ("more", "added"))
    yield Chart("Lowering", words, len(rows) * ROW, tuple(drawing.shapes), legend)


def _waterfall_words(passes: Sequence[Mapping[str, Any]], left_out: int) -> str:
    more = f" The {left_out} smallest changes are left out." if left_out else ""
    first = passes[0]["before"]
    last = passes[-1]["after"]
    return f"Nodes after each pass that changed their number: {first} before, {last} after.{more}"


def _phases(seconds: Mapping[str, float], at: str) -> Iterator[Chart]:
    known = {name: value for name, value in seconds.items() if value >= 0.001}
    if not known:
        return
    left = 80.0
    right = WIDTH - 48.0
    scale = (right - left) / max(known.values())
    drawing = _Drawing()
    for row, (name, value) in enumerate(known.items()):
        y = row * ROW
        text = f"{value:.2f} s"
        drawing.text(0.0, y + 11.0, name)
        pointer = f"{at}/{escaped(name)}"
        drawing.bar(
            left, y, value * scale, "one", f"{name}: {text}", at=pointer, value=value
        )
        drawing.text(left + value * scale + 4.0, y + 11.0, text, "number")
    words = "Seconds of each phase of the build."
    yield Chart("Build time", words, len(known) * ROW, tuple(drawing.shapes))


_BOX, _GAP, _LEFT, _RIGHT = 34.0, 26.0, 4.0, WIDTH - 90.0
"""The height of a segment's box, the space below it, and the box's left and right edge."""


def _segments(graph: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    """Draw the segments from top to bottom. A tensor that the next segment reads is an arrow. Other
    tensors are drawn at the right.
    """
    if len(graph) < 2:
        return
    segments = graph[:MOST_SEGMENTS]
    drawing = _Drawing()
    lanes = 0
    producers = {
        name: number
        for number, segment in enumerate(segments)
        for name in segment["outputs"]
    }
    top = [number * (_BOX + _GAP) for number in range(len(segments))]
    for number, segment in enumerate(segments):
        _segment_box(drawing, segment, top[number])
        for source, names in _sources(segment, number, producers):
            begin = top[source] + _BOX
            end = top[number]
            if source == number - 1:
                _arrow(drawing, names, begin, end)
            else:
                _detour(drawing, names, begin, end, lanes)
                lanes += 1
    words = _segment_words(graph, len(graph) - len(segments))
    legend = (("tensorrt", "TensorRT"), ("torch", "torch"))
    height = top[-1] + _BOX + 2.0
    yield Chart("Segments", words, height, tuple(drawing.shapes), legend)


def _segment_words(graph: Sequence[Mapping[str, Any]], left_out: int) -> str:
    engines = sum(segment["kind"] == "tensorrt" for segment in graph)
    more = f" {left_out} are left out." if left_out else ""
    return (
        f"{engines} segments of TensorRT, {len(graph) - engines} of torch, in the order in which"
        f" they run.{more}"
    )


def _sources(
    segment: Mapping[str, Any], number: int, producers: Mapping[str, int]
) -> list[tuple[int, list[str]]]:
    """Return the earlier segments that segment `number` reads, the last first, with the tensors."""
    names_by_source: dict[int, list[str]] = {}
    for name in segment["inputs"]:
        if name in producers and producers[name] < number:
            names_by_source.setdefault(producers[name], []).append(name)
    return sorted(names_by_source.items(), reverse=True)


def _segment_box(drawing: _Drawing, segment: Mapping[str, Any], top: float) -> None:
    kind = "tensorrt" if segment["kind"] == "tensorrt" else "torch"
    drawing.add(
        "rect",
        "",
        f"{segment['label']}: reads {', '.join(segment['inputs'])}",
        x=_LEFT,
        y=top,
        width=_RIGHT - _LEFT,
        height=_BOX,
        rx=4,
        class_=f"box {kind}",
    )
    drawing.text(_LEFT + 8.0, top + 14.0, short(segment["label"], 38), "strong")
    outputs = f"outputs {short(', '.join(segment['outputs']), 38)}"
    drawing.text(_LEFT + 8.0, top + 28.0, outputs, "soft")


def _arrow(drawing: _Drawing, names: Sequence[str], begin: float, end: float) -> None:
    middle = _LEFT + 40.0
    path = f"M{middle:.1f} {begin:.1f}V{end:.1f}m-4 -6l4 6l4 -6"
    drawing.add("path", "", ", ".join(names), d=path, class_="edge")
    drawing.text(middle + 10.0, begin + 17.0, short(", ".join(names), 34), "soft")


def _detour(
    drawing: _Drawing, names: Sequence[str], begin: float, end: float, number: int
) -> None:
    """Draw an arrow around the boxes in between, in one of seven lanes."""
    lane = _RIGHT + 12.0 + 10.0 * (number % 7)
    path = (
        f"M{_RIGHT:.1f}"
        f" {begin - 10.0:.1f}H{lane:.1f}V{end + 10.0:.1f}H{_RIGHT:.1f}m6 -4l-6 4l6 4"
    )
    drawing.add("path", "", ", ".join(names), d=path, class_="edge")


COLORS = ("one", "two", "three", "four", "five", "six")


def _dtypes(networks: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    """Draw a strip for each network: its layers in order, colored by dtype."""
    known = [network for network in networks if network["runs"]][:MOST_ROWS]
    if not known:
        return
    names = list(
        dict.fromkeys(dtype for network in known for dtype, _ in network["runs"])
    )
    color = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    left = 0.0 if len(known) == 1 else 90.0
    drawing = _Drawing()
    for row, network in enumerate(known):
        if left:
            drawing.text(0.0, row * ROW + 11.0, short(network["network"], 14))
        _strip(drawing, network["runs"], left, row * ROW, color)
    totals = dict.fromkeys(names, 0)
    for network in known:
        for dtype, count in network["runs"]:
            totals[dtype] += count
    words = ", ".join(f"{count} layers in {name}" for name, count in totals.items())
    legend = tuple((color[name], f"{name} ({totals[name]})") for name in names)
    words = f"{words}, in the network's order."
    yield Chart("Precision map", words, len(known) * ROW, tuple(drawing.shapes), legend)


def _strip(
    drawing: _Drawing,
    runs: Sequence[tuple[str, int]],
    left: float,
    top: float,
    color: Mapping[str, str],
) -> None:
    """Draw runs of layers with one dtype, each as wide as its number of layers."""
    x = left
    height = ROW - 4.0
    scale = (WIDTH - left) / sum(count for _, count in runs)
    for dtype, count in runs:
        title = f"{count} layers in {dtype}"
        width = count * scale
        drawing.add(
            "rect",
            "",
            title,
            x=x,
            y=top,
            width=width,
            height=height,
            class_=color[dtype],
        )
        x += width


def ticks(low: float, high: float) -> list[float]:
    """Return about four round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(
        unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.99
    )
    first = math.ceil(low / step)
    return [
        step * index for index in range(first, math.floor(high / step * (1 + 1e-9)) + 1)
    ]


@dataclass(frozen=True)
class _Plane:
    """A pair of axes. Maps values of x and y from `low` to `high` to the plot area."""

    low: tuple[float, float]
    high: tuple[float, float]
    height: float
    left: float = 46.0
    bottom: float = 32.0
    top: float = 8.0

    def x(self, value: float) -> float:
        low, high = self.low[0], self.high[0]
        share = (value - low) / (high - low)
        return self.left + share * (WIDTH - 8.0 - self.left)

    def y(self, value: float) -> float:
        low, high = self.low[1], self.high[1]
        share = (value - low) / (high - low)
        end = self.height - self.bottom
        return end - share * (end - self.top)

    def at(self, x: float, y: float) -> str:
        """The point as text of a path."""
        return f"{self.x(x):.1f} {self.y(y):.1f}"

    def draw(self, drawing: _Drawing, x_name: str, y_name: str) -> None:
        floor = self.height - self.bottom
        for value in ticks(self.low[1], self.high[1]):
            y = self.y(value)
            drawing.add("line", x1=self.left, x2=WIDTH - 8.0, y1=y, y2=y, class_="rule")
            drawing.text(self.left - 4.0, y + 4.0, f"{value:g}"[:8], "end soft")
        for value in ticks(self.low[0], self.high[0]):
            drawing.text(self.x(value), floor + 13.0, f"{value:g}"[:8], "middle soft")
        drawing.text(WIDTH - 8.0, self.height - 4.0, x_name, "end soft")
        drawing.text(self.left, self.height - 4.0, y_name, "soft")


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the minimum and maximum with a margin; never empty."""
    low = min(values)
    high = max(values)
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _scatter(
    name: str, data: Mapping[str, Sequence[float]], at: str
) -> Iterator[Chart]:
    pairs = [
        (expected, actual)
        for expected, actual in zip(data["expected"], data["answered"], strict=True)
        if expected is not None and actual is not None
    ]
    if not pairs:
        return
    low, high = _span([value for pair in pairs for value in pair])
    plane = _Plane((low, low), (high, high), 240.0)
    drawing = _Drawing()
    plane.draw(drawing, "expected", "↑ answered")
    ends = f"M{plane.at(low, low)}L{plane.at(high, high)}"
    drawing.add("path", d=ends, class_="ideal")
    points = "".join(f"M{plane.at(expected, actual)}h0" for expected, actual in pairs)
    drawing.add("path", d=points, class_="points", data_at=at, data_value=len(pairs))
    words = f"{len(pairs)} elements of all goldens; equal values lie on the line."
    yield Chart(
        f"{short(name)}: expected and answered",
        words,
        plane.height,
        tuple(drawing.shapes),
    )


def _histogram(
    name: str, data: Mapping[str, Sequence[float]], at: str
) -> Iterator[Chart]:
    counts = data["counts"]
    if not sum(counts):
        return
    left = 64.0
    right = WIDTH - 60.0
    scale = (right - left) / math.log10(1 + max(counts))
    drawing = _Drawing()
    for row, (label, count) in enumerate(zip(ERROR_BINS, counts, strict=True)):
        y = row * ROW
        kind = "bad" if row == len(ERROR_BINS) - 1 else "one"
        drawing.text(0.0, y + 11.0, label)
        width = math.log10(1 + count) * scale
        if count:
            note = f"{count} elements"
            drawing.bar(left, y, width, kind, note, at=f"{at}/{row}", value=count)
        drawing.text(left + width + 4.0, y + 11.0, str(count), "number")
    words = "Elements by their error as a share of the tolerance; bars are logarithmic."
    yield Chart(
        f"{short(name)}: errors", words, len(ERROR_BINS) * ROW, tuple(drawing.shapes)
    )


def _latency(bench: Mapping[str, Any], at: str) -> Iterator[Chart]:
    """Plot latency percentiles against throughput: a point for each load, with 95 % intervals."""
    levels = bench["levels"]
    intervals = [level["latency_ms"] for level in levels]
    known = [name for name in SERIES if any(name in interval for interval in intervals)]
    if not known:
        return
    rates = [level["throughput"]["value"] for level in levels]
    top = max(
        interval[name]["high"]
        for interval in intervals
        for name in known
        if name in interval
    )
    plane = _Plane((0.0, 0.0), (max(rates) * 1.08 or 1.0, top * 1.05 or 1.0), 220.0)
    drawing = _Drawing()
    plane.draw(drawing, "requests/s", "↑ ms")
    for color, name in zip(COLORS, known, strict=False):
        _latency_line(drawing, plane, levels, name, color, at)
    _name_loads(drawing, plane, levels, known[0])
    legend = tuple(zip(COLORS, known, strict=False))
    words = f"Latency against throughput over {bench['protocol']}, with 95 % intervals."
    title = f"Latency against load, {bench['protocol']}"
    yield Chart(title, words, plane.height, tuple(drawing.shapes), legend)


def _name_loads(
    drawing: _Drawing, plane: _Plane, levels: Sequence[Mapping[str, Any]], name: str
) -> None:
    """Write each load below its point of the percentile `name`."""
    for level in levels:
        if interval := level["latency_ms"].get(name):
            y = plane.y(interval["value"]) + 14.0
            x = plane.x(level["throughput"]["value"])
            drawing.text(x, min(y, 186.0), level["load"], "middle")


def _latency_line(
    drawing: _Drawing,
    plane: _Plane,
    levels: Sequence[Mapping[str, Any]],
    name: str,
    color: str,
    at: str,
) -> None:
    """Draw a percentile of all loads. `at` is the path of the loads in the report."""
    spots = {
        index: (
            plane.x(level["throughput"]["value"]),
            plane.y(level["latency_ms"][name]["value"]),
        )
        for index, level in enumerate(levels)
        if name in level["latency_ms"]
    }
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots.values())
    drawing.add("path", d=line, class_=f"line {color}")
    for index, spot in spots.items():
        pointer = f"{at}/{index}/latency_ms/{name}/value"
        _latency_point(drawing, plane, levels[index], name, spot, color, pointer)


def _latency_point(
    drawing: _Drawing,
    plane: _Plane,
    level: Mapping[str, Any],
    name: str,
    spot: tuple[float, float],
    color: str,
    at: str,
) -> None:
    """Draw a point at `spot` and a line over its 95 % interval. `at` is its path in the report."""
    interval = level["latency_ms"][name]
    x, y = spot
    low = plane.y(interval["low"])
    high = plane.y(interval["high"])
    drawing.add("line", x1=x, x2=x, y1=low, y2=high, class_=f"line {color}")
    drawing.add(
        "circle",
        "",
        f"{level['load']}: {name} {interval['value']:.2f} ms",
        cx=x,
        cy=y,
        r=3.5,
        class_=color,
        data_at=at,
        data_value=interval["value"],
    )


def _busiest(levels: Sequence[Mapping[str, Any]]) -> int:
    """The index of the load with the most requests/s."""
    return max(
        range(len(levels)), key=lambda number: levels[number]["throughput"]["value"]
    )


def _batches(bench: Mapping[str, Any], at: str) -> Iterator[Chart]:
    """Plot the number of executions by batch size at the highest load."""
    levels = bench["levels"]
    if not levels:
        return
    index = _busiest(levels)
    sizes = (levels[index].get("server") or {}).get("batch_sizes") or {}
    if not sizes:
        return
    most = sorted(sizes, key=lambda size: -sizes[size])[:MOST_SIZES]
    listed = sorted(most, key=int)
    left = 40.0
    right = WIDTH - 48.0
    scale = (right - left) / max(sizes.values())
    drawing = _Drawing()
    for row, size in enumerate(listed):
        y = row * ROW
        count = sizes[size]
        drawing.text(left - 6.0, y + 11.0, size, "end")
        pointer = f"{at}/{index}/server/batch_sizes/{size}"
        note = f"{count} executions of batch {size}"
        drawing.bar(left, y, count * scale, "three", note, at=pointer, value=count)
        drawing.text(left + count * scale + 4.0, y + 11.0, str(count), "number")
    left_out = len(sizes) - len(listed)
    more = f" {left_out} rarer sizes are left out." if left_out else ""
    words = (
        f"Executions by batch size at {levels[index]['load']}, the load with the"
        " most requests/s."
    )
    yield Chart("Batches", words + more, len(listed) * ROW, tuple(drawing.shapes))
