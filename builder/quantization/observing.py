"""Run a graph with observers: nodes that read a tensor and return it.

An observer reads its tensor while the graph runs, so that no additional memory is needed, and
tensors in loops and branches are also observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import execute_graph, ir

Observer = Callable[..., None]
_observers: list[Observer] = []
"""The observers of the current run. A node refers to its observer by index."""

_TORCH: Any = torch.library  # no type information
_LIBRARY = _TORCH.Library("trt_build", "FRAGMENT")
_LIBRARY.define("observe(Tensor(a) x, int observer) -> Tensor(a)")
_LIBRARY.define("observe_both(Tensor(a) x, Tensor other, int observer) -> Tensor(a)")


def _observe(x: torch.Tensor, observer: int) -> torch.Tensor:
    _observers[observer](x)
    return x


def _observe_both(x: torch.Tensor, second: torch.Tensor, observer: int) -> torch.Tensor:
    _observers[observer](x, second)
    return x


_LIBRARY.impl("observe", _observe, "CompositeExplicitAutograd")
_LIBRARY.impl("observe_both", _observe_both, "CompositeExplicitAutograd")


def watch_input(graph: Graph, node: Node, index: int, observer: int) -> None:
    """Insert a node that passes an input of the node to an observer whenever the node runs."""
    args = [node.inputsAt(index), ir.insert_constant(graph, observer, node)]
    node.replaceInput(
        index, ir.insert(graph, "trt_build::observe", args, node).output()
    )


def values(graph: Graph) -> list[Value]:
    """The inputs of the graph, then the values that it computes at any depth, in program order.
    Values that a loop carries are with the loop.
    """
    graph_values = list(graph.inputs())
    for node in ir.walk(graph):
        if node.kind() != "prim::Constant":
            graph_values += node.outputs()
        for block in ir.blocks_of(node):
            graph_values += block.inputs()
    return graph_values


def watch_value(graph: Graph, value: Value, observer: int) -> None:
    """Insert a node that passes a value of the graph to an observer whenever it is computed.
    Parameters of an empty block are not observed.
    """
    producer = value.node()
    following = next(iter(producer.owningBlock().nodes()), None)
    if following is None:
        return
    number = graph.insertConstant(observer)
    observed = graph.create("trt_build::observe", [value, number], 1)
    if producer.kind() == "prim::Param":
        number.node().moveBefore(following)
    else:
        number.node().moveAfter(producer)
    observed.insertAfter(number.node())
    value.replaceAllUsesAfterNodeWith(observed, observed.output())


def watch_both(graph: Graph, node: Node, later: Node, observer: int) -> None:
    """Insert a node that passes the output of the node, and of another node after it, to an
    observer.
    """
    args = [node.output(), later.output(), ir.insert_constant(graph, observer, node)]
    observed = graph.create("trt_build::observe_both", args, 1)
    observed.insertAfter(later)
    node.output().replaceAllUsesAfterNodeWith(observed, observed.output())


def run(
    graph: Graph,
    observers: Sequence[Observer],
    batches: Iterable[Sequence[torch.Tensor]],
) -> None:
    """Run the graph once for each batch, and call its observers."""
    _observers[:] = observers
    try:
        with torch.no_grad():
            for batch in batches:
                execute_graph(graph, batch)
    finally:
        _observers.clear()
