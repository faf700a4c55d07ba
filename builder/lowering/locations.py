"""The location of a node in the model's source. torch keeps the line of a script, and the calls of
a trace.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from builder.graph_types import Node, Value
from builder.lowering.containers import path_of

_SCRIPTED = re.compile(r'File "([^"]+)", line (\d+)')
_TRACED = re.compile(r"^(?P<path>\S.*)\((?P<line>\d+)\): \S+$", re.MULTILINE)
_MARKER = re.compile(r"^\s*~+\s*<--- HERE|^\s*~[~.]*\s*$|^\s*~+")
_ALIEN = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]|^code/__torch__")
"""Source files that belong to torch, and those that it generates."""
_HERE = str(Path(torch.__file__).parent)
_EXPORTED = re.compile(r"^exported: (.*)$", re.MULTILINE)
"""The last line of an exported node's range (builder.frontends.export.origins)."""
_TRACER = re.compile(r"[/\\]torch[/\\]jit[/\\]_trace\.py$")
_BUILTIN = "<string>"
"""The file name of torch's own operators in TorchScript, such as `x.shape`, and of models that were
scripted from a string.
"""
_NEIGHBORS = 16
"""Maximum number of producers to search for a line of the model's own source, for a node from
torch's library.
"""

Frame = tuple[str, str]
"""File and line."""


def source_range(node: Node) -> str:
    """The text that torch keeps about a node's source. Empty if it has none, or if the text in the
    file is no UTF-8.
    """
    try:
        return node.sourceRange()
    except UnicodeDecodeError:
        return ""


def source_location(node: Node) -> str:
    """The source location of a torch._C.Node, such as `model.py:12: x = torch.relu(x)`: file, line
    and source text.

    For a node from torch's library, also the calling line of the model. `graph` if the file has no
    source, with the module if it is known: a generated class has no source. A saved trace has the
    names of the original files, and the text of the saved code. A container that is built has the
    source location of an element or user.
    """
    if node.kind().endswith("Construct") and node.outputsSize():
        node = located(node.output())
    frames = _frames(node)
    text = _marked(source_range(node))
    if not frames:
        module = _module(node) or path_of(node.getModuleHierarchy(), {})
        return f"graph, in module {module}" if module else "graph"
    model_frame = _model_frame(frames)
    frame = model_frame or frames[0]
    inner = ""
    if frame != frames[0]:
        inner = f" (in {_described(frames[0])})"
    if exported := _EXPORTED.search(source_range(node)):
        return _described(frame, exported[1]) + inner
    if not _TRACED.search(source_range(node)):
        neighbor = None
        if model_frame is None or model_frame[0] == _BUILTIN:
            neighbor = _near(node)
        described = _described(frames[0], text)
        if neighbor:
            described += f", near {_described(neighbor)}"
        return described
    if text:
        return f"{_described(frame)}, saved as: {text}{inner}"
    line = linecache.getline(frame[0], int(frame[1])).strip()
    return _described(frame, line) + inner


def source_line(node: Node) -> str:
    """`file:line` of a node.

    The model's own line is preferred to that of torch's library. A node without a location gets
    that of the nearest producer or neighbor. Returns the node's kind if the file has no source.
    """
    module = _module(node)
    in_module = module and f" in module {module}"
    nodes = [
        node,
        *(value.node() for value in reversed(list(node.inputs()))),
        node.prev(),
    ]
    frames_nearby = [frames for frames in map(_frames, nodes) if frames]
    frames_of_model = [frames for frames in frames_nearby if frames[0][0] != _BUILTIN]
    if frames_nearby:
        frames = (frames_of_model or frames_nearby)[0]
        return _described(_model_frame(frames) or frames[0]) + in_module
    return f"a node of kind {node.kind()}{in_module} (the file has no source for it)"


def _module(node: Node) -> str:
    """The name of the innermost module that a node belongs to; empty if it is not known."""
    return node.scopeName().rsplit("/", 1)[-1].replace("__module.", "")


def located(value: Value) -> Node:
    """The node of a value, or the nearest one with a source location among its users and their
    neighbors: containers that are built have none of their own.
    """
    node = value.node()
    producers = [operand.node() for operand in node.inputs()]
    users = [use.user for use in value.uses()]
    for candidate in (node, *producers, *users):
        if source_range(candidate):
            return candidate
    return node


def _model_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost line that belongs to the model."""
    for frame in frames:
        path = frame[0]
        if not _ALIEN.search(path) and not path.startswith(_HERE):
            return frame
    return None


def _frames(node: Node) -> list[Frame]:
    """The frames, innermost first: for a trace, the calls within the model; for a script, its line
    only.
    """
    text = source_range(node)
    calls = [(call["path"], call["line"]) for call in _TRACED.finditer(text)]
    if not calls:
        return _SCRIPTED.findall(text)[:1]
    for count, (path, _) in enumerate(calls):
        if _TRACER.search(path):
            return calls[: max(count, 1)]
    return calls


def _marked(text: str) -> str:
    """The line that torch marks in an excerpt of the source."""
    previous = ""
    for line in text.splitlines():
        if "<--- HERE" in line or _MARKER.match(line):
            return previous.strip()
        previous = line
    return ""


def _near(node: Node) -> Frame | None:
    """The model's line of the nearest producer."""
    searched = [value.node() for value in node.inputs()]
    for count, producer in enumerate(searched):
        frame = _model_frame(_frames(producer))
        if frame and frame[0] != _BUILTIN:
            return frame
        if count == _NEIGHBORS:
            return None
        searched += [value.node() for value in producer.inputs()]
    return None


def _described(frame: Frame, text: str = "") -> str:
    position = f"{frame[0]}:{frame[1]}"
    return f"{position}: {text}" if text else position
