"""Compute a convolution of separate patches of an image as a linear layer."""

from __future__ import annotations

from typing import NamedTuple

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.amounts import Amount, amount
from builder.lowering.passes.dtypes import bottom_up, input_facts, input_shapes
from builder.lowering.passes.lengths import Lengths
from builder.lowering.passes.moves import MOVES, axis_at, moved


@lowering_pass(
    "patches-to-linear",
    touches=("aten::_convolution",),
    enabled=lambda context: context.weakly_typed,
)
def patches_to_linear(graph: Graph, context: Context) -> None:
    """`conv2d(x, weight, stride=kernel_size).flatten(2).transpose(1, 2)` is a linear layer of the
    patches of x, if they cover x exactly and x has up to 4 channels. Vision transformers begin with
    this form.

    It runs for TensorRT 8.6 only, whose convolution of 3 channels is slow. Measured on an H200 in
    fp16 (32 images of 224 x 224; this layer, layer_norm and a linear layer): patches of 16 x 16 to
    768 channels take 0.076 instead of 0.183 ms, and those of 4 x 4 to 96 channels 0.089 instead of
    0.112 ms. With 96 channels the convolution is faster. So it is if another convolution reads the
    image.
    """
    lengths = Lengths(input_facts(graph, context), input_shapes(graph, context))
    constants = ir.Constants(graph)
    for node in bottom_up(graph):
        size = _size(node, lengths, Emit(graph, node, shared=constants))
        if size is not None:
            ir.replace(node, [size])
            continue
        lengths.learn(node)
        patches = _flattened(node, lengths)
        if patches is not None:
            emit = Emit(graph, patches.node, shared=constants)
            _replace(node, _linear(emit, patches), emit)


class _Patches(NamedTuple):
    """A convolution, its weight `[outputs, channels, height, width]`, and the numbers of patches
    along both axes of the image.
    """

    node: Node
    weight: torch.Tensor
    rows: int
    columns: int


_MOST_CHANNELS = 4


def _size(node: Node, lengths: Lengths, emit: Emit) -> Value | None:
    """The size that the node reads from the image of patches; None for any other node."""
    if node.kind() != "aten::size" or node.inputsSize() != 2 or ir.in_fallback(node):
        return None
    axis = axis_at(node, 1, 4)
    patches = _patches(node.inputsAt(0).node(), lengths)
    if patches is None or axis is None:
        return None
    if axis == 0:
        return emit.op("aten::size", patches.node.inputsAt(0), 0, type=ir.INT)
    return emit.constant((len(patches.weight), patches.rows, patches.columns)[axis - 1])


def _flattened(node: Node, lengths: Lengths) -> _Patches | None:
    """The patches whose image the node flattens to `[batch, outputs, patches]`, for a transpose;
    else None.
    """
    if node.kind() not in ("aten::flatten", "aten::reshape") or ir.in_fallback(node):
        return None
    image = node.inputsAt(0)
    patches = _patches(image.node(), lengths)
    if patches is None or len(image.uses()) != 1:
        return None
    if not _joins_axes(node, patches, lengths) or not _transposes(node.output()):
        return None
    return patches


def _joins_axes(node: Node, patches: _Patches, lengths: Lengths) -> bool:
    """Whether a flatten or reshape joins the two axes of the image, and no others."""
    if node.kind() == "aten::flatten":
        first, last = (ir.constant(node.inputsAt(at)) for at in (1, 2))
        return first in (2, -2) and last in (3, -1)
    shape = lengths.shape(node.output())
    joined = [len(patches.weight), patches.rows * patches.columns]
    return shape is not None and list(shape[1:]) == [amount(size) for size in joined]


def _transposes(value: Value) -> list[Node]:
    """The users of a tensor of rank 3 that exchange its last two axes."""
    users = [use.user for use in value.uses()]
    return [
        user
        for user in users
        if user.kind() in MOVES
        and not ir.in_fallback(user)
        and moved(user, range(3)) == [0, 2, 1]
    ]


def _patches(node: Node, lengths: Lengths) -> _Patches | None:
    """The patches of a convolution; None for any other node, for another stride, padding, dilation
    or groups, and if the size of the input is not known.
    """
    if node.kind() != "aten::_convolution" or ir.in_fallback(node):
        return None
    shape = lengths.shape(node.inputsAt(0))
    weight = ir.constant(node.inputsAt(1))
    if not isinstance(weight, torch.Tensor) or weight.dim() != 4 or shape is None:
        return None
    kernel = list(weight.shape[2:])
    stride, padding, dilation = (_pair(node.inputsAt(at)) for at in (3, 4, 5))
    transposed, groups = (ir.constant(node.inputsAt(at)) for at in (6, 8))
    is_plain = (padding, dilation, transposed, groups) == ([0, 0], [1, 1], False, 1)
    if not is_plain or stride != kernel or weight.shape[1] > _MOST_CHANNELS:
        return None
    rows, columns = map(_count, kernel, shape[2:])
    if rows is None or columns is None:
        return None
    return _Patches(node, weight, rows, columns)


def _pair(value: Value) -> list[int] | None:
    """The numbers of both axes; a single number counts for both."""
    numbers = ir.int_list(value)
    if numbers is None:
        return None
    return list(numbers) * (2 // len(numbers))


def _count(size: int, length: Amount) -> int | None:
    """The number of patches along an axis; None if they do not cover it exactly."""
    if length.names or length.number % size:
        return None
    return length.number // size


def _replace(node: Node, rows: Value, emit: Emit) -> None:
    """Let the transposes that read the flattened image read `rows` `[batch, patches, outputs]`, and
    other nodes its transpose.
    """
    for transpose in _transposes(node.output()):
        transpose.output().replaceAllUsesWith(rows)
    node.output().replaceAllUsesWith(emit.op("aten::transpose", rows, 1, 2))


def _linear(emit: Emit, patches: _Patches) -> Value:
    """The outputs of the convolution as `[batch, patches, outputs]`."""
    convolution, weight, rows, columns = patches
    x, _, bias = ir.inputs(convolution)[:3]
    outputs, channels, height, width = weight.shape
    matrix = ir.insert_constant(emit.graph, weight.reshape(outputs, -1), convolution)
    batch = emit.op("aten::size", x, 0, type=ir.INT)
    sizes = emit.ints([batch, channels, rows, height, columns, width])
    x = emit.op("aten::reshape", x, sizes)
    x = emit.op("aten::permute", x, [0, 2, 4, 1, 3, 5])
    sizes = emit.ints([batch, rows * columns, channels * height * width])
    x = emit.op("aten::reshape", x, sizes)
    return emit.op("aten::linear", x, matrix, bias)
