"""Determines valid sizes of one request. A program computes some sizes from others, such as
`2*batch`, and has guards.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TRIED = 2048
"""The number of candidate values of a size, nearest first."""
_COMBINATIONS = 6_000
"""The number of candidate combinations of several axes."""
_NUMBERS = 9
"""The number of values, from 0, of a number argument for which guards are evaluated."""
_SAMPLES = 4096
"""The number of sample sizes for which guards are evaluated, to find the relevant guards."""

Sizes = Mapping[str, int]
Values = Mapping[Any, int]
Spans = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Condition:
    """A condition on the symbols of a program, with its text in axis names."""

    text: str
    symbols: frozenset[Any]
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class Relations:
    """The size expression (sympy) of each axis by name, and the conditions on its symbols."""

    expressions: Mapping[str, Any]
    conditions: Sequence[Condition] = ()

    @property
    def derived(self) -> dict[str, Any]:
        """The axes that are computed from other sizes."""
        return {
            axis: size for axis, size in self.expressions.items() if not size.is_Symbol
        }

    @property
    def axes(self) -> dict[Any, str]:
        """The axis whose size is this symbol, for each symbol that has one."""
        return {size: axis for axis, size in self.expressions.items() if size.is_Symbol}

    def texts(self) -> list[str]:
        """Return `rows = 2*batch` for each derived axis. A size that is not an axis has torch's
        name.
        """
        texts = []
        for axis, size in self.derived.items():
            text = str(size)
            for symbol in size.free_symbols:
                text = text.replace(str(symbol), self.axes.get(symbol, f"n_{symbol}"))
            texts.append(f"{axis} = {text}")
        return texts

    def needed(self, spans: Spans) -> list[str]:
        """Return the requirements of a request with sizes within these spans.

        These are the relations of derived axes, and the conditions that do not hold for all such
        sizes.
        """
        samples = list(itertools.islice(self._samples(spans), _SAMPLES))
        texts = self.texts()
        for condition in self.conditions:
            remaining = [values for values in samples if condition.holds(values)]
            if len(remaining) < len(samples):
                texts.append(condition.text)
                samples = remaining
        return texts

    def _samples(self, spans: Spans) -> Iterator[Values]:
        """Return symbol values with sizes within the spans: all values of a single symbol; the ends
        and the middle for several.
        """
        symbols = self._symbols()
        most = _SAMPLES if len(symbols) == 1 else 9
        choices = [
            _spread(self._values_within(symbol, spans), most) for symbol in symbols
        ]
        for chosen in itertools.product(*choices):
            values = dict(zip(symbols, chosen, strict=True))
            if all(
                _within(size, values, spans[axis])
                for axis, size in self.derived.items()
            ):
                yield values

    def _values_within(self, symbol: Any, spans: Spans) -> list[int]:
        """The values of a symbol with sizes within the spans."""
        if symbol in self.axes:
            low, high = spans[self.axes[symbol]]
            return list(range(low, min(high, low + _SAMPLES) + 1))
        alone = _only_of(symbol, self.derived)
        if not alone:
            return list(range(_NUMBERS))
        low = _solved(alone, symbol, {axis: span[0] for axis, span in spans.items()})
        high = _solved(alone, symbol, {axis: span[1] for axis, span in spans.items()})
        candidates = range(max(low, 0), min(high, low + _SAMPLES) + 1)
        return [
            value for value in candidates if _all_within(alone, {symbol: value}, spans)
        ]

    def refusals(self, sizes: Sizes) -> list[str]:
        """Return why these sizes are invalid in one request: the violated relations and conditions.

        They are evaluated with number arguments that satisfy most of the conditions on them alone.
        """
        if (
            self._nearest(sizes, {axis: (size, size) for axis, size in sizes.items()})
            is not None
        ):
            return []
        values = {symbol: sizes[axis] for symbol, axis in self.axes.items()}
        for symbol in self._symbols():
            if symbol not in values:
                derived = {
                    axis: size.subs(values) for axis, size in self.derived.items()
                }
                values[symbol] = _solved(_only_of(symbol, derived), symbol, sizes)
        violated = [
            text
            for (axis, size), text in zip(
                self.derived.items(), self.texts(), strict=True
            )
            if not _within(size, values, (sizes[axis], sizes[axis]))
        ]
        return violated or [
            condition.text
            for condition in self.conditions
            if not condition.holds(values)
        ]

    def nearest(self, sizes: Sizes, spans: Spans) -> dict[str, int]:
        """Return the nearest sizes that the program allows, each within its span; the given ones if
        none are found.
        """
        values = self._nearest(sizes, spans)
        if values is None:
            return dict(sizes)
        free = {
            self.axes[symbol]: value
            for symbol, value in values.items()
            if symbol in self.axes
        }
        derived = {axis: int(size.subs(values)) for axis, size in self.derived.items()}
        return {**sizes, **free, **derived}

    def _nearest(self, sizes: Sizes, spans: Spans) -> dict[Any, int] | None:
        """The values of the symbols for the nearest sizes that the program allows."""
        if not self.derived and not self.conditions:
            return {}
        symbols = self._symbols()
        lists = [
            _Candidates(self._candidates(symbol, sizes, spans)) for symbol in symbols
        ]
        several = [
            condition for condition in self.conditions if len(condition.symbols) > 1
        ]
        joint = {
            axis: size
            for axis, size in self.derived.items()
            if len(size.free_symbols) != 1
        }
        for chosen in _combinations(lists):
            values = dict(zip(symbols, chosen, strict=True))
            if _all_within(joint, values, spans) and _all_hold(several, values):
                return values
        return None

    def _symbols(self) -> list[Any]:
        """The symbols that an axis or a condition depends on."""
        used = {
            symbol for size in self.derived.values() for symbol in size.free_symbols
        }
        used.update(
            symbol for condition in self.conditions for symbol in condition.symbols
        )
        return sorted(used, key=str)

    def _candidates(
        self, symbol: Any, sizes: Sizes, spans: Spans
    ) -> Iterator[tuple[int, int]]:
        """The values of a symbol that all conditions on it alone allow, with the distance to the
        requested value, nearest first.
        """
        alone = _only_of(symbol, self.derived)
        axis = self.axes.get(symbol)
        requested = sizes[axis] if axis else _solved(alone, symbol, sizes)
        conditions = [
            condition for condition in self.conditions if condition.symbols == {symbol}
        ]
        for value in _outward(requested):
            values = {symbol: value}
            is_in_span = axis is None or spans[axis][0] <= value <= spans[axis][1]
            if (
                is_in_span
                and _all_within(alone, values, spans)
                and _all_hold(conditions, values)
            ):
                yield value, abs(value - requested)


class _Candidates:
    """A list that is computed on demand."""

    def __init__(self, source: Iterator[tuple[int, int]]) -> None:
        self._source = source
        self._known = list[tuple[int, int]]()

    def get(self, index: int) -> tuple[int, int] | None:
        """Return the value at this position and its distance; None past the end."""
        missing = max(0, index + 1 - len(self._known))
        self._known.extend(itertools.islice(self._source, missing))
        if index < len(self._known):
            return self._known[index]
        return None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        index = 0
        while (pair := self.get(index)) is not None:
            yield pair
            index += 1


def _combinations(lists: Sequence[_Candidates]) -> Iterator[tuple[int, ...]]:
    """Yield combinations of one value of each list, in order of the sum of distances. After
    _COMBINATIONS, only one value is changed at a time.
    """
    first = [candidates.get(0) for candidates in lists]
    start = [pair[0] for pair in first if pair is not None]
    if len(start) < len(lists):
        return
    yield from itertools.islice(_by_distance(lists), _COMBINATIONS)
    changed = heapq.merge(
        *(
            [(away, index, value) for value, away in candidates]
            for index, candidates in enumerate(lists)
        )
    )
    for _, index, value in changed:
        yield (*start[:index], value, *start[index + 1 :])


def _by_distance(lists: Sequence[_Candidates]) -> Iterator[tuple[int, ...]]:
    seen = {(0,) * len(lists)}
    waiting = [(0, (0,) * len(lists))]
    while waiting:
        _, indices = heapq.heappop(waiting)
        chosen = zip(lists, indices, strict=True)
        yield tuple(candidates.get(index)[0] for candidates, index in chosen)  # type: ignore[index]
        for position in range(len(lists)):
            advanced = list(indices)
            advanced[position] += 1
            later = tuple(advanced)
            pairs = [
                candidates.get(index)
                for candidates, index in zip(lists, later, strict=True)
            ]
            if later not in seen and pairs[position] is not None:
                seen.add(later)
                heapq.heappush(waiting, (sum(pair[1] for pair in pairs if pair), later))


def _only_of(symbol: Any, expressions: Mapping[str, Any]) -> dict[str, Any]:
    """The axes whose size depends only on this symbol."""
    return {
        axis: size
        for axis, size in expressions.items()
        if size.free_symbols == {symbol}
    }


def _all_hold(conditions: Iterable[Condition], values: Values) -> bool:
    return all(condition.holds(values) for condition in conditions)


def _all_within(expressions: Mapping[str, Any], values: Values, spans: Spans) -> bool:
    return all(_within(size, values, spans[axis]) for axis, size in expressions.items())


def _within(size: Any, values: Mapping[Any, int], span: tuple[int, int]) -> bool:
    value = size.subs(values)
    return bool(value.is_Integer) and span[0] <= int(value) <= span[1]


def _solved(expressions: Mapping[str, Any], symbol: Any, sizes: Sizes) -> int:
    """The value of a symbol for which the first of these axes has about its size."""
    if not expressions:
        return 1
    axis, size = next(iter(expressions.items()))
    start = int(size.subs({symbol: 0}))
    step = int(size.subs({symbol: 1})) - start
    if step:
        return (sizes[axis] - start) // step
    return sizes[axis]


def _spread(values: Sequence[int], most: int) -> list[int]:
    """Return at most this many of the values: the first ones, the last, and some in between."""
    if len(values) <= most:
        return list(values)
    ends = most // 3
    between = most - 2 * ends
    step = max(1, (len(values) - 2 * ends) // between)
    middle = values[ends:-ends:step]
    return [*values[:ends], *middle[:between], *values[-ends:]]


def _outward(center: int) -> Iterator[int]:
    """Yield integers from 0, nearest to `center` first, smaller ones before larger ones."""
    yield center
    for step in range(1, _TRIED):
        if step <= center:
            yield center - step
        yield center + step
