"""Meta kernels give dtypes and ranks. They are called only if the call cannot crash."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from builder.analysis import kernels
from builder.lowering import ir

FLOAT = torch.float32
Known = tuple[torch.dtype | None, int | None]


def facts(call: str, *known: Known) -> Sequence[Known]:
    """The facts that the kernels state for a call of %x0, %x1 and so on."""
    inputs = ", ".join(f"%x{at} : Tensor" for at in range(len(known)))
    lines = [*CONSTANTS.strip().splitlines(), *call.strip().splitlines()]
    body = "".join(f"\n  {line.strip()}" for line in lines)
    graph = ir.C.parse_ir(f"graph({inputs}):{body}\n  return ()")
    stated = dict(zip((value.unique() for value in graph.inputs()), known, strict=True))
    *_, node = graph.nodes()
    return kernels.facts_of(
        node, lambda value: stated.get(value.unique(), (None, None))
    )


CONSTANTS = """
  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %fraction : float = prim::Constant[value=1.]()
"""


def test_meta_kernel_gives_dtype_and_rank() -> None:
    product = "%y : Tensor = aten::matmul(%x0, %x1)"
    assert facts(product, (FLOAT, 3), (FLOAT, 2)) == ((FLOAT, 3),)
    largest = "%y : Tensor, %z : Tensor = aten::topk(%x0, %two, %one, %yes, %yes)"
    assert facts(largest, (FLOAT, 2)) == ((FLOAT, 2), (torch.int64, 2))
    assert facts("%y : Tensor = aten::argmax(%x0, %one, %no)", (FLOAT, 3)) == (
        (torch.int64, 2),
    )


def test_invalid_call_gives_no_facts() -> None:
    assert facts("%y : Tensor = aten::bmm(%x0, %x1)", (FLOAT, 2), (FLOAT, 3)) == ()


def test_unknown_dtype_or_rank_is_tried_with_examples() -> None:
    relu = "%y : Tensor = aten::relu(%x0)"
    assert facts(relu, (FLOAT, None)) == ((FLOAT, None),)
    assert facts(relu, (None, 3)) == ((None, 3),)
    equal = "%y : Tensor = aten::eq(%x0, %x1)"
    assert facts(equal, (None, None), (None, None)) == ((torch.bool, None),)


def test_rank_of_only_the_largest_example_is_not_stated() -> None:
    """Tensors of 7 axes have axes 4 and 5, too."""
    call = "%y : Tensor = aten::transpose(%x0, %five, %four)"
    constants = "%four : int = prim::Constant[value=4]()\n%five : int = prim::Constant[value=5]()\n"
    assert facts(constants + call, (FLOAT, None)) == ((FLOAT, None),)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.int64, ((FLOAT, 4),)), (None, ((FLOAT, None),)), (torch.bool, ())],
)
def test_rank_of_indexing_needs_indices_that_are_not_masks(
    dtype: torch.dtype | None, expected: tuple[Known, ...]
) -> None:
    """`x[:, mask]` has one axis for all axes of the mask. The kernel rejects masks."""
    call = """
      %indices : Tensor?[] = prim::ListConstruct(%none, %x1)
      %y : Tensor = aten::index(%x0, %indices)
    """
    assert facts(call, (FLOAT, 3), (dtype, 2)) == expected


def test_numbers_of_different_types_are_different_calls() -> None:
    """1 and 1.0 are equal, so a cache by value returned the dtype of the first call for both."""
    call = "%y : Tensor = aten::rsub(%x0, %{}, %one)"
    assert facts(call.format("one"), (torch.int64, 2)) == ((torch.int64, 2),)
    assert facts(call.format("fraction"), (torch.int64, 2)) == ((FLOAT, 2),)


def scripted(expression: str) -> Sequence[Known]:
    """The facts of the last node of an expression of x, a float32 tensor of rank 2."""
    unit = torch.jit.CompilationUnit(f"def call(x):\n    return {expression}\n")
    *_, node = unit.call.graph.nodes()
    assert node.schema() != "(no schema)"
    return kernels.facts_of(node, lambda value: (FLOAT, 2))


def test_number_and_tensor_of_rank_0_must_agree() -> None:
    """torch's executor treats a constant of rank 0 as a number, with a lower promotion priority."""
    add = "%y : Tensor = aten::add(%x0, %x1, %one)"
    assert facts(add, (FLOAT, 2), (torch.float64, 0)) == ((FLOAT, 2),)
    assert facts(add, (torch.int64, 2), (torch.float64, 0)) == ((None, 2),)


@pytest.mark.parametrize("weights", [4, 8])
def test_kernels_that_would_crash_are_not_called(weights: int) -> None:
    """The kernel would read gates that the weights do not have, which is a segmentation fault."""
    layers = ", ".join(["%x1, %x1, %x2, %x2"] * (weights // 4))
    call = (
        "%state : Tensor[] = prim::ListConstruct(%x0, %x0)\n"
        f"%weights : Tensor[] = prim::ListConstruct({layers})\n"
        "%y : Tensor, %h : Tensor, %c : Tensor = aten::lstm(%x0, %state, %weights, %yes,"
        " %one, %fraction, %no, %no, %no)"
    )
    assert facts(call, (FLOAT, 3), (FLOAT, 2), (FLOAT, 1)) == ()


def test_invalid_dtype_numbers_are_not_passed_to_kernels() -> None:
    """77 is not a dtype. torch would read a table at that index."""
    assert scripted("x.to(77)") == ()
    assert scripted("x.sum(dtype=77)") == ()
    assert scripted("x.to(7)") == ((torch.float64, 2),)
