"""Reads a YAML file into plain data and remembers the line of every key and value.

Scalars follow YAML 1.2's core schema, as JSON Schema editors do: `1e-3` is a number, and `no` and
`on` are text (PyYAML's own rules are those of YAML 1.1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from builder.errors import Mistake

Route = tuple[str | int, ...]
"""The way from the document's root to a value: ("inputs", 0, "dtype")."""

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000  # aliases are expanded: a few lines of YAML can stand for billions of values
MAX_DEPTH = 32


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema's scalars in place of YAML 1.1's."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML reads it as a class attribute


_INT, _FLOAT = (
    re.compile(r"^[-+]?[0-9]+$"),
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), [*"~nN", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), [*"tTfF"]
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, [*"-+0123456789"])
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-+.0123456789"])

_SCALARS: dict[str, Callable[[str], Any]] = {
    "tag:yaml.org,2002:null": lambda text: None,
    "tag:yaml.org,2002:bool": lambda text: text.lower() == "true",
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
}


@dataclass
class Document:
    """A YAML file as data; `mistakes` holds what is wrong with it as YAML. Lines count from 1."""

    file: str
    data: Any = None
    mistakes: list[Mistake] = field(default_factory=list)
    lines: dict[Route, int] = field(default_factory=dict)
    key_lines: dict[Route, int] = field(default_factory=dict)

    def line(self, route: Route, *, key: bool = False) -> int:
        """The line of the value at `route` (of its key where `key`), or of the nearest thing around
        it.
        """
        if key and route in self.key_lines:
            return self.key_lines[route]
        while route and route not in self.lines:
            route = route[:-1]
        return self.lines.get(route, 1)

    def add(self, route: Route, message: str, fix: str | None = None, *, key: bool = False) -> None:
        """Note a mistake at `route`."""
        self.mistakes.append(Mistake(self.file, self.line(route, key=key), message, fix))


def read(path: Path) -> Document:
    """The file's data and lines; what cannot be read as YAML is a mistake in it, never an
    exception.
    """
    try:
        return parsed(_text(path), str(path))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        document = Document(str(path))
        document.add((), f"cannot be read: {error}")
        return document


def parsed(text: str, file: str) -> Document:
    """As read, of a text; `file` is what mistakes call it."""
    document = Document(file)
    try:
        node = compose(text)
    except yaml.YAMLError as error:
        document.mistakes.append(_syntax_mistake(document.file, error))
    except RecursionError:
        document.add((), f"is nested deeper than {MAX_DEPTH} levels, which no manifest is")
    else:
        _Walk(document).fill(node)
    return document


def compose(text: str) -> yaml.Node | None:
    """The text's nodes, which know where they stand. Raises yaml.YAMLError."""
    return yaml.compose(text, Loader=_Loader)


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes, which no manifest is")
    return path.read_text(encoding="utf-8")


def _syntax_mistake(file: str, error: yaml.YAMLError) -> Mistake:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    fix = "indent with spaces" if "'\\t'" in words else None
    return Mistake(file, mark.line + 1 if mark else 1, f"not YAML: {words}", fix)


class _Walk:
    """Turns nodes into data while noting lines, duplicate keys and runaway aliases."""

    def __init__(self, document: Document) -> None:
        self.document, self.values = document, 0

    def fill(self, node: yaml.Node | None) -> None:
        if node is None:
            self.document.add((), "is empty", "trt-build init writes a manifest to start from")
        else:
            self.document.data = self.value(node, ())
        if self.values > MAX_VALUES:
            self.document.data = None
            self.document.add(
                (), f"stands for more than {MAX_VALUES} values once its aliases are expanded"
            )

    def value(self, node: yaml.Node, route: Route) -> Any:
        self.values += 1
        self.document.lines[route] = node.start_mark.line + 1
        if self.values > MAX_VALUES or len(route) > MAX_DEPTH:
            # stops the walk everywhere else too: an alias may contain itself
            self.values = MAX_VALUES + 1
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, route)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*route, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, route)

    def scalar(self, node: yaml.Node, route: Route) -> Any:
        value = _SCALARS.get(node.tag, str)(node.value)
        if isinstance(value, float) and not math.isfinite(value):
            self.document.add(route, f"{node.value} is too great for a number")
        return value

    def mapping(self, node: yaml.MappingNode, route: Route) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.document.mistakes.append(
                    Mistake(self.document.file, line, "a list or mapping cannot be a key")
                )
                continue
            here = (*route, key)
            if key in data:
                first = self.document.key_lines[here]
                self.document.mistakes.append(
                    Mistake(
                        self.document.file,
                        line,
                        f"key {key!r} is written twice",
                        f"first on line {first}",
                    )
                )
                continue
            self.document.key_lines[here] = line
            data[key] = self.value(value_node, here)
        return data
