"""A weakly typed network that keeps dtypes, like the strongly typed networks of 10, 11 and RTX, and
its weights.

This version treats half as a hint. A layer's output counts as float32 until its type is set, and so
do half constants and casts. So the type of each new layer is set, and converters read back the
dtypes that they wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.engine.interfaces import DataType, ILayer, INetworkDefinition, ITensor
from builder.engine.network import has_half, layer_type

FOLLOWS = {
    "ISelectLayer": 1,
    "IOneHotLayer": 1,
    **dict.fromkeys(
        "IActivationLayer IPoolingLayer ILRNLayer IScaleLayer ISoftMaxLayer IConvolutionLayer"
        " IDeconvolutionLayer IConcatenationLayer IElementWiseLayer IUnaryLayer IPaddingLayer"
        " IShuffleLayer IReduceLayer ITopKLayer IGatherLayer IMatrixMultiplyLayer IIdentityLayer"
        " ISliceLayer IParametricReLULayer IResizeLayer IScatterLayer IEinsumLayer IGridSampleLayer"
        " IReverseSequenceLayer INormalizationLayer IRecurrenceLayer IIteratorLayer"
        " ILoopOutputLayer".split(),
        0,
    ),
}
"""By layer class, the index of the input whose dtype the first output has."""
CARRYING = ("IRecurrenceLayer", "IIteratorLayer", "ILoopOutputLayer")
"""A loop's own layers. Their type is only set if it does not follow from the
loop-carried values.
"""
NO_OUTPUT_TYPE = ("IMatrixMultiplyLayer",)
"""Layers whose output stays float32 whatever type is set. A cast after them returns half."""
UNCOMPUTED = ("IConstantLayer", *CARRYING)
"""Layers that compute nothing. Their output has a type, but the layers have no precision."""
SILENT = frozenset(
    "CONSTANT CAST QUANTIZE DEQUANTIZE RECURRENCE ITERATOR LOOP_OUTPUT TRIP_LIMIT CONDITION"
    " CONDITIONAL_INPUT CONDITIONAL_OUTPUT SHAPE".split()
)
"""Layers whose type follows from the values that they hold or carry."""


class TypedNetwork:
    """An INetworkDefinition (or a loop of one) whose add_* methods set the type of half outputs.

    Arguments of newer versions (the dtype of a fill or a quantization) are dropped.
    """

    def __init__(self, network: INetworkDefinition) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._network, name)
        if name.startswith("add_"):
            return self._typing(attribute)
        return attribute

    def add_loop(self) -> Any:
        """A loop whose own layers are typed as well."""
        return TypedNetwork(self._network.add_loop())

    def add_cast(self, tensor: ITensor, dtype: DataType) -> Any:
        """A cast, whose type is set if it is half. 8-bit integers can only be cast to and from
        float32, so casts of them go through float32.
        """
        if (
            tensor.dtype in (trt.DataType.INT8, trt.DataType.UINT8)
            and dtype != trt.DataType.FLOAT
        ):
            tensor = self._network.add_cast(tensor, trt.DataType.FLOAT).get_output(0)
        layer = self._network.add_cast(tensor, dtype)
        if dtype == trt.DataType.HALF:
            layer.set_output_type(0, dtype)
        return layer

    def add_fill(self, shape: Any, operation: Any, dtype: Any = None) -> Any:
        """A fill, whose type is that of alpha and beta."""
        return self._network.add_fill(shape, operation)

    def add_quantize(
        self, tensor: ITensor, scale: ITensor, dtype: DataType | None = None
    ) -> Any:
        """A quantization, which is always to int8."""
        return self._network.add_quantize(tensor, scale)

    def add_dequantize(
        self, tensor: ITensor, scale: ITensor, dtype: DataType | None = None
    ) -> Any:
        """A dequantization, which is always to float32."""
        return self._network.add_dequantize(tensor, scale)

    def _typing(self, add: Callable[..., Any]) -> Callable[..., Any]:
        def added(*arguments: object, **keywords: object) -> Any:
            layer = add(*arguments, **keywords)
            if _source(layer, arguments) != trt.DataType.HALF:
                return layer
            _declare(layer)
            output = layer.get_output(0)
            if (
                type(layer).__name__ in NO_OUTPUT_TYPE
                and output.dtype == trt.DataType.FLOAT
            ):
                return self.add_cast(output, trt.DataType.HALF)
            return layer

        return added


def typed(network: INetworkDefinition) -> INetworkDefinition:
    """The network itself if it keeps dtypes, else a wrapper that does."""
    if network is None or capabilities.current().strongly_typed:
        return network
    return TypedNetwork(network)


def set_output_dtype(tensor: ITensor, dtype: DataType) -> None:
    """Set the type of an output of the network. The layer's own setting is lost when its tensor is
    marked as an output.
    """
    if not capabilities.current().strongly_typed or tensor.dtype != dtype:
        tensor.dtype = dtype


def pin(network: INetworkDefinition) -> None:
    """Fix the type of each float32 layer if a module mixes half with float32. Otherwise the builder
    converts every layer to half that may be half.

    Networks that keep dtypes do not need this. Networks without half are built without permission
    to use it.
    """
    if capabilities.current().strongly_typed or not has_half(network):
        return
    for layer in map(network.get_layer, range(network.num_layers)):
        if layer.num_outputs and layer_type(layer) not in SILENT and _is_float32(layer):
            layer.precision = trt.DataType.FLOAT
            layer.set_output_type(0, trt.DataType.FLOAT)


def _is_float32(layer: ILayer) -> bool:
    half = layer.precision_is_set and layer.precision == trt.DataType.HALF
    return layer.get_output(0).dtype == trt.DataType.FLOAT and not half


def _source(layer: ILayer, arguments: tuple[Any, ...]) -> Any:
    """The type of the layer's output in PyTorch; None if no rule determines it."""
    kind = type(layer).__name__
    if kind == "IConstantLayer":
        return arguments[1].dtype
    follows = FOLLOWS.get(kind)
    if follows is None:
        return None
    return layer.get_input(follows).dtype


def _declare(layer: ILayer) -> None:
    """Set half, whatever the layer reports now: a type that is not set is computed again when the
    network changes.
    """
    now = layer.get_output(0).dtype
    kind = type(layer).__name__
    if now not in (trt.DataType.FLOAT, trt.DataType.HALF) or (
        now == trt.DataType.HALF and kind in CARRYING
    ):
        return  # a comparison, or known
    if kind not in UNCOMPUTED:
        layer.precision = trt.DataType.HALF
    layer.set_output_type(0, trt.DataType.HALF)


def weights(tensor: torch.Tensor, dtype: DataType) -> tuple[Any, Any]:
    """(trt.Weights, an object that must stay alive as long) from a contiguous tensor's memory.
    They are made of an array, because this version takes no address.
    """
    if not tensor.numel():
        # it must not have an address, but numpy's empty array has one
        return trt.Weights(dtype), None
    array = tensor.numpy()
    return trt.Weights(array), array
