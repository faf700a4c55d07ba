"""Reads a YAML file into plain data, with the line of every key and value.

Scalars follow YAML 1.2's core schema, as JSON Schema editors do: `1e-3` is a number, `no` and `on`
are text. PyYAML's own rules are those of YAML 1.1.
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
"""The path from the document's root to a value: ("inputs", 0, "dtype")."""

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000  # aliases are expanded: a few lines can mean billions of values
MAX_DEPTH = 32


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of the YAML 1.2 core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML reads it as a class attribute


_INT = re.compile(r"^[-+]?[0-9]+$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), [*"~nN", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool",
    re.compile(r"^(true|True|TRUE|false|False|FALSE)$"),
    [*"tTfF"],
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
    """A YAML file as data, with its mistakes. Lines count from 1."""

    file: str
    data: Any = None
    mistakes: list[Mistake] = field(default_factory=list)
    lines: dict[Route, int] = field(default_factory=dict)
    key_lines: dict[Route, int] = field(default_factory=dict)

    def line(self, route: Route, *, key: bool = False) -> int:
        """The line of the value at `route` (of its key, with `key`), else of its nearest parent."""
        if key and route in self.key_lines:
            return self.key_lines[route]
        while route and route not in self.lines:
            route = route[:-1]
        return self.lines.get(route, 1)

    def mappings(self, key: str) -> list[dict[str, Any]]:
        """The items of the list `key`. One that is not a mapping becomes an empty one: the schema
        reports it.
        """
        items = self.data.get(key)
        if not isinstance(items, list):
            return []
        return [item if isinstance(item, dict) else {} for item in items]

    def add(
        self, route: Route, message: str, fix: str | None = None, *, key: bool = False
    ) -> None:
        """Add a mistake at `route`."""
        self.mistakes.append(
            Mistake(self.file, self.line(route, key=key), message, fix)
        )


def read(path: Path) -> Document:
    """Read a file. A file that is not valid YAML returns mistakes, never an exception.

    Raises PermissionError for a file that this user may not read.
    """
    try:
        return parsed(_text(path), str(path))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        wrong = Mistake(
            str(path), line, "the file is not UTF-8 text", "save the file as UTF-8"
        )
        return Document(str(path), mistakes=[wrong])
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        document = Document(str(path))
        reason = getattr(error, "strerror", None) or error
        document.add((), f"the file cannot be read: {reason}")
        return document


def parsed(text: str, file: str) -> Document:
    """Parse a text; mistakes report `file` as its name."""
    document = Document(file)
    try:
        node = compose(text)
    except yaml.YAMLError as error:
        document.mistakes.append(_syntax_mistake(document.file, error))
    except RecursionError:
        document.add((), f"the file is nested deeper than {MAX_DEPTH} levels")
    else:
        _Walk(document).fill(node)
    return document


def compose(text: str) -> yaml.Node | None:
    """The nodes of the text, with their positions. Raises yaml.YAMLError."""
    return yaml.compose(text, Loader=_Loader)


def scalar_of(node: yaml.Node) -> Any:
    """The value of a scalar node."""
    return _SCALARS.get(node.tag, str)(node.value)


def scalar(text: str) -> Any:
    """The value that `text` has without quotes."""
    tag = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _SCALARS.get(tag, str)(text)


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES} bytes")
    return path.read_text(encoding="utf-8")


def _syntax_mistake(file: str, error: yaml.YAMLError) -> Mistake:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = (
        getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    )
    if words.startswith("but "):  # the second half of PyYAML's sentence
        words = f"{getattr(error, 'context', None)}, {words}"
    line = mark.line + 1 if mark else 1
    return Mistake(file, line, f"not YAML: {words}", _syntax_fix(words, error, line))


_OPENED = {"sequence": "[", "mapping": "{"}


def _syntax_fix(words: str, error: yaml.YAMLError, line: int) -> str | None:
    """How to correct invalid YAML, if that is clear."""
    if "'\\t'" in words:
        return "indent with spaces"
    context = getattr(error, "context", None) or ""
    begin = getattr(error, "context_mark", None)
    first = begin.line + 1 if begin else line
    kind = context.rpartition(" ")[2]
    if "flow" in context and kind in _OPENED:
        return f"close the '{_OPENED[kind]}' of line {first}"
    if "block" in context and kind in ("mapping", "collection"):
        return f"indent this line as line {first}"
    texts = ("alias", "anchor", "cannot start any token")
    if any(text in f"{context} {words}" for text in texts):
        return "put text that begins with a special character in quotes"
    if "simple key" in context or "mapping values" in words:
        return "write KEY: VALUE, and put text with a colon in quotes"
    return "write one manifest in each file" if "single document" in words else None


class _Walk:
    """Convert nodes to data, and record lines, duplicate keys and endless aliases."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values = 0

    def fill(self, node: yaml.Node | None) -> None:
        is_null = isinstance(node, yaml.ScalarNode) and scalar_of(node) is None
        if node is None or is_null:
            self.document.add(
                (), "the manifest is empty", "trt-build init writes a first manifest"
            )
        else:
            self.document.data = self.value(node, ())
        if self.values > MAX_VALUES:
            self.document.data = None
            self.document.add(
                (),
                f"the file has more than {MAX_VALUES} values once its aliases are expanded",
                "remove an alias that contains itself, or write fewer values",
            )

    def value(self, node: yaml.Node, route: Route) -> Any:
        self.values += 1
        self.document.lines[route] = node.start_mark.line + 1
        if self.values > MAX_VALUES or len(route) > MAX_DEPTH:
            # also ends the walk of an alias that contains itself
            self.values = MAX_VALUES + 1
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, route)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.value(item, (*route, index))
                for index, item in enumerate(node.value)
            ]
        return self.scalar(node, route)

    def scalar(self, node: yaml.Node, route: Route) -> Any:
        value = scalar_of(node)
        if isinstance(value, float) and not math.isfinite(value):
            self.document.add(route, f"{node.value} is too large for a number")
        return value

    def mapping(self, node: yaml.MappingNode, route: Route) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            here = (*route, key)
            line = key_node.start_mark.line + 1
            if problem := self.problem_of_key(key_node, here):
                self.document.mistakes.append(
                    Mistake(self.document.file, line, *problem)
                )
                continue
            self.document.key_lines[here] = line
            data[key] = self.value(value_node, here)
        return data

    def problem_of_key(
        self, node: yaml.Node, route: Route
    ) -> tuple[str, str | None] | None:
        """Why the key at `route` cannot be read, and the fix. None if it can be read."""
        if not isinstance(node, yaml.ScalarNode):
            return "a list or mapping cannot be a key", None
        if node.value == "<<":
            fix = "write out the keys that it would add"
            return "merge keys (<<) are not supported", fix
        first = self.document.key_lines.get(route)
        if first is not None:
            fix = f"remove one; the first is on line {first}"
            return f"the key {node.value!r} is written twice", fix
        return None
