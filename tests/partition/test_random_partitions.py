"""Partitions of random graphs with random support masks: the segments equal the whole graph."""

from __future__ import annotations

import itertools
import unittest.mock
from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import builder
from builder.lowering import LoweredGraph
from builder.manifest.spec import Fallback, TensorSpec
from builder.partition import Partition, split
from builder.partition.repeats import Repeats
from builder.partition.shapes import infer_shapes
from builder.partition.support import support

BATCH = {"b": (1, 2, 3)}
SPECS = (
    TensorSpec("float32", ("b", 4), BATCH, "x"),
    TensorSpec("int64", ("b", 4), BATCH, "n"),
)
EXAMPLES = pytest.mark.parametrize(
    "examples", [20, pytest.param(200, marks=pytest.mark.slow)]
)
"""How many random programs a test checks."""
UNARY = ("aten::relu({})", "aten::neg({})", "aten::abs({})", "aten::clone({}, %none)")
BINARY = ("aten::add({}, {}, %one)", "aten::mul({}, {})", "aten::maximum({}, {})")


def on_programs(
    *more: st.SearchStrategy[Any],
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Decorates a test of one random program, with a value of each of `more`."""

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        def test(examples: int) -> None:
            limited = settings(max_examples=examples, deadline=None)
            limited(given(programs(), *more)(check))()

        return EXAMPLES(test)

    return decorate


@st.composite
def programs(draw: st.DrawFn) -> tuple[LoweredGraph, set[int]]:
    """A graph over a float and an int64 input, with lists, sizes, repeated and passed-through
    outputs; and the nodes that shall stay in torch.
    """
    lines = [
        "graph(%x : Tensor, %n : Tensor):",
        "  %one : int = prim::Constant[value=1]()",
    ]
    lines += [
        "  %none : NoneType = prim::Constant()",
        "  %zero : int = prim::Constant[value=0]()",
    ]
    values = ["%x", "%n"]
    for index in range(draw(st.integers(1, 14))):
        operands = [draw(st.sampled_from(values)) for _ in range(2)]
        form = draw(st.sampled_from([*UNARY, *BINARY, "list", "size"]))
        if form == "list":
            lines.append(
                f"  %l{index} : Tensor[] = prim::ListConstruct({', '.join(operands)})"
            )
            lines.append(f"  %c{index} : Tensor = aten::cat(%l{index}, %one)")
            lines.append(
                f"  %v{index} : Tensor = aten::narrow(%c{index}, %one, %one, %four)"
            )
        elif form == "size":
            lines.append(f"  %s{index} : int = aten::size({operands[0]}, %zero)")
            lines.append(
                f"  %v{index} : Tensor = aten::add({operands[1]}, %s{index}, %one)"
            )
        else:
            call = form.format(*operands[: form.count("{}")])
            lines.append(f"  %v{index} : Tensor = {call}")
        values.append(f"%v{index}")
    lines.insert(1, "  %four : int = prim::Constant[value=4]()")
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    graph = torch._C.parse_ir("\n".join([*lines, f"  return ({', '.join(outputs)})"]))
    count = len(list(graph.nodes()))
    in_torch = draw(st.sets(st.integers(0, count - 1)))
    return LoweredGraph(
        graph, ("x", "n"), tuple(f"out{i}" for i in range(len(outputs)))
    ), in_torch


def run(parts: Partition, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    values = all_values(parts, inputs)
    return [values[name] for name in parts.outputs]


def all_values(
    parts: Partition, inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors that the segments read and compute."""
    values = dict(inputs)
    for segment in parts.segments:
        outputs = segment.lowered.run(*(values[name] for name in segment.inputs))
        values.update(zip(segment.outputs, outputs, strict=True))
    return values


@on_programs(st.integers(1, 3))
def test_segments_match_the_whole_graph(
    program: tuple[LoweredGraph, set[int]], least: int
) -> None:
    lowered, in_torch = program
    parts = split(
        lowered, SPECS, (BATCH,), Fallback(min_block_size=least), in_torch=in_torch
    )
    inputs = {"x": torch.randn(3, 4), "n": torch.randint(-5, 5, (3, 4))}
    wanted = lowered.run(*inputs.values())
    for got, expected in zip(run(parts, inputs), wanted, strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@on_programs()
def test_kept_nodes_are_in_no_engine_and_boundaries_have_specs(
    program: tuple[LoweredGraph, set[int]],
) -> None:
    lowered, in_torch = program
    parts = split(
        lowered, SPECS, (BATCH,), Fallback(min_block_size=1), in_torch=in_torch
    )
    work = [
        index
        for segment in parts.segments
        for index in segment.indices
        if _outputs_a_tensor(lowered, index)
    ]
    every = [
        index
        for index in range(len(list(lowered.graph.nodes())))
        if _outputs_a_tensor(lowered, index)
    ]
    assert sorted(work) == every, "a node that computes a tensor is in one segment"
    for segment in parts.segments:
        assert all(spec is not None for spec in (*segment.specs, *segment.output_specs))
        if segment.kind == "tensorrt":
            assert not [
                i
                for i in segment.indices
                if i in in_torch and _outputs_a_tensor(lowered, i)
            ]


@on_programs()
def test_repeated_nodes_have_the_same_support_as_converted_ones(
    program: tuple[LoweredGraph, set[int]],
) -> None:
    lowered, in_torch = program
    shapes = infer_shapes(lowered, SPECS, (BATCH,))
    decided = support(lowered, SPECS, shapes, in_torch=in_torch).refused
    with unittest.mock.patch.object(Repeats, "find", return_value=(None, None)):
        tried = support(lowered, SPECS, shapes, in_torch=in_torch).refused
    assert decided.keys() == tried.keys()


def _outputs_a_tensor(lowered: LoweredGraph, index: int) -> bool:
    nodes = list(lowered.graph.nodes())
    return index < len(nodes) and any(
        str(v.type()) == "Tensor" for v in nodes[index].outputs()
    )


class SetOnOnePath(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: Optional[torch.Tensor] = None  # noqa: UP045
        if bool(x.sum() > 0):
            y = x * 2
        z = y
        if bool(x[0, 0] > 1):
            z = None
        if z is not None and y is not None:
            return z + y
        elif y is not None:
            return y - 1
        return x + 100


@pytest.mark.parametrize("kept", [set(), {3, 12, 15}, {6, 8}, {9, 10, 13, 15, 18, 19}])
def test_segments_pass_on_values_that_a_branch_leaves_unset(kept: set[int]) -> None:
    """Torch cannot return an unset value. The program never reads it. An engine that did could
    refuse its sizes.
    """
    module = torch.jit.script(SetOnOnePath())
    lowered = builder.lower(module, specs=SPECS[:1])
    parts = split(
        lowered, SPECS[:1], (BATCH,), Fallback(min_block_size=1), in_torch=kept
    )
    for rows, number in itertools.product((1, 3), (-1.0, 0.25, 2.0)):
        x = torch.full((rows, 4), number)
        values = all_values(parts, {parts.inputs[0]: x})
        got = values[parts.outputs[0]]
        torch.testing.assert_close(got, module(x), rtol=0, atol=0)
        for spec in (spec for part in parts.segments for spec in part.specs if spec):
            assert values[spec.name].shape == spec.sized({"b": rows}), spec.name
