"""Sizes that a program computes from others, such as `2*batch`: a Dim that is derived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TRIED = 2048
"""Values of a size that are tried, nearest first."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Relations:
    """The expression (sympy) of the size of each axis, by its name."""

    expressions: Mapping[str, Any]

    @property
    def derived(self) -> dict[str, Any]:
        """The axes that are computed from other sizes."""
        return {axis: size for axis, size in self.expressions.items() if not size.is_Symbol}

    def texts(self) -> list[str]:
        """`rows = 2*batch` for each derived axis; a size that is no axis has torch's name."""
        axes = {size: axis for axis, size in self.expressions.items() if size.is_Symbol}
        found = []
        for axis, size in self.derived.items():
            text = str(size)
            for symbol in size.free_symbols:
                text = text.replace(str(symbol), axes.get(symbol, f"n_{symbol}"))
            found.append(f"{axis} = {text}")
        return found

    def allow(self, sizes: Sizes) -> bool:
        """Whether one request may have these sizes."""
        return all(self._is_value(axis, size, sizes) for axis, size in self.derived.items())

    def _is_value(self, axis: str, size: Any, sizes: Sizes) -> bool:
        axes = {size: axis for axis, size in self.expressions.items() if size.is_Symbol}
        values = {s: sizes[axes[s]] for s in size.free_symbols if s in axes}
        hidden = size.free_symbols - set(values)
        if len(hidden) == 1:
            (symbol,) = hidden
            values[symbol] = _solved({axis: size.subs(values)}, symbol, sizes)
        return _within(size, values, (sizes[axis], sizes[axis]))

    def nearest(self, sizes: Sizes, spans: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """The sizes next to these that the program allows, each within its span; the given ones
        where there are none.
        """
        found, values = dict(sizes), dict[Any, int]()
        axes = {size: axis for axis, size in self.expressions.items() if size.is_Symbol}
        symbols = {symbol for size in self.derived.values() for symbol in size.free_symbols}
        for symbol in sorted(symbols, key=str):
            own = axes.get(symbol)
            alone = {a: e for a, e in self.derived.items() if e.free_symbols == {symbol}}
            wanted = sizes[own] if own else _solved(alone, symbol, sizes)
            for value in _outward(wanted):
                fits = own is None or spans[own][0] <= value <= spans[own][1]
                if fits and all(_within(e, {symbol: value}, spans[a]) for a, e in alone.items()):
                    values[symbol] = value
                    break
            else:
                return dict(sizes)
        found |= {axes[symbol]: value for symbol, value in values.items() if symbol in axes}
        for axis, size in self.derived.items():
            if not _within(size, values, spans[axis]):
                return dict(sizes)
            found[axis] = int(size.subs(values))
        return found


def _within(size: Any, values: Mapping[Any, int], span: tuple[int, int]) -> bool:
    found = size.subs(values)
    return bool(found.is_Integer) and span[0] <= int(found) <= span[1]


def _solved(expressions: Mapping[str, Any], symbol: Any, sizes: Sizes) -> int:
    """The value of a symbol for which the first of these axes has about its size."""
    if not expressions:
        return 1
    axis, size = next(iter(expressions.items()))
    start = int(size.subs({symbol: 0}))
    step = int(size.subs({symbol: 1})) - start
    return (sizes[axis] - start) // step if step else sizes[axis]


def _outward(wanted: int) -> Iterator[int]:
    """Numbers from 0, those next to `wanted` first, smaller ones before greater ones."""
    yield wanted
    for step in range(1, _TRIED):
        if step <= wanted:
            yield wanted - step
        yield wanted + step
