"""Which branches, comparisons and bounds of a module its goldens reach.

A golden shows nothing about code that it does not run. The module's graph is copied, inlined and
given observer nodes, then interpreted without optimization on each golden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from builder.frontends import ExportedModule
from builder.lowering import read_attribute, source_location

C: Any = torch._C
"""torch's bindings of the graph, which have no complete annotations."""

_NAMESPACE = "trt_build_coverage"
_COMPARISONS = frozenset(
    f"aten::{name}" for name in ("gt", "lt", "ge", "le", "eq", "ne")
)
_LOWER = "lower bound applied"
_UPPER = "upper bound applied"
_OPEN = "no bound applied"
_TRUE = "true"
_FALSE = "false"
_BOUNDED = {
    "aten::relu": (_LOWER, _OPEN),
    "aten::relu6": (_LOWER, _UPPER, _OPEN),
    "aten::hardtanh": (_LOWER, _UPPER, _OPEN),
    "aten::clamp": (_LOWER, _UPPER, _OPEN),
    "aten::clamp_min": (_LOWER, _OPEN),
    "aten::clamp_max": (_UPPER, _OPEN),
    "aten::threshold": (_OPEN,),
}
"""The outcomes of operators that bound their first input."""


@dataclass(frozen=True)
class Outcome:
    """A possible result of a branch, comparison or bound: the node's number, kind and source
    location, and which result.
    """

    site: int
    kind: str
    where: str
    which: str

    @property
    def is_branch(self) -> bool:
        """Whether this is a branch of the program, and not an element-wise choice."""
        return self.kind in ("prim::If", "prim::Loop")

    @property
    def location(self) -> str:
        """The source location and the kind of node, such as `model.py:12: condition`."""
        name = {"prim::If": "condition", "prim::Loop": "loop condition"}.get(
            self.kind, self.kind.removeprefix("aten::")
        )
        return f"{self.where.removesuffix(':')}: {name}"

    def __str__(self) -> str:
        return f"{self.location}: {self.which}"


class Coverage:
    """The outcomes of a module that can be reached, and those that were reached so far."""

    def __init__(self, module: Any, ranks: Mapping[int, int]) -> None:
        """Instrument `module.forward`. A module that is not a ScriptModule has no outcomes.
        `ranks` has the ranks of arguments (without self) that are the same in each request.
        """
        self.reachable: set[Outcome] = set()
        self.constants: set[float] = set()
        """Numbers that values or sizes are compared with or bounded by."""
        self.sizes: set[int] = set()
        """Integers that are compared with integers: most are thresholds of sizes."""
        self.reached: set[Outcome] = set()
        self._module = module
        self._graph: Any = None
        graph = getattr(module, "graph", None)
        if isinstance(graph, C.Graph):
            self._graph = _without_settings(graph, module, ranks)
            _Instrument(self).block(self._graph)

    @property
    def unreached(self) -> list[Outcome]:
        """The outcomes that no run reached, in program order."""
        return sorted(
            self.reachable - self.reached,
            key=lambda outcome: (outcome.site, outcome.which),
        )

    def run(self, arguments: Sequence[Any]) -> set[Outcome]:
        """Interpret forward on its arguments (without self, defaults filled in) and return the
        outcomes that it reached. Raises the module's exceptions.
        """
        observed = _observations()
        observed.clear()
        if self._graph is None:
            return set()
        if not isinstance(self._module, ExportedModule):
            arguments = (getattr(self._module, "_c", self._module), *arguments)
        with torch.no_grad():
            C._jit_interpret_graph(self._graph, tuple(arguments))
        return {
            outcome
            for outcome in self.reachable
            if (outcome.site, outcome.which) in observed
        }


class _Instrument:
    """Adds observer nodes to a graph and collects what they can observe."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self.graph = coverage._graph
        self.count = 0

    def block(self, block: Any) -> None:
        for node in list(block.nodes()):
            kind = node.kind()
            if kind == "prim::If":
                self._condition(node)
            elif kind == "prim::Loop":
                self._loop(node)
            elif kind in _COMPARISONS:
                self._comparison(node)
            elif kind in _BOUNDED or (kind.endswith("_") and kind[:-1] in _BOUNDED):
                self._bounds(node)
            for inner in node.blocks():
                self.block(inner)

    def _condition(self, node: Any) -> None:
        """Observe both branches, except those that only raise an exception."""
        branches = zip((_TRUE, _FALSE), node.blocks(), strict=True)
        outcomes = [
            which
            for which, block in branches
            if not any(node.kind() == "prim::RaiseException" for node in block.nodes())
        ]
        self._observe(node, outcomes, "condition", node.inputsAt(0))

    def _loop(self, node: Any) -> None:
        """Observe a while loop that data can end: at least one iteration."""
        if node.inputsAt(1).node().kind() == "prim::Constant":
            return
        self._observe(node, [_TRUE], "condition", node.inputsAt(1))

    def _comparison(self, node: Any) -> None:
        numbers = _numbers(node.inputs())
        if not node.output().type().isSubtypeOf(C.TensorType.get()):
            self.coverage.sizes.update(
                int(number) for number in numbers if float(number).is_integer()
            )
            return
        self.coverage.constants.update(
            float(number) for number in numbers if math.isfinite(number)
        )
        exact = node.kind() in ("aten::eq", "aten::ne")
        if exact and not numbers:
            return  # equality of two computed tensors is rarely intended
        if all(use.user.kind() == "aten::Bool" for use in node.output().uses()):
            return  # the condition is observed instead
        self._observe(node, [_TRUE, _FALSE], "elements", node.output())

    def _bounds(self, node: Any) -> None:
        kind = node.kind().rstrip("_")
        arguments = list(node.inputs())
        outcomes = set(_BOUNDED[kind])
        if kind == "aten::clamp":
            for outcome, limit in zip((_LOWER, _UPPER), arguments[1:3], strict=False):
                if limit.type().kind() == "NoneType":
                    outcomes.discard(outcome)
        numbers = _numbers(arguments[1:])
        self.coverage.constants.update(
            float(number) for number in numbers if math.isfinite(number)
        )
        before = arguments[0]
        if node.kind().endswith("_"):
            copy = self.graph.create(
                "aten::clone", [arguments[0], self._constant(node, None)], 1
            )
            copy.insertBefore(node)
            before = copy.output()
        self._observe(node, outcomes, "bounds", before, node.output())

    def _observe(
        self, node: Any, outcomes: Iterable[str], observer: str, *values: Any
    ) -> None:
        """Insert the observer of these values at the node, which can have these outcomes."""
        kind = node.kind().rstrip("_")
        location = source_location(node)
        self.coverage.reachable.update(
            Outcome(self.count, kind, location, which) for which in outcomes
        )
        _observations()  # registers the observers
        site = self._constant(node, self.count)
        inserted = self.graph.create(f"{_NAMESPACE}::{observer}", [site, *values], 0)
        if observer == "condition":
            inserted.insertBefore(node)
        else:
            inserted.insertAfter(node)
        self.count += 1

    def _constant(self, node: Any, value: Any) -> Any:
        self.graph.setInsertPoint(node)
        return self.graph.insertConstant(value)


@lru_cache(maxsize=1)
def _library() -> tuple[Any, set[tuple[int, str]]]:
    """The observers' library, registered once a process, and the set that they write to."""
    observed: set[tuple[int, str]] = set()

    def condition(site: int, value: bool) -> None:
        observed.add((site, _TRUE if value else _FALSE))

    def elements(site: int, value: torch.Tensor) -> None:
        if value.any():
            observed.add((site, _TRUE))
        if (~value).any():
            observed.add((site, _FALSE))

    def bounds(site: int, before: torch.Tensor, after: torch.Tensor) -> None:
        for which, holds in (
            (_LOWER, after > before),
            (_UPPER, after < before),
            (_OPEN, after == before),
        ):
            if holds.any():
                observed.add((site, which))

    library: Any = torch.library.Library(_NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    for schema, function in (
        ("condition(int site, bool value) -> ()", condition),
        ("elements(int site, Tensor value) -> ()", elements),
        ("bounds(int site, Tensor before, Tensor after) -> ()", bounds),
    ):
        library.define(schema)
        library.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
    return library, observed


def _observations() -> set[tuple[int, str]]:
    return _library()[1]


def _without_settings(graph: Any, module: Any, ranks: Mapping[int, int]) -> Any:
    """A copy of the graph, inlined, without the branches that the module's own numbers and strings
    decide (`if self.training`), the device (`if x.is_cuda`), or the ranks of the inputs. Goldens
    are recorded on the CPU.
    """
    graph = graph.copy()
    C._jit_pass_inline(graph)
    for node in graph.findAllNodes("prim::GetAttr"):
        if node.output().type().kind() not in _SETTINGS or not _is_setting(node):
            continue
        value = _attribute(node, module)
        _replace(graph, node, value)
    for node in graph.findAllNodes("prim::is_cuda"):
        _replace(graph, node, value=False)
    _fold(graph)
    arguments = list(graph.inputs())
    if not isinstance(module, ExportedModule):
        del arguments[0]  # self
    _fix_ranks(graph, {arguments[index]: rank for index, rank in ranks.items()})
    _fold(graph)
    C._jit_pass_dce(graph)
    return graph


def _fold(graph: Any) -> None:
    # torch returns to the graph's insertion point, which must be a node that no pass removes
    graph.setInsertPoint(graph.return_node())
    C._jit_pass_constant_propagation_immutable_types(graph)


def _replace(graph: Any, node: Any, value: Any) -> None:
    """Replace the node's output with a constant."""
    graph.setInsertPoint(node)
    node.output().replaceAllUsesWith(graph.insertConstant(value))


def _fix_ranks(graph: Any, ranks: Mapping[Any, int]) -> None:
    """Replace each query of an argument's rank, unless the graph may change the argument."""
    known = {argument.unique(): rank for argument, rank in ranks.items()}
    queries = [
        node
        for node in graph.findAllNodes("aten::dim")
        if node.inputsAt(0).unique() in known
    ]
    if not queries:
        return
    aliases = graph.alias_db()
    for node in queries:
        argument = node.inputsAt(0)
        if not aliases.has_writers(argument):
            _replace(graph, node, known[argument.unique()])


_SETTINGS = frozenset(["BoolType", "IntType", "FloatType", "StringType"])


def _is_setting(node: Any) -> bool:
    """Whether a prim::GetAttr reads the module or one of its submodules, and not an object that
    `forward` creates.
    """
    owner = node.inputsAt(0).node()
    return owner.kind() == "prim::Param" or (
        owner.kind() == "prim::GetAttr" and _is_setting(owner)
    )


def _attribute(node: Any, module: Any) -> Any:
    """The value of a prim::GetAttr whose owners are attributes of the module."""
    owner = node.inputsAt(0).node()
    if owner.kind() == "prim::Param":
        return read_attribute(module._c, node)
    return read_attribute(_attribute(owner, module), node)


def _numbers(values: Iterable[Any]) -> list[float | int]:
    """The values of the constants among these, as in `_number`."""
    known = (_number(value) for value in values)
    return [number for number in known if number is not None]


def _number(value: Any) -> float | int | None:
    """The value of a constant number or one-element tensor; None for anything else."""
    if value.node().kind() == "aten::neg":
        inner = _number(value.node().inputsAt(0))
        return None if inner is None else -inner
    if value.node().kind() != "prim::Constant" or "Enum" in value.type().kind():
        return None
    known = value.toIValue()
    if (
        isinstance(known, torch.Tensor)
        and known.numel() == 1
        and not known.is_complex()
    ):
        known = known.item()
    if isinstance(known, int | float) and not isinstance(known, bool):
        return known
    return None
