"""The inputs of a program as TensorSpecs: dtypes, fixed sizes, and the ranges of dynamic axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from builder.errors import UsageError
from builder.frontends.export.relations import Relations
from builder.manifest import Range, TensorSpec

MOST = 512
"""The largest size of an axis without an upper bound, as long as its lower bound allows it."""
_NAMES = {2: ("length",), 3: ("length", "width"), 4: ("channels", "height", "width")}
"""Usual names of the axes after the first, by rank."""


class Axes:
    """The dynamic axes of a program, by the expression of their size."""

    def __init__(self, metas: Mapping[str, Any], constraints: Mapping[Any, Any]) -> None:
        """`metas` are the fake tensors of the inputs by name, `constraints` the ranges of sizes
        (`ExportedProgram.range_constraints`).
        """
        self.metas = metas
        self._bounds = {str(size): _bounds(span) for size, span in constraints.items()}
        self.names: dict[str, str] = {}
        for _, shape in self._shapes():
            for place, size in enumerate(shape):
                if isinstance(size, torch.SymInt) and str(size) not in self.names:
                    self.names[str(size)] = self._name(place, len(shape))

    def _shapes(self) -> Iterator[tuple[str, Sequence[Any]]]:
        for name, meta in self.metas.items():
            yield name, meta.shape if isinstance(meta, torch.Tensor) else ()

    def _name(self, place: int, rank: int) -> str:
        usual = "batch" if place == 0 else (_NAMES.get(rank, ()) + ("",) * rank)[place - 1]
        stem = usual or f"axis_{place}"
        taken = set(self.names.values())
        later = (f"{stem}_{number}" for number in range(2, len(taken) + 3))
        return next(name for name in (stem, *later) if name not in taken)

    def specs(self) -> tuple[TensorSpec, ...]:
        """A spec for each input, in order, with the ranges of the program."""
        specs = tuple(self._spec(name, meta) for name, meta in self.metas.items())
        dims = {axis: span for spec in specs for axis, span in spec.dims.items()}
        spans = {axis: (span[0], span[2]) for axis, span in dims.items()}
        relations = self.relations(specs)
        kinds = [
            relations.nearest({axis: span[which] for axis, span in dims.items()}, spans)
            for which in range(3)
        ]
        chosen = {axis: (kinds[0][axis], kinds[1][axis], kinds[2][axis]) for axis in dims}
        return tuple(
            replace(spec, dims={axis: chosen[axis] for axis in spec.dims}) for spec in specs
        )

    def relations(self, specs: Sequence[TensorSpec]) -> Relations:
        """How the axes depend on each other, by their names in these specs."""
        return Relations(
            {
                axis: size.node.expr
                for spec, (_, shape) in zip(specs, self._shapes(), strict=True)
                for axis, size in zip(spec.shape, shape, strict=True)
                if isinstance(axis, str) and isinstance(size, torch.SymInt)
            }
        )

    def _spec(self, name: str, meta: Any) -> TensorSpec:
        if not isinstance(meta, torch.Tensor):
            return TensorSpec(_number_dtype(meta), (), name=name)
        shape = tuple(
            self.names[str(size)] if isinstance(size, torch.SymInt) else int(size)
            for size in meta.shape
        )
        dims = {
            self.names[str(size)]: self._range(str(size))
            for size in meta.shape
            if isinstance(size, torch.SymInt)
        }
        return TensorSpec(str(meta.dtype).removeprefix("torch."), shape, dims=dims, name=name)

    def _range(self, size: str) -> Range:
        low, high = self.bounds(size)
        low = max(low, 1)
        most = max(MOST, low) if high is None else high
        usual = min(
            max(low, 8 if self.names[size].startswith("batch") else (low + most) // 2), most
        )
        return low, usual, most

    def chosen(self, specs: Sequence[TensorSpec] | None) -> tuple[TensorSpec, ...]:
        """The specs, with the names of the inputs; the program's own where none are given. Raises
        UsageError as `check`.
        """
        own = self.specs()
        if specs is None:
            return own
        self.check(specs)
        pairs = zip(specs, own, strict=True)
        return tuple(replace(spec, name=spec.name or mine.name) for spec, mine in pairs)

    def comment(self, axis: str) -> str:
        """The program's constraint of an axis of `specs`."""
        size = next(size for size, name in self.names.items() if name == axis)
        low, high = self.bounds(size)
        if high is None:
            return f"? the program allows {low} and more"
        return f"the program allows {low} to {high}"

    def bounds(self, size: str) -> tuple[int, int | None]:
        """The least and the greatest value of a size; None without an upper bound."""
        return self._bounds.get(size, (0, None))

    def check(self, specs: Sequence[TensorSpec], where: str | None = None) -> None:
        """Raise UsageError if a spec allows inputs that the program excludes: another rank, dtype
        or static size, a range beyond its constraint, or different sizes for one symbol.
        """
        if len(specs) != len(self.metas):
            raise UsageError(
                f"the program has {len(self.metas)} inputs ({', '.join(self.metas)}), the manifest"
                f" has {len(specs)}",
                where=where,
            )
        sizes: dict[str, int | str] = {}
        for spec, own in zip(specs, self.specs(), strict=True):
            name = own.name
            if spec.dtype != own.dtype:
                raise UsageError(
                    f"input {name} is {spec.dtype} in the manifest and {own.dtype} in the program",
                    where=where,
                )
            shape = dict(self._shapes())[str(name)]
            if len(spec.shape) != len(shape):
                raise UsageError(
                    f"input {name} has {len(spec.shape)} axes in the manifest and {len(shape)} in"
                    " the program",
                    where=where,
                )
            for place, (axis, size) in enumerate(zip(spec.shape, shape, strict=True)):
                self._check_axis(spec, f"input {name}, axis {place}", axis, size, sizes, where)
        self._check_relations(specs, where)

    def _check_relations(self, specs: Sequence[TensorSpec], where: str | None) -> None:
        """The least, usual and greatest sizes are each sizes of one request."""
        relations = self.relations(specs)
        dims = {axis: span for spec in specs for axis, span in spec.dims.items()}
        spans = {axis: (span[0], span[2]) for axis, span in dims.items()}
        for which, kind in enumerate(("min", "opt", "max")):
            sizes = {axis: span[which] for axis, span in dims.items()}
            allowed = relations.nearest(sizes, spans)
            if not relations.allow(sizes):
                stated = "; ".join(relations.texts())
                raise UsageError(
                    f"the {kind} sizes {_listed(sizes)} cannot be those of one request: the"
                    f" program has {stated}",
                    where=where,
                    fix=f"write {_listed(allowed)} as {kind}" if allowed != sizes else None,
                )

    def _check_axis(
        self,
        spec: TensorSpec,
        which: str,
        axis: int | str,
        size: Any,
        sizes: dict[str, int | str],
        where: str | None,
    ) -> None:
        low, _, high = (axis, axis, axis) if isinstance(axis, int) else spec.dims[axis]
        fix = "narrow the range in the manifest, or export the program again with a wider Dim"
        if not isinstance(size, torch.SymInt):
            if (low, high) != (size, size):
                raise UsageError(
                    f"{which} is {_shown(axis, low, high)} in the manifest, and the program was"
                    f" exported for the size {size} only",
                    where=where,
                    fix=f"write {size}, or export the program again with a Dim for this axis",
                )
            return
        least, most = self.bounds(str(size))
        # torch runs sizes of 0 and 1 where a constraint begins at 2: it starts all of them there
        if low < (0 if least == 2 else least) or (most is not None and high > most):
            limit = f"{least} <= {size}" + (f" <= {most}" if most is not None else "")
            raise UsageError(
                f"{which} is {_shown(axis, low, high)} in the manifest, and the program's"
                f" constraint is {limit}",
                where=where,
                fix=fix,
            )
        if sizes.setdefault(str(size), axis) != axis:
            raise UsageError(
                f"{which} is {axis} in the manifest and {sizes[str(size)]} elsewhere; in the"
                f" program both are the size {size}",
                where=where,
                fix="give both axes one name",
            )


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def _shown(axis: int | str, low: int, high: int) -> str:
    return str(axis) if isinstance(axis, int) else f"{axis} ({low} to {high})"


def _bounds(span: Any) -> tuple[int, int | None]:
    """The bounds of a ValueRanges; infinite ones are sympy's or torch's own."""
    return _finite(span.lower) or 0, _finite(span.upper)


def _finite(bound: Any) -> int | None:
    # infinities of sympy and of torch are no Integer
    number = int(bound) if isinstance(bound, int) or bound.is_Integer else None
    return number if number is not None and abs(number) < 2**31 else None


def _number_dtype(meta: Any) -> str:
    if isinstance(meta, bool | torch.SymBool):
        return "bool"
    return "int64" if isinstance(meta, int | torch.SymInt) else "float64"
