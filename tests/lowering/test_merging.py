"""Equal constants and equal operators, once each: what is equal, what only looks so, and from where
it is seen.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import builder
from builder.lowering import ir
from builder.lowering.passes.merging import (
    eliminate_common_subexpressions,
    pool_constants,
)


def _with_constants(*values: Any) -> Any:
    """A graph with these constants, each of them read."""
    graph = torch._C.parse_ir("graph(%x : Tensor):\n  return (%x)")
    for value in values:
        made = ir.insert_constant(graph, value, graph.return_node())
        graph.registerOutput(made)
    return graph


def _pooled(*values: Any) -> list[int]:
    """For each value the place of the first constant that it is one with."""
    graph = _with_constants(*values)
    pool_constants(graph)
    kept = [value.unique() for value in graph.outputs()][1:]
    return [kept.index(value) for value in kept]


ONES = torch.ones(3, 4)
ALMOST = torch.ones(1000)
ALMOST[500] = 2
QUANTIZED = torch.quantize_per_tensor(ONES, 0.5, 0, torch.qint8)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (ONES, ONES.clone(), True),
        (ONES, ONES.t().contiguous(), False),
        (ONES, ONES.double(), False),
        (ONES, ONES.view(torch.int32), False),
        (ONES, torch.ones(4, 3).t(), False),
        (torch.ones(1000), ALMOST, False),
        (torch.zeros(2), -torch.zeros(2), False),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), True),
        (torch.ones(0), torch.ones(0), True),
        (torch.ones(0), torch.ones(0, 2), False),
        (QUANTIZED, torch.quantize_per_tensor(ONES, 0.25, 0, torch.qint8), False),
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (0.1, 0.1, True),
        (0.1, 0.1 + 2e-17, False),
        (0.0, -0.0, False),
        ([1, 2], [1, 2], True),
        ([1, 2], [1.0, 2.0], False),
        ("a = b(%c) # d", "a = b(%c) # d", True),
        ("a", "b", False),
        ('"', "'", False),
        (None, None, True),
        ([ONES], [ONES], False),
    ],
)
def test_constants_are_one_when_they_are_the_same_to_the_bit(
    one: Any, other: Any, equal: bool
) -> None:
    assert _pooled(one, "between", other) == [0, 1, 0 if equal else 2]


def test_a_constant_of_a_branch_serves_the_other_one() -> None:
    def f(x):
        if bool(x.sum() > 0):
            return x * 3.5
        return x + 3.5

    graph = torch.jit.script(f).graph.copy()
    ir.replace(
        graph.findNode("prim::Constant"),
        [ir.insert_constant(graph, 3.5, graph.findNode("prim::If"))],
    )
    for node in ir.nodes_of(graph, "aten::mul", "aten::add"):
        node.replaceInput(1, ir.insert_constant(graph, 3.5, node))
    pool_constants(graph)
    graph.lint()
    assert (
        len(
            [
                n
                for n in ir.nodes_of(graph, "prim::Constant")
                if n.output().toIValue() == 3.5
            ]
        )
        == 1
    )


def _merged(text: str) -> Any:
    graph = torch._C.parse_ir(text)
    eliminate_common_subexpressions(graph)
    graph.lint()
    return graph


def test_equal_operators_follow_from_equal_operators() -> None:
    graph = _merged("""graph(%x : Tensor):
      %a : Tensor = aten::relu(%x)
      %b : Tensor = aten::relu(%x)
      %c : Tensor = aten::tanh(%a)
      %d : Tensor = aten::tanh(%b)
      %e : Tensor = aten::mul(%c, %d)
      return (%e)""")
    assert [node.kind() for node in graph.nodes()] == [
        "aten::relu",
        "aten::tanh",
        "aten::mul",
    ]


def test_what_was_made_before_an_if_is_seen_in_it_and_no_further() -> None:
    graph = _merged("""graph(%x : Tensor, %c : bool):
      %a : Tensor = aten::relu(%x)
      %y : Tensor = prim::If(%c)
        block0():
          %b : Tensor = aten::relu(%x)
          %t : Tensor = aten::tanh(%b)
          -> (%t)
        block1():
          %u : Tensor = aten::tanh(%a)
          -> (%u)
      %v : Tensor = aten::tanh(%a)
      %w : Tensor = aten::mul(%y, %v)
      return (%w)""")
    assert (
        len(ir.nodes_of(graph, "aten::relu")) == 1
        and len(ir.nodes_of(graph, "aten::tanh")) == 3
    )


def test_two_outputs_stay_two_values() -> None:
    graph = _merged("""graph(%x : Tensor):
      %a : Tensor = aten::relu(%x)
      %b : Tensor = aten::relu(%x)
      return (%a, %b)""")
    assert len(ir.nodes_of(graph, "aten::relu")) == 2


def test_what_is_random_or_of_another_type_is_not_equal() -> None:
    graph = _merged("""graph(%x : Tensor):
      %none : NoneType = prim::Constant()
      %a : Tensor = aten::rand_like(%x, %none, %none, %none, %none, %none)
      %b : Tensor = aten::rand_like(%x, %none, %none, %none, %none, %none)
      %i : int[] = prim::ListConstruct()
      %f : float[] = prim::ListConstruct()
      %j : int[] = prim::ListConstruct()
      %c : Tensor = aten::add(%a, %b, %i, %f, %j)
      return (%c)""")
    kinds = [node.kind() for node in graph.nodes()]
    assert (
        kinds.count("aten::rand_like") == 2 and kinds.count("prim::ListConstruct") == 2
    )


def test_a_graph_that_writes_is_left_to_torch() -> None:
    graph = _merged("""graph(%x : Tensor):
      %one : int = prim::Constant[value=1]()
      %a : Tensor = aten::add(%x, %one, %one)
      %b : Tensor = aten::add(%x, %one, %one)
      %c : Tensor = aten::add_(%a, %one, %one)
      %d : Tensor = aten::mul(%c, %b)
      return (%d)""")
    assert len(ir.nodes_of(graph, "aten::add")) == 2


def test_marked_operators_are_never_one_with_unmarked_ones() -> None:
    graph = torch._C.parse_ir("""graph(%x : Tensor):
      %a : Tensor = aten::relu(%x)
      %b : Tensor = aten::relu(%x)
      %c : Tensor = aten::mul(%a, %b)
      return (%c)""")
    ir.mark(graph.findNode("aten::relu"))
    eliminate_common_subexpressions(graph)
    assert len(ir.nodes_of(graph, "aten::relu")) == 2


def test_equal_weights_of_a_model_are_one() -> None:
    model = torch.nn.Sequential(
        torch.nn.BatchNorm1d(40), torch.nn.BatchNorm1d(40)
    ).eval()
    graph = builder.lower(torch.jit.script(model)).graph
    held = [
        n
        for n in ir.nodes_of(graph, "prim::Constant")
        if isinstance(n.output().toIValue(), torch.Tensor)
    ]
    assert len(held) == 2  # zeros and ones
