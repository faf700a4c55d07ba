"""Attention written out, brought to the form in which TensorRT knows it."""

from __future__ import annotations

from typing import Any

import torch

from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.scalars import FLOAT_WITH_AXES, float_weights

_PRODUCTS = ("aten::matmul", "aten::bmm")
_SCALES = ("aten::mul", "aten::div")
_MOVED = "chunk expand flatten permute reshape select slice split squeeze t transpose unbind unflatten unsqueeze"
_MOVES = frozenset(f"aten::{n}" for n in _MOVED.split()) | {"prim::ListUnpack"}
_MASKS = {"aten::add": (0, 1), "aten::masked_fill": (0,), "aten::where": (1, 2)}
"""What may stand between scores and softmax, by the inputs that may be the scores."""
_MIXES = frozenset(f"aten::{n}" for n in "add sub mul div".split())


@lowering_pass("scale-queries", touches=("aten::softmax",))
def scale_queries(graph: Any, context: Context) -> None:
    """`softmax((q @ k) / c)` is `softmax((q / c) @ k)`, with masks behind it or not: TensorRT fuses attention where the
    scale stands before the product
    (https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/transformers-fused-attention.html).

    Its kernels for that compute in half precision. In tf32 the scale is free behind the product, where TensorRT 8.6
    puts it into the softmax's kernel, and in front of it costs BERT-base 2 to 3 % and ViT-B 2 to 7 % (H200).

    Queries that may be integers are left alone: divided they would be none, and fit their keys no more. So are those of
    a layer in half, as TensorRT 8.6 builds no engine of such attention.
    """
    for node in ir.nodes_of(graph, "aten::softmax"):
        scale = _scale(node.inputsAt(0))
        if scale is None or ir.in_fallback(node):
            continue
        product = scale.inputsAt(0).node()
        if not _is_real(product.inputsAt(0)):
            continue
        factor = ir.constant(scale.inputsAt(1))
        if isinstance(factor, float | int) or getattr(factor, "shape", None) == ():
            number = ir.insert_constant(graph, factor, product)
            scaled = ir.insert(graph, scale.kind(), [product.inputsAt(0), number], product, origin=scale)
            product.replaceInput(0, scaled.output())
            ir.bypass(scale)


def _scale(scores: Any, masks: int = 3) -> Any:
    """The node that scales a product on its way to softmax, behind a few masks at most; None if there is none."""
    scale = _only_maker(scores, _SCALES)
    if scale is not None and _only_maker(scale.inputsAt(0), _PRODUCTS) is not None:
        return scale
    node = scores.node()
    plain = node.kind() != "aten::add" or (node.inputsSize() == 3 and ir.constant(node.inputsAt(2)) == 1)
    if not masks or not plain or ir.in_fallback(node):
        return None
    found = (_scale(node.inputsAt(at), masks - 1) for at in _MASKS.get(node.kind(), ()))
    return next((scale for scale in found if scale is not None), None)


def _only_maker(value: Any, kinds: tuple[str, ...]) -> Any:
    """The node of one of these kinds that makes the value, where nothing else reads it, or None. A quotient that is
    rounded is none of them."""
    node = value.node()
    fits = node.kind() in kinds and len(value.uses()) == 1 and node.inputsSize() == 2
    return node if fits else None


def _is_real(value: Any) -> bool:
    """Whether the value certainly holds floats, not in half: a layer with such weights made it, moved, mixed or not."""
    node = value.node()
    while node.kind() in _MOVES:
        node = node.inputsAt(0).node()
    if node.kind() in _MIXES:
        return any(_is_real(side) for side in list(node.inputs())[:2])
    weights = (ir.constant(weight) for weight in node.inputs())
    half = any(isinstance(weight, torch.Tensor) and weight.dtype == torch.float16 for weight in weights)
    return node.kind() in FLOAT_WITH_AXES and float_weights(node) and not half
