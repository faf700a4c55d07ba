"""A converter's parameters bind by the schema's names; one that the schema lacks is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from builder.conversion.context import ConversionContext
from builder.conversion.registry import CONVERTERS, converter
from builder.conversion.signatures import signature
from builder.conversion.values import Size, Tensor
from builder.engine import ITensor

NAMES = ("self", "min_val", "max_val")
VALUES = {"self": 1, "min_val": 2, "max_val": 3}


def all_of_them(ctx: Any, x: Any, min_val: Any, max_val: Any) -> Any:
    return ctx, x, min_val, max_val


def with_the_node(ctx: Any, node: Any, x: Any) -> Any:
    return ctx, node, x


def one_in_the_middle(ctx: Any, min_val: Any) -> Any:
    return ctx, min_val


def another_order(ctx: Any, max_val: Any, self: Any) -> Any:
    return ctx, max_val, self


def by_position(ctx: Any, a: Any, low: Any, /, max_val: Any) -> Any:
    return ctx, a, low, max_val


def the_rest(ctx: Any, tensor: Any, *limits: Any) -> Any:
    return ctx, tensor, *limits


def with_a_default(ctx: Any, x: Any, step: int = 7, max_val: Any = None) -> Any:
    return ctx, x, step, max_val


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (all_of_them, ("ctx", 1, 2, 3)),
        (with_the_node, ("ctx", "node", 1)),
        (one_in_the_middle, ("ctx", 2)),
        (another_order, ("ctx", 3, 1)),
        (by_position, ("ctx", 1, 2, 3)),
        (the_rest, ("ctx", 1, 2, 3)),
        (with_a_default, ("ctx", 1, 7, 3)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_parameters_bind_by_name(
    function: Callable[..., Any], expected: tuple[Any, ...]
) -> None:
    bound = signature(function, NAMES, "aten::hardtanh")
    assert bound.call(function, "ctx", "node", VALUES) == expected


def test_parameter_missing_in_schema_is_reported_with_line() -> None:
    def relu(ctx: Any, x: Any, slope: float) -> Any:
        return x

    line = relu.__code__.co_firstlineno
    message = (
        rf"the converter relu \(.*test_signatures.py:{line}\) takes `slope`, but my::relu has no"
        r" such argument \(it has self, inplace\)"
    )
    with pytest.raises(ValueError, match=message):
        converter("my::relu(Tensor self, bool inplace=False) -> Tensor")(relu)
    assert "my::relu" not in CONVERTERS


def test_ctx_comes_first() -> None:
    with pytest.raises(ValueError, match="the first parameter must be `ctx`"):
        signature(lambda x: x, ("self",), "aten::relu")


def test_converters_take_no_catch_all_arguments() -> None:
    """No converter takes every argument by `*_`, which hides unused ones."""
    unused = [
        key
        for key, entry in CONVERTERS.items()
        if "_"
        in entry.build.__code__.co_varnames[: entry.build.__code__.co_argcount + 1]
        and entry.build.__code__.co_flags & 4
    ]
    assert not unused


def as_annotated(
    ctx: ConversionContext, x: ITensor, dim: int, *, index: Tensor, start: Size | None
) -> None:
    """A function of trt-build, whose annotations declare a constant and a dynamic number."""


@pytest.mark.parametrize("is_own", [True, False])
def test_annotations_declare_constants_and_dynamic_numbers(
    is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a user's function mean nothing: `Tensor` may be torch's."""
    key = "custom::annotated"
    monkeypatch.setattr(as_annotated, "__module__", "builder" if is_own else "plugin")
    monkeypatch.setitem(CONVERTERS, key, CONVERTERS["aten::relu"])
    converter(
        f"{key}(Tensor self, int dim, Tensor index, int? start, int end) -> Tensor",
        dynamic=("end",),
        override=True,
    )(as_annotated)
    kinds = dict(CONVERTERS[key].arguments)
    assert kinds == {
        "self": "tensor",
        "dim": "static",
        "index": "tensor",
        "start": "dynamic" if is_own else "static",
        "end": "dynamic",
    }
    assert CONVERTERS[key].constants == ({"index"} if is_own else frozenset())
