"""Paranoid mode: execute the graph after every pass, and compare its outputs with those before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from builder.errors import LoweringError
from builder.graph_types import Graph
from builder.lowering import ir
from builder.lowering.executor import keep_returned
from builder.lowering.passes import Pass

if TYPE_CHECKING:
    from builder.manifest import TensorSpec


# Decompositions round differently from the fused operators that they replace, in single and in half
# precision.
_RTOL = 1e-3
_ATOL = 1e-4


class Paranoid:
    """Runs the graph repeatedly on the same inputs. `inputs` are tensors in the order of the
    lowered graph's inputs.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._inputs = tuple(inputs)
        self._last: list[torch.Tensor] | None = None

    def check(self, graph: Graph, step: Pass) -> None:
        """Compare with the outputs before this pass. Raises LoweringError with the pass that
        changed them.
        """
        if len(list(graph.inputs())) != len(self._inputs):
            return  # the graph can be run only after its inputs are flattened
        outputs = self._run(graph)
        before = self._last
        self._last = outputs
        if before is None:
            return
        try:
            torch.testing.assert_close(
                outputs, before, rtol=_RTOL, atol=_ATOL, equal_nan=True
            )
        except AssertionError as error:
            raise LoweringError(
                f"pass {step.name} changed the model's outputs: {error}"
            ) from error

    def _run(self, graph: Graph) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_in(execute_graph(graph, [x.clone() for x in self._inputs]))


def execute_graph(
    graph: Graph, inputs: Sequence[torch.Tensor] | tuple[torch.Tensor]
) -> Any:
    """The outputs of a graph for these inputs, executed by torch: one tensor, or a tuple for
    several outputs.
    """
    return ir.C._jit_interpret_graph(packed(graph), tuple(inputs))


def packed(graph: Graph) -> Graph:
    """A copy whose only output is a tuple: a function has one result. The weights are shared with
    this graph.
    """
    copy = graph.copy()
    for node in ir.walk(copy):
        if ir.in_fallback(node):
            node.removeAttribute(ir.FALLBACK)  # it cannot be saved in a file
    keep_returned(copy)
    ir.return_tuple(copy, list(copy.outputs()))
    return copy


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors inside a result in order, flattened like the interface: numbers as tensors,
    without None.
    """
    leaves = pytree.tree_leaves(value)
    return [torch.as_tensor(leaf) for leaf in leaves if leaf is not None]


def seeded(specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Random tensors for the inputs that `specs` describe. Each dynamic axis has the optimum size
    of its range.
    """
    generator = torch.Generator().manual_seed(0)
    return [_random(spec, generator) for spec in specs]


def _random(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    shape = spec.at(spec.dims, 1)
    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)
