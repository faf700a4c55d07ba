"""The location of a node in the model's source: torch keeps the line of a script, and the calls of
a trace.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import torch

from builder.graph_types import Node, Value

_SCRIPTED = re.compile(r'File "([^"]+)", line (\d+)')
_TRACED = re.compile(r"^(?P<path>\S.*)\((?P<line>\d+)\): \S+$", re.MULTILINE)
_MARKER = re.compile(r"^\s*~+\s*<--- HERE|^\s*~[~.]*\s*$|^\s*~+")
_ALIEN = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]|^code/__torch__")
"""Torch's own files, where a file was made, and those that it writes."""
_HERE = str(Path(torch.__file__).parent)
_EXPORTED = re.compile(r"^exported: (.*)$", re.MULTILINE)
"""The last line of an exported node's range (builder.frontends.export.origins)."""
_TRACER = re.compile(r"[/\\]torch[/\\]jit[/\\]_trace\.py$")
_BUILTIN = "<string>"
"""The file of operators that torch itself compiles of source, such as `x.shape`."""
_NEIGHBOURS = 16
"""How many producers are searched for a line of the model's own, where torch's library computes."""

Frame = tuple[str, str]
"""File and line."""


def source_location(node: Node) -> str:
    """`model.py:12: x = torch.relu(x)` of a torch._C.Node: file, line and the source text that it
    came from; the line of the model that calls, too, where torch's library computes. `graph` where
    the file carries no source.

    A saved trace has only the names of the files it was made of, and what it was saved as by its
    text.
    """
    frames, text = _frames(node), _marked(node.sourceRange())
    if not frames:
        return "graph"
    own = _own(frames)
    if exported := _EXPORTED.search(node.sourceRange()):
        shown = own or frames[0]
        inner = f" (in {_told(frames[0])})" if shown != frames[0] else ""
        return _told(shown, exported[1]) + inner
    if not _is_traced(node):
        near = _near(node) if own is None else None
        return _told(frames[0], text) + (f", near {_told(near)}" if near else "")
    shown = own or frames[0]
    inner = f" (in {_told(frames[0])})" if shown != frames[0] else ""
    saved = f", saved as: {text}" if text else ""
    return (
        _told(shown, "" if saved else linecache.getline(shown[0], int(shown[1])).strip())
        + saved
        + inner
    )


def source_line(node: Node) -> str:
    """`file:line` of a node: of the model's own line before that of torch's library, of the nearest
    producer or neighbor where the node has none.

    Gives the node's kind where the file carries no source.
    """
    module = node.scopeName().rsplit("/", 1)[-1].replace("__module.", "")
    within = module and f" in module {module}"
    near = [node, *(value.node() for value in reversed(list(node.inputs()))), node.prev()]
    frames = next(filter(None, map(_frames, near)), None)
    if frames:
        return _told(_own(frames) or frames[0]) + within
    return f"a node of kind {node.kind()}{within} (the file carries no source for it)"


def located(value: Value) -> Node:
    """The node of a value, or the nearest one with a source location among its users and their
    neighbors: containers that are built have none of their own.
    """
    node = value.node()
    near = [node, *(given.node() for given in node.inputs()), *(use.user for use in value.uses())]
    return next((one for one in near if one.sourceRange()), node)


def _own(frames: Sequence[Frame]) -> Frame | None:
    """The innermost line of the model itself."""
    return next((f for f in frames if not _ALIEN.search(f[0]) and not f[0].startswith(_HERE)), None)


def _frames(node: Node) -> list[Frame]:
    """The innermost first; of a trace the calls within the model, of a script its line alone."""
    text = node.sourceRange()
    calls = [(call["path"], call["line"]) for call in _TRACED.finditer(text)]
    if calls:
        return list(takewhile(lambda frame: not _TRACER.search(frame[0]), calls)) or calls[:1]
    return [found for found in _SCRIPTED.findall(text)[:1] if found[0] != _BUILTIN]


def _is_traced(node: Node) -> bool:
    return bool(_TRACED.search(node.sourceRange()))


def _marked(text: str) -> str:
    """The line that torch marks in a piece of source."""
    lines = text.splitlines()
    marked = next(
        (i for i, line in enumerate(lines) if "<--- HERE" in line or _MARKER.match(line)), None
    )
    return lines[marked - 1].strip() if marked else ""


def _near(node: Node) -> Frame | None:
    """The line of the model that the nearest producer has."""
    searched = [value.node() for value in node.inputs()]
    for count, producer in enumerate(searched):
        own = _own(_frames(producer))
        if own or count == _NEIGHBOURS:
            return own
        searched += [value.node() for value in producer.inputs()]
    return None


def _told(frame: Frame, text: str = "") -> str:
    return f"{frame[0]}:{frame[1]}: {text}" if text else f"{frame[0]}:{frame[1]}"
