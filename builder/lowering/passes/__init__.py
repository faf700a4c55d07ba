"""A pass: a function that rewrites a graph in place, with a name and its promises.

Each pass has its own file, or several similar passes share a table. `builder.lowering.pipeline`
orders them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.graph_types import Graph
from builder.lowering.scoping import Line

Rewrite = Callable[[Any, "Context"], None]


@dataclass
class Context:
    """Data that a pass reads or writes besides the graph.

    `unroll_limit` is the largest known trip count of a loop that is unrolled. `fallback_modules`
    are the qualified or class names of modules that must run in torch. `specs` describe the graph's
    inputs in order, if the caller knows them. `max_lengths` has the maximum length of each list
    among the outputs, by name. `lines` are the lines of the graph's text before a pass, and `kinds`
    counts its nodes; both are known only while passes run one after the other.
    """

    unroll_limit: int = 64
    keep: frozenset[str] = frozenset()
    fallback_modules: tuple[str, ...] = ()
    optional_inputs: tuple[str, ...] = ()
    inputs: list[str] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    """The names of the outputs, set while outputs are flattened. So are the next two."""
    flags: dict[str, str] = field(default_factory=dict)
    """By output that may be None, the output that is true if it is not."""
    decided_at: dict[str, str] = field(default_factory=dict)
    """By output that may be None, the source line that decides it."""
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    too_long: dict[str, str] = field(default_factory=dict)
    """By list in `max_lengths`, the output that is true if the list is longer."""
    groups: dict[str, str] = field(default_factory=dict)
    """By output that is an element of such a list, the name of the list."""
    unchecked: list[str] = field(default_factory=list)
    """The source lines of conditions on data for which forward raises."""
    specs: Sequence[Any] = ()
    weakly_typed: bool = False
    """Whether TensorRT may choose the precision of each layer, as TensorRT 8.6 does."""
    precision: Callable[[Any], None] | None = None
    lines: Sequence[Line] | None = None
    kinds: Mapping[str, int] | None = None

    def present(self, *kinds: str) -> tuple[str, ...]:
        """The `kinds` that occur in the graph, or all of them if that is not known. Each kind costs
        a search through the whole graph.
        """
        if self.kinds is None:
            return kinds
        return tuple(kind for kind in kinds if self.kinds.get(kind))


@dataclass(frozen=True)
class Pass:
    """A rewrite and its promises: the node kinds that it removes, and whether the graph's inputs
    and outputs may change in type or number.
    """

    name: str
    rewrite: Rewrite
    removes: tuple[str, ...] = ()
    changes_interface: bool = False
    builtin: bool = True
    touches: tuple[str, ...] = ()
    enabled: Callable[[Context], bool] | None = None
    defined_at: str = ""
    """File and line of a pass that a user added."""

    def applies(self, kinds: Mapping[str, int], context: Context) -> bool:
        """Whether this pass is enabled and the graph has nodes that it could rewrite. `kinds`
        counts the graph's nodes.
        """
        if self.enabled is not None and not self.enabled(context):
            return False
        return not self.touches or any(kinds.get(kind) for kind in self.touches)

    def __call__(self, graph: Graph, context: Context | None = None) -> None:
        self.rewrite(graph, context or Context())

    @property
    def doc(self) -> str:
        """The docstring of the rewrite."""
        return (self.rewrite.__doc__ or "").strip()


def lowering_pass(
    name: str,
    *,
    removes: tuple[str, ...] = (),
    changes_interface: bool = False,
    builtin: bool = True,
    touches: tuple[str, ...] = (),
    enabled: Callable[[Context], bool] | None = None,
) -> Callable[[Rewrite], Pass]:
    """Declare a pass; the decorated name becomes the Pass."""

    def declare(rewrite: Rewrite) -> Pass:
        return Pass(
            name, rewrite, removes, changes_interface, builtin, touches, enabled
        )

    return declare
