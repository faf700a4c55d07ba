"""Equal constants merge, and equal operators merge: which are equal, which only look equal, and in
which blocks.
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
    """A graph that returns these constants."""
    graph = torch._C.parse_ir("graph(%x : Tensor):\n  return (%x)")
    for value in values:
        constant = ir.insert_constant(graph, value, graph.return_node())
        graph.registerOutput(constant)
    return graph


def _pooled(*values: Any) -> list[int]:
    """For each value, the index of the first constant that it merges with."""
    graph = _with_constants(*values)
    pool_constants(graph)
    outputs = [value.unique() for value in graph.outputs()][1:]
    return [outputs.index(value) for value in outputs]


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
        (torch.ones(3).as_strided((1, 1), (3, 3)), torch.ones(1, 1), True),
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
def test_constants_merge_only_if_bitwise_equal(
    one: Any, other: Any, equal: bool
) -> None:
    assert _pooled(one, "between", other) == [0, 1, 0 if equal else 2]


def test_equal_constants_of_two_branches_merge() -> None:
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


def test_operators_of_merged_operands_merge() -> None:
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


def test_operators_merge_into_a_branch_but_not_out_of_it() -> None:
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


def test_equal_graph_outputs_stay_separate() -> None:
    graph = _merged("""graph(%x : Tensor):
      %a : Tensor = aten::relu(%x)
      %b : Tensor = aten::relu(%x)
      return (%a, %b)""")
    assert len(ir.nodes_of(graph, "aten::relu")) == 2


def test_random_operators_and_lists_of_other_types_stay_separate() -> None:
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


def test_operators_of_graph_with_writes_stay_separate() -> None:
    graph = _merged("""graph(%x : Tensor):
      %one : int = prim::Constant[value=1]()
      %a : Tensor = aten::add(%x, %one, %one)
      %b : Tensor = aten::add(%x, %one, %one)
      %c : Tensor = aten::add_(%a, %one, %one)
      %d : Tensor = aten::mul(%c, %b)
      return (%d)""")
    assert len(ir.nodes_of(graph, "aten::add")) == 2


def test_fallback_operators_do_not_merge_with_others() -> None:
    graph = torch._C.parse_ir("""graph(%x : Tensor):
      %a : Tensor = aten::relu(%x)
      %b : Tensor = aten::relu(%x)
      %c : Tensor = aten::mul(%a, %b)
      return (%c)""")
    ir.mark(graph.findNode("aten::relu"))
    eliminate_common_subexpressions(graph)
    assert len(ir.nodes_of(graph, "aten::relu")) == 2


def test_equal_weights_of_a_model_merge() -> None:
    model = torch.nn.Sequential(
        torch.nn.BatchNorm1d(40), torch.nn.BatchNorm1d(40)
    ).eval()
    graph = builder.lower(torch.jit.script(model)).graph
    tensors = [
        n
        for n in ir.nodes_of(graph, "prim::Constant")
        if isinstance(n.output().toIValue(), torch.Tensor)
    ]
    assert len(tensors) == 2  # zeros and ones


@pytest.mark.parametrize(
    ("dropout", "train", "random"), [(0.5, 0, None), (0.0, 1, None), (0.5, 1, "lstm")]
)
def test_recurrent_layer_without_dropout_is_not_random(
    dropout: float, train: int, random: str | None
) -> None:
    """Errors named it in place of the dropout of another layer."""
    graph = torch._C.parse_ir(f"""graph(%x : Tensor, %h : Tensor[], %p : Tensor[]):
      %b : bool = prim::Constant[value=1]()
      %layers : int = prim::Constant[value=2]()
      %dropout : float = prim::Constant[value={dropout}]()
      %train : bool = prim::Constant[value={train}]()
      %y : Tensor, %hn : Tensor, %cn : Tensor = aten::lstm(
          %x, %h, %p, %b, %layers, %dropout, %train, %b, %b)
      return (%y)""")
    assert ir.random_operator(graph) == (random and f"aten::{random}")
