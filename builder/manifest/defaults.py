"""Checks the `default` of optional inputs: its values, and the sizes that a request determines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from builder.dtypes import ENDPOINT_DTYPES
from builder.manifest.document import Document, Route
from builder.manifest.schema import label

LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}
"""The largest finite number of each floating-point dtype."""


def are_values(document: Document) -> None:
    """Check that each default has the form of its input and that the dtype can represent it."""
    for route, item in _optional(document):
        default = item["default"]
        shape = item.get("shape")
        if isinstance(default, list) and isinstance(shape, list):
            _check_length(document, route, default, shape)
        dtype = _dtype_at_endpoint(document, item)
        for at, value in _elements(route, default):
            if not isinstance(value, bool | int | float):
                continue
            problem = not_a_value(value, dtype)
            if problem:
                document.add(at, f"{label(at)}: {problem}", None)


def _elements(route: Route, default: Any) -> Iterator[tuple[Route, Any]]:
    """The route and the value of each element; a default that is not a list is one element."""
    if not isinstance(default, list):
        yield route, default
        return
    for position, value in enumerate(default):
        yield (*route, position), value


def have_a_shape(document: Document) -> None:
    """Check that every request determines the shape of each optional input."""
    optional = _optional(document)
    if not optional:
        return
    if document.mappings("state"):
        for route, _ in optional:
            fix = "remove 'default': each request of a sequence needs every input"
            document.add(route, "'default' needs a model without state", fix, key=True)
        return
    required = [item for item in document.mappings("inputs") if "default" not in item]
    if not required:
        message = "every input has a default, so a request could be empty"
        document.add(
            optional[0][0], message, "remove the default of one input", key=True
        )
        return
    sizes = {axis for item in required for axis in _axes(item)}
    for (_, index, _), item in optional:
        for position, axis in enumerate(item.get("shape") or ()):
            if isinstance(axis, str) and axis not in sizes:
                document.add(
                    ("inputs", index, "shape", position),
                    f"axis {axis!r} of an optional input is in no required input, so a request"
                    " does not determine its size",
                    "write a number, or use the name of an axis of a required input",
                )


def _check_length(
    document: Document, route: Route, default: list[Any], shape: list[int | str]
) -> None:
    """Check that the last axis of `shape` is as long as the list."""
    last = shape[-1] if shape else None
    if last != len(default):
        axis = "no axis" if last is None else f"{last} elements on its last axis"
        document.add(
            route,
            f"{label(route)} has {len(default)} elements, and the input has {axis}",
            "write one number for all elements, or one for each element of a fixed last axis",
        )


def not_a_value(value: bool | int | float, dtype: str) -> str | None:
    """Why the value cannot be an element of this dtype, or None."""
    if dtype == "bool":
        if isinstance(value, bool):
            return None
        return f"{value!r} is not true or false"
    if isinstance(value, bool):
        return f"{str(value).lower()} is not a number, as input dtype {dtype} requires"
    if dtype not in ENDPOINT_DTYPES:  # a mistake of its own
        return None
    if dtype in LARGEST:
        if abs(value) <= LARGEST[dtype]:
            return None
        return f"{value!r} is beyond the range of {dtype}"
    if not math.isfinite(value) or value != int(value):
        return f"{value!r} is not an integer, as input dtype {dtype} requires"
    bits = int(dtype.lstrip("uint") or 0)
    low = 0
    if not dtype.startswith("u"):
        low = -(1 << bits - 1)
    high = (1 << bits if dtype.startswith("u") else 1 << bits - 1) - 1
    if low <= value <= high:
        return None
    return f"{value!r} is beyond the range of {dtype}"


def _dtype_at_endpoint(document: Document, item: Mapping[str, Any]) -> str:
    """The dtype of the input in a request."""
    narrowed = document.data.get("io") == "fp16" and item.get("dtype") == "float32"
    return "float16" if narrowed else str(item.get("dtype"))


def _optional(document: Document) -> list[tuple[tuple[str, int, str], dict[str, Any]]]:
    """Each input with a default, and the path of the default in the document."""
    return [
        (("inputs", index, "default"), item)
        for index, item in enumerate(document.mappings("inputs"))
        if "default" in item
    ]


def _axes(item: Mapping[str, Any]) -> list[str]:
    shape = item.get("shape")
    if not isinstance(shape, list):
        return []
    return [axis for axis in shape if isinstance(axis, str)]
