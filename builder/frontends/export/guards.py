"""A program's conditions on the sizes of one request: its guards and the assertions in its graph.

torch writes a guard as Python on the arguments, `L['x'].size()[0] >= 2`. It is parsed as a
condition on the sizes of inputs, so that sizes can be tested without running the program.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from builder.frontends.export import structure
from builder.frontends.export.relations import Condition

InputAxis = tuple[int, int]
"""An input's position among the non-constant inputs, and its axis. The axis is 0 for a number."""

_USER_INPUT = InputKind.USER_INPUT

_ASSERTION = torch.ops.aten._assert_scalar.default


@dataclass(frozen=True)
class Guard:
    """A condition on sizes. `text` is Python with `{0}`, `{1}` for the sizes at `input_axes`."""

    text: str
    input_axes: tuple[InputAxis, ...]
    code: CodeType

    def shown(self, names: Sequence[str | int]) -> str:
        """The condition with the names or numbers of its sizes, in the order of `input_axes`."""
        return re.sub(r"\{(\d+)\}", lambda match: str(names[int(match[1])]), self.text)

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether the condition holds for these sizes, in the order of `input_axes`. False if it
        divides by 0.
        """
        return _evaluated(
            self.code, {f"size_{index}": size for index, size in enumerate(sizes)}
        )


class Demands:
    """The guards and assertions of a program about sizes and integer arguments.

    Others, such as those about strides, are left out.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.guards = _guards_of(program)
        self.assertions = _assertions_of(program)

    def equalities(self, fixed: Mapping[Any, Any]) -> dict[Any, Any]:
        """The symbols that an assertion equates with an expression of other symbols, such as
        `length*batch`.
        """
        sizes: dict[Any, Any] = {}
        for expression in self.assertions:
            assertion = expression.subs({**fixed, **sizes})
            if not assertion.is_Equality:
                continue
            for symbol, size in (assertion.args, assertion.args[::-1]):
                used: set[Any] = set()
                for other_size in sizes.values():
                    used |= other_size.free_symbols
                if symbol.is_Symbol and symbol not in size.free_symbols | used:
                    sizes[symbol] = size
                    break
        return sizes

    def conditions(
        self,
        names: Sequence[Sequence[int | str]],
        sizes: Sequence[Sequence[Any]],
        fixed: Mapping[Any, Any],
    ) -> list[Condition]:
        """Return the conditions on the program's symbols.

        The inputs have axes with these names or fixed sizes, and these expressions. `fixed` maps
        symbols to a size or to an expression of other symbols.
        """
        required = []
        for guard in self.guards:
            text = guard.shown([names[index][axis] for index, axis in guard.input_axes])
            expressions = [sizes[index][axis] for index, axis in guard.input_axes]
            required.append(_guarded(text, guard, expressions, fixed))
        axes: dict[Any, int | str] = {}
        symbols: set[Any] = set()
        for input_names, input_sizes in zip(names, sizes, strict=False):
            for axis, size in zip(input_names, input_sizes, strict=False):
                if getattr(size, "is_Symbol", False):
                    axes[size] = axis
            for size in input_sizes:
                symbols |= getattr(size, "free_symbols", set())
        required += [
            _asserted(expression, axes, fixed)
            for expression in self.assertions
            if expression.free_symbols <= symbols
        ]
        return [
            condition
            for condition in required
            if condition.symbols or not condition.holds({})
        ]


def _guarded(
    text: str, guard: Guard, sizes: Sequence[Any], fixed: Mapping[Any, Any]
) -> Condition:
    expressions = [
        size if isinstance(size, int) else size.subs(fixed) for size in sizes
    ]
    symbols: set[Any] = set()
    for expression in expressions:
        symbols |= getattr(expression, "free_symbols", set())

    def holds(values: Mapping[Any, int]) -> bool:
        return guard.holds([_value(size, values) for size in expressions])

    return Condition(text, frozenset(symbols), holds)


def _value(expression: Any, values: Mapping[Any, int]) -> int:
    if isinstance(expression, int):
        return expression
    if expression.is_Symbol:
        return values[expression]
    return int(expression.subs(values))


def _asserted(
    expression: Any, axes: Mapping[Any, Any], fixed: Mapping[Any, Any]
) -> Condition:
    text = str(expression)
    for symbol in expression.free_symbols:
        text = text.replace(str(symbol), str(axes.get(symbol, f"n_{symbol}")))
    required = expression.subs(fixed)
    code = _compiled(str(_printer().doprint(required)))

    def holds(values: Mapping[Any, int]) -> bool:
        return _evaluated(
            code, {str(symbol): value for symbol, value in values.items()}
        )

    return Condition(text, frozenset(required.free_symbols), holds)


def _guards_of(program: torch.export.ExportedProgram) -> list[Guard]:
    texts = dict.fromkeys(getattr(program, "_guards_code", ()))
    if not texts:
        return []
    sources = dict(_sources(program))
    pattern = re.compile(
        "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
    )
    guards = (_guard(text, sources, pattern) for text in texts)
    return [guard for guard in guards if guard is not None]


def _assertions_of(program: torch.export.ExportedProgram) -> list[Any]:
    """The conditions (sympy) that the program's graph asserts on its symbols, except those that
    always hold.
    """
    conditions: dict[Any, None] = {}
    for node in program.graph.find_nodes(op="call_function", target=_ASSERTION):
        (condition, *_) = node.args
        if not isinstance(condition, torch.fx.Node):
            continue
        value = condition.meta.get("val")
        if isinstance(value, torch.SymBool) and value.node.expr.free_symbols:
            conditions[value.node.expr] = None
    return list(conditions)


def _sources(program: torch.export.ExportedProgram) -> Iterator[tuple[str, InputAxis]]:
    """The text of each input size in guards, with its position."""
    nodes = program.graph.find_nodes(op="placeholder")
    kinds = program.graph_signature.input_specs
    user_inputs = [
        (node, spec)
        for node, spec in zip(nodes, kinds, strict=True)
        if spec.kind is _USER_INPUT
    ]
    index = 0
    for leaf, (path, (node, spec)) in enumerate(
        zip(structure.input_paths(program), user_inputs, strict=True)
    ):
        if isinstance(spec.arg, ConstantArgument):
            continue
        meta = node.meta["val"]
        for source in (f"L{pytree.keystr(path)}", f"L['flat_args'][{leaf}]"):
            if isinstance(meta, torch.SymInt):
                yield source, (index, 0)
            if isinstance(meta, torch.Tensor):
                for axis in range(meta.dim()):
                    yield f"{source}.size()[{axis}]", (index, axis)
        index += 1


def _guard(
    text: str, sources: Mapping[str, InputAxis], pattern: re.Pattern[str]
) -> Guard | None:
    input_axes: dict[InputAxis, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"{{{input_axes.setdefault(sources[match[0]], len(input_axes))}}}"

    template = pattern.sub(number, text.replace("\n", " ").strip())
    if "L[" in template or not input_axes:
        return None
    return Guard(
        template,
        tuple(input_axes),
        _compiled(re.sub(r"\{(\d+)\}", r"size_\1", template)),
    )


def _compiled(text: str) -> CodeType:
    return compile(text, "<guard>", "eval")


def _evaluated(code: CodeType, values: dict[str, int]) -> bool:
    try:
        return bool(eval(code, _functions(), values))
    except ArithmeticError:  # division by 0
        return False


def _printer() -> Any:
    from torch.utils._sympy.printers import PythonPrinter

    return PythonPrinter()


@functools.cache
def _functions() -> dict[str, Any]:
    """The functions that torch writes in guards."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    plain = {
        "max": max,
        "min": min,
        "abs": abs,
        "int": int,
        "float": float,
        "inf": math.inf,
    }
    return {**SYMPY_INTERP, **plain, "math": math, "torch": torch, "__builtins__": {}}
