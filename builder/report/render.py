"""Renders a report in its four formats from one document."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from builder.errors import UsageError
from builder.printable import printable
from builder.report import charts, formatting
from builder.report.gather import FAILED, PASSED, UNVERIFIED
from builder.report.junit import junit

SUFFIXES = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".xml": "junit",
    ".md": "markdown",
}
CLASSES = {PASSED: "passed", FAILED: "failed", UNVERIFIED: "open"}
WORST_GOLDENS, MOST_ROWS = 12, 40
"""The row limits of the tables of goldens and of operators. The JSON has all rows."""
FORMATS = ("html", "json", "junit", "markdown")


def format_of(file: Path) -> str:
    """The format for a file name. Raises UsageError."""
    if file.suffix not in SUFFIXES:
        raise UsageError(
            f"{file.name!r} has no suffix that names a report format",
            fix=f"use --format {'|'.join(FORMATS)}, or a name that ends with {', '.join(SUFFIXES)}",
        )
    return SUFFIXES[file.suffix]


def render(report: Mapping[str, Any], form: str) -> str:
    """Render the report in one of FORMATS. Names and messages are escaped in each."""
    return _WRITERS[form](report)


def _json(report: Mapping[str, Any]) -> str:
    return json.dumps(report, indent=2, default=str, allow_nan=False) + "\n"


def _html(report: Mapping[str, Any]) -> str:
    """Render one page that refers to no other file. Its policy allows only its own style and
    script.
    """
    environment = _environment(autoescape=True, finalize=_without_controls)
    style = _part("style.css")
    script = _part("script.js")
    allowed = f"style-src {_sha256(style)}; script-src {_sha256(script)}"
    policy = f"default-src 'none'; img-src data:; {allowed}"
    page = environment.get_template("page.html.jinja")
    drawn = [
        charts.of(model, f"/models/{index}")
        for index, model in enumerate(report["models"])
    ]
    assets = {
        "style": Markup(style),
        "script": Markup(script),
        "policy": policy,
        "charts": drawn,
    }
    return page.render(**_context(report, _figure), **assets)


def _markdown(report: Mapping[str, Any]) -> str:
    environment = _environment(autoescape=False, finalize=_cell)
    return environment.get_template("report.md.jinja").render(
        **_context(report, _text_alone)
    )


_WRITERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "html": _html,
    "json": _json,
    "junit": junit,
    "markdown": _markdown,
}


def _environment(**options: Any) -> Environment:
    environment = Environment(
        loader=PackageLoader("builder.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.tests["covered"] = _covered
    return environment


def _covered(warning: str, operators: Sequence[Any]) -> bool:
    """Whether the table of operators already reports it."""
    return bool(operators) and warning.startswith("in torch: ")


Figure = Callable[[str, str, Any], str]


def _context(report: Mapping[str, Any], figure: Figure) -> dict[str, Any]:
    """Return the template context. `fig("/models/0/share", "percent")` formats the value at that
    JSON pointer of the report, so no figure can differ from the JSON.
    """

    def fig(pointer: str, kind: str) -> str:
        value = formatting.pointed(report, pointer)
        return figure(pointer, formatting.KINDS[kind](value), value)

    return {
        "report": report,
        "fig": fig,
        "classes": CLASSES,
        "worst": WORST_GOLDENS,
        "most_rows": MOST_ROWS,
        "written": _value_text,
        "listed": _fields,
    }


def _figure(pointer: str, text: str, value: float | None) -> str:
    if value is None:
        return ""
    return Markup('<data value="{}" data-at="{}">{}</data>').format(
        value, pointer, text
    )


def _fields(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return the fields of a record as text, including nested ones. A list of mappings becomes its
    length.
    """
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _fields(value, f"{name} ")
        elif isinstance(value, list):
            if any(isinstance(element, Mapping) for element in value):
                yield name, f"{len(value)} in the JSON"
            else:
                yield name, ", ".join(map(formatting.number, value))
        elif value is not None and name not in _STAMPS:
            yield name, formatting.number(value)


_STAMPS = ("name", "current", "published", "trt_build")


def _value_text(value: float | str) -> str:
    if value is None:
        return "none"
    return formatting.number(value)


def _text_alone(pointer: str, text: str, value: float | None) -> str:
    return text


def _without_controls(value: object) -> Any:
    """Show control characters as escapes. Markup is not changed."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


_SPECIAL = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "\\`*_[]|#"},
        "<": "&lt;",
        ">": "&gt;",
        "&": "&amp;",
    }
)


def _cell(value: object) -> Any:
    """Escape text for a Markdown cell on one line."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return " ".join(printable(value).split()).translate(_SPECIAL)
    return value


def _part(name: str) -> str:
    return (files("builder.report") / "templates" / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
