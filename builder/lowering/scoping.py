"""The values that each line of a graph's text defines and reads, so that scopes can be checked in
linear time. torch's own lint is quadratic in the uses of a constant, and thousands of nodes may
share one.

Each line is parsed once, because a pass leaves most lines unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from sys import intern
from typing import NamedTuple

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"%[\w.]+")


class Line(NamedTuple):
    """One line of a graph's text: its depth, whether it opens a block, the names that it defines
    and reads, the kind of its node (empty without one), and whether it is an operator without a
    source location.
    """

    indent: int
    opens: bool
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    kind: str = ""
    without_location: bool = False


class Lines(dict[str, Line]):
    """Parsed lines. A missing line is parsed on first use."""

    def __missing__(self, text: str) -> Line:
        line = self[text] = _parsed_line(text)
        return line


def _parsed_line(text: str) -> Line:
    plain = _STRING.sub("", text) if '"' in text else text
    line, location, _ = plain.partition(" # ")
    body = line.lstrip()
    indent = len(line) - len(body)
    left, equals, right = line.partition("= ")
    if not equals:
        opens = body.startswith("block")
        is_header = opens or body.startswith("graph(")
        is_continued_header = indent == 6 and body.startswith("%")
        names = _names(line)
        if is_header or is_continued_header:
            return Line(indent, opens, names, ())
        return Line(indent, opens, (), names)
    outputs = _names(left)
    inputs = _names(right)
    kind = intern(right.partition("(")[0].partition("[")[0])
    is_operator = bool(outputs) and kind.startswith("aten::")
    return Line(
        indent,
        opens=False,
        outputs=outputs,
        inputs=inputs,
        kind=kind,
        without_location=is_operator and not location,
    )


def _names(text: str) -> tuple[str, ...]:
    """The named values, with interned names: thousands of lines repeat the same few names."""
    return tuple(map(intern, _NAME.findall(text)))


def out_of_scope(lines: Iterable[Line]) -> str | None:
    """The first value that is read outside the scope that defines it, or None.

    The scope of a value is from its definition to the end of its block.
    """
    seen: set[str] = set()
    blocks: list[tuple[int, list[str]]] = []
    for indent, opens, outputs, inputs, _, _ in lines:
        while blocks and blocks[-1][0] > indent:
            seen.difference_update(blocks.pop()[1])
        if not seen.issuperset(inputs):
            return next(name for name in inputs if name not in seen)
        if opens:
            blocks.append((indent + 2, list(outputs)))
        elif blocks:
            blocks[-1][1].extend(outputs)
        seen.update(outputs)
    return None
