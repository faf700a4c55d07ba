"""The inputs of a program as TensorSpecs: dtypes, fixed sizes, and the ranges of dynamic axes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from builder.dtypes import ENDPOINT_DTYPES, name_of
from builder.errors import UsageError
from builder.frontends.export.guards import Demands
from builder.frontends.export.relations import Relations
from builder.manifest import Range, TensorSpec, axis_ranges
from builder.names import unique_name

_ANY = 2**31 - 1
"""The bound of an unbounded axis."""
_SHOWN = 3
"""The maximum number of conditions in a message."""
MOST = 512
"""The largest size of an axis without an upper bound, or twice its lower bound if that is
larger.
"""
_NAMES = {2: ("length",), 3: ("length", "width"), 4: ("channels", "height", "width")}
"""Default names of the axes after the first, by rank."""


class Axes:
    """The dynamic axes of a program by size expression."""

    def __init__(
        self, metas: Mapping[str, Any], program: torch.export.ExportedProgram
    ) -> None:
        """`metas` are the fake tensors of the inputs by name."""
        self.metas = metas
        self._program = program
        self._specs: tuple[TensorSpec, ...] | None = None
        self.unresolved: tuple[str, ...] = ()
        """The conditions that the sizes of `specs` violate, because no sizes were found that
        satisfy them.
        """

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """The name of each axis, by its size expression."""
        names: dict[str, str] = {}
        for _, shape in self._shapes():
            for index, size in enumerate(shape):
                if isinstance(size, torch.SymInt) and str(size) not in names:
                    names[str(size)] = _axis_name(
                        index, len(shape), set(names.values())
                    )
        return names

    @functools.cached_property
    def _bounds(self) -> dict[str, tuple[int, int | None]]:
        constraints = self._program.range_constraints
        return {str(size): _bounds(span) for size, span in constraints.items()}

    def _shapes(self) -> Iterator[tuple[str, Sequence[Any]]]:
        for name, meta in self.metas.items():
            yield name, meta.shape if isinstance(meta, torch.Tensor) else ()

    def specs(self) -> tuple[TensorSpec, ...]:
        """Return a spec for each input, in order, with the ranges of the program.

        The minimum, optimum and maximum sizes are each accepted by the program in one request.
        """
        if self._specs is None:
            specs = self._stated()
            chosen = self._accepted(specs)
            self._specs = tuple(
                replace(spec, dims={axis: chosen[axis] for axis in spec.dims})
                for spec in specs
            )
        return self._specs

    def _stated(self) -> tuple[TensorSpec, ...]:
        """Like `specs`, but the ends of the ranges need not be valid in one request."""
        return tuple(self._spec(name, meta) for name, meta in self.metas.items())

    def _accepted(self, specs: Sequence[TensorSpec]) -> dict[str, Range]:
        """The ranges of the axes, with sizes that the program accepts."""
        dims = axis_ranges(specs)
        relations = self.relations(specs)
        highest = {name: self.bounds(size)[1] for size, name in self.names.items()}
        lowest = {axis: span[0] for axis, span in dims.items()}
        bounds = {axis: (lowest[axis], highest[axis] or _ANY) for axis in dims}
        low = relations.nearest(lowest, bounds)
        bounds = {axis: (low[axis], bounds[axis][1]) for axis in dims}
        largest = {axis: span[2] for axis, span in dims.items()}
        high = relations.nearest(largest, bounds)
        bounds = {axis: (low[axis], max(low[axis], high[axis])) for axis in dims}
        middle = {axis: span[1] for axis, span in dims.items()}
        usual = relations.nearest(middle, bounds)
        refused = itertools.chain(
            *(relations.refusals(sizes) for sizes in (low, usual, high))
        )
        self.unresolved = tuple(dict.fromkeys(refused))
        return {axis: (low[axis], usual[axis], high[axis]) for axis in dims}

    def relations(
        self, specs: Sequence[TensorSpec], *, guarded: bool = True
    ) -> Relations:
        """The relations between the axes and the program's conditions on them (`guarded`), with
        their names in these specs.
        """
        sizes = [[_expression(size) for size in shape] for _, shape in self._shapes()]
        names: list[Sequence[int | str]] = [spec.shape for spec in specs]
        pairs = []
        for axes, input_sizes in zip(names, sizes, strict=True):
            for axis, size in zip(axes, input_sizes, strict=True):
                if not isinstance(size, int):
                    pairs.append((axis, size))
        fixed: dict[Any, Any] = {
            size: axis
            for axis, size in pairs
            if isinstance(axis, int) and size.is_Symbol
        }
        if guarded:
            fixed |= self._demands.equalities(fixed)
        expressions = {}
        for axis, size in pairs:
            if isinstance(axis, str):
                expressions[axis] = size.subs(fixed) if fixed else size
        if not guarded:
            return Relations(expressions)
        for index, (name, meta) in enumerate(self.metas.items()):
            if isinstance(meta, torch.SymInt):
                names[index], sizes[index] = [name], [meta.node.expr]
        return Relations(expressions, self._demands.conditions(names, sizes, fixed))

    @functools.cached_property
    def _demands(self) -> Demands:
        return Demands(self._program)

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
        return TensorSpec(_tensor_dtype(name, meta), shape, dims=dims, name=name)

    def _range(self, size: str) -> Range:
        low, high = self.bounds(size)
        low = max(low, 1)
        most = max(MOST, 2 * low) if high is None else high
        usual = 8 if self.names[size].startswith("batch") else (low + most) // 2
        return low, min(max(low, usual), most), most

    def chosen(self, specs: Sequence[TensorSpec] | None) -> tuple[TensorSpec, ...]:
        """Return the specs with the names of the inputs; the program's own if none are given.

        Raises UsageError like `check`.
        """
        if specs is None:
            return self.specs()
        self.check(specs, guarded=False)
        pairs = zip(specs, self.metas, strict=True)
        return tuple(replace(spec, name=spec.name or name) for spec, name in pairs)

    def comment(self, axis: str) -> str:
        """The program's constraint of an axis of `specs`, as a comment."""
        sizes = [size for size, name in self.names.items() if name == axis]
        low, high = self.bounds(sizes[0])
        stated = f"the program allows {low} and more"
        if high is not None:
            stated = f"the program allows {low} to {high}"
        if self.unresolved:
            missing = "; ".join(self.unresolved[:_SHOWN])
            return (
                f"? no sizes were found that the program accepts ({missing}); {stated}"
            )
        return f"? {stated}" if high is None else stated

    def bounds(self, size: str) -> tuple[int, int | None]:
        """The minimum and maximum value of a size; None without an upper bound."""
        return self._bounds.get(size, (0, None))

    def check(
        self,
        specs: Sequence[TensorSpec],
        where: str | None = None,
        *,
        guarded: bool = True,
    ) -> None:
        """Raise UsageError if a spec allows inputs that the program does not.

        These are another rank, dtype or fixed size, a range beyond the constraint, or different
        sizes if the program requires equal ones. Reading the guards takes a tenth of the conversion
        time of a small network. With `guarded` False they are not read: the program itself runs at
        these sizes, or never.
        """
        if len(specs) != len(self.metas):
            raise UsageError(
                f"the program has {len(self.metas)} inputs ({', '.join(self.metas)}), the manifest"
                f" has {len(specs)}",
                where=where,
            )
        sizes: dict[str, int | str] = {}
        for spec, exported in zip(specs, self._stated(), strict=True):
            shape = dict(self._shapes())[str(exported.name)]
            _check_type(spec, exported, len(shape), where)
            for index, (axis, size) in enumerate(zip(spec.shape, shape, strict=True)):
                description = f"input {exported.name}, axis {index}"
                self._check_axis(spec, description, axis, size, sizes, where)
        self._check_relations(specs, where, guarded)

    def _check_relations(
        self, specs: Sequence[TensorSpec], where: str | None, guarded: bool
    ) -> None:
        """Check that the minimum, optimum and maximum sizes are each valid in one request."""
        relations = self.relations(specs, guarded=guarded)
        if not relations.derived and not relations.conditions:
            return
        dims = axis_ranges(specs)
        spans = {axis: (span[0], span[2]) for axis, span in dims.items()}
        for index, kind in enumerate(("min", "opt", "max")):
            sizes = {axis: span[index] for axis, span in dims.items()}
            refused = relations.refusals(sizes)
            if not refused:
                continue
            allowed = relations.nearest(sizes, spans)
            raise UsageError(
                f"the {kind} sizes {_listed(sizes)} cannot be those of one request: the program"
                f" needs {'; '.join(refused[:_SHOWN])}",
                where=where,
                fix=f"write {_listed(allowed)} as {kind}" if allowed != sizes else None,
            )

    def _check_axis(
        self,
        spec: TensorSpec,
        description: str,
        axis: int | str,
        size: Any,
        sizes: dict[str, int | str],
        where: str | None,
    ) -> None:
        low, _, high = (axis, axis, axis) if isinstance(axis, int) else spec.dims[axis]
        in_manifest = f"{description} is {_shown(axis, low, high)} in the manifest"
        if not isinstance(size, torch.SymInt):
            if (low, high) != (size, size):
                raise UsageError(
                    f"{in_manifest}, and the program was exported for the size {size} only",
                    where=where,
                    fix=f"write {size}, or export the program again with a Dim for this axis",
                )
            return
        self._check_range(in_manifest, low, high, size, where)
        if sizes.setdefault(str(size), axis) != axis:
            raise UsageError(
                f"{description} is {axis} in the manifest and {sizes[str(size)]} elsewhere; in the"
                f" program both are the size {size}",
                where=where,
                fix="give both axes one name",
            )

    def _check_range(
        self, in_manifest: str, low: int, high: int, size: Any, where: str | None
    ) -> None:
        least, most = self.bounds(str(size))
        # torch also accepts 0 and 1 for a range that begins at 2, where it starts every range
        accepted = 0 if least == 2 else least
        if low < accepted or (most is not None and high > most):
            limit = f"{least} <= {size}"
            if most is not None:
                limit += f" <= {most}"
            raise UsageError(
                f"{in_manifest}, and the program's constraint is {limit}",
                where=where,
                fix="narrow the range in the manifest, or export the program again with a wider"
                " Dim",
            )


def _check_type(
    spec: TensorSpec, exported: TensorSpec, rank: int, where: str | None
) -> None:
    """Check the dtype and the rank of a spec. `exported` is that of the program."""
    if spec.dtype != exported.dtype:
        raise UsageError(
            f"input {exported.name} is {spec.dtype} in the manifest and {exported.dtype} in the"
            " program",
            where=where,
        )
    if len(spec.shape) != rank:
        raise UsageError(
            f"input {exported.name} has {len(spec.shape)} axes in the manifest and {rank} in the"
            " program",
            where=where,
        )


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def _shown(axis: int | str, low: int, high: int) -> str:
    if isinstance(axis, int):
        return str(axis)
    return f"{axis} ({low} to {high})"


def _axis_name(index: int, rank: int, used: Collection[str]) -> str:
    """A name for the axis at `index` of an input of this rank, unlike those in use."""
    usual = ("batch", *_NAMES.get(rank, ()))
    name = usual[index] if index < len(usual) else f"axis_{index}"
    return unique_name(name, used)


def _bounds(span: Any) -> tuple[int, int | None]:
    """The bounds of a ValueRanges. Infinite bounds have types of sympy or torch."""
    return _finite(span.lower) or 0, _finite(span.upper)


def _finite(bound: Any) -> int | None:
    # infinities of sympy and of torch are not Integer
    number = None
    if isinstance(bound, int) or bound.is_Integer:
        number = int(bound)
    if number is not None and abs(number) < 2**31:
        return number
    return None


def _tensor_dtype(name: str, meta: torch.Tensor) -> str:
    """The name of a tensor's dtype. Raises UsageError for one that no endpoint has."""
    dtype = name_of(meta.dtype)
    if dtype not in ENDPOINT_DTYPES:
        raise UsageError(
            f"input {name} of the program is {dtype}, and an endpoint has none of that dtype",
            fix="export the model with an input of one of "
            f"{', '.join(ENDPOINT_DTYPES)}, and cast it in the model",
        )
    return dtype


def _number_dtype(meta: Any) -> str:
    if isinstance(meta, bool | torch.SymBool):
        return "bool"
    if isinstance(meta, int | torch.SymInt):
        return "int64"
    return "float64"


def _expression(size: Any) -> Any:
    """The expression of a symbolic size; a fixed size as it is."""
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return size
