"""TensorRT 8.6's network made to keep dtypes as the strongly typed networks of 10, 11 and RTX do.

TensorRT 8.6 treats a half tensor as a hint: a layer's output counts as float32 until its type is
set, and so do half constants and casts. So the type of each new layer is set, and converters read
back what they wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.engine import flavour
from builder.engine.flavour import trt

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
"""By layer class, the input whose dtype the first output has."""
CARRYING = ("IRecurrenceLayer", "IIteratorLayer", "ILoopOutputLayer")
"""A loop's own layers, told only where 8.6 does not know it from what they carry."""
DEAF = ("IMatrixMultiplyLayer",)
"""Layers whose output stays float32 whatever they are told (seen on 8.6.0): a cast behind them
gives half.
"""
UNCOMPUTED = ("IConstantLayer", *CARRYING)
"""Layers that compute nothing: their output has a type, they themselves have no precision."""


class TypedNetwork:
    """An INetworkDefinition (or a loop of one) whose add_* methods say the type of half outputs."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._network, name)
        return self._typing(attribute) if name.startswith("add_") else attribute

    def add_loop(self) -> Any:
        """A loop whose own layers are told as well."""
        return TypedNetwork(self._network.add_loop())

    def _typing(self, add: Callable[..., Any]) -> Callable[..., Any]:
        def added(*arguments: Any, **named: Any) -> Any:
            layer = add(*arguments, **named)
            if _source(layer, arguments) != trt.DataType.HALF:
                return layer
            _declare(layer)
            deaf = type(layer).__name__ in DEAF and layer.get_output(0).dtype == trt.DataType.FLOAT
            return self.add_cast(layer.get_output(0), trt.DataType.HALF) if deaf else layer

        return added

    def add_cast(self, tensor: Any, dtype: Any) -> Any:
        """A cast, told its type where that is half."""
        layer = self._network.add_cast(tensor, dtype)
        if dtype == trt.DataType.HALF:
            layer.set_output_type(0, dtype)
        return layer


def typed(network: Any) -> Any:
    """The network itself where it keeps dtypes, else the wrapper that makes it."""
    return network if flavour.strongly_typed() or network is None else TypedNetwork(network)


def say(tensor: Any, dtype: Any) -> None:
    """Tell 8.6 the type of an output of the network: what a layer was told counts no more once its
    tensor is one.
    """
    if not flavour.strongly_typed() or tensor.dtype != dtype:
        tensor.dtype = dtype


def pin(network: Any) -> None:
    """Where a module itself mixes half with float32, tell each float32 layer to stay: what may be
    half, 8.6 makes half.

    A network that keeps dtypes needs none of it, and one without half is built without leave to use
    it.
    """
    if flavour.strongly_typed() or not has_half(network):
        return
    for layer in map(network.get_layer, range(network.num_layers)):
        if layer.num_outputs and _kind(layer) not in SILENT and _is_float32(layer):
            layer.precision = trt.DataType.FLOAT
            layer.set_output_type(0, trt.DataType.FLOAT)


def _is_float32(layer: Any) -> bool:
    half = layer.precision_is_set and layer.precision == trt.DataType.HALF
    return layer.get_output(0).dtype == trt.DataType.FLOAT and not half


SILENT = frozenset(
    "CONSTANT CAST QUANTIZE DEQUANTIZE RECURRENCE ITERATOR LOOP_OUTPUT TRIP_LIMIT CONDITION"
    " CONDITIONAL_INPUT CONDITIONAL_OUTPUT SHAPE".split()
)
"""Layers whose type follows from what they hold or carry."""


def has_half(network: Any) -> bool:
    """Whether any tensor of the network is half: then the builder must be allowed to compute in
    it.
    """
    inputs = (network.get_input(i) for i in range(network.num_inputs))
    layers = (network.get_layer(i) for i in range(network.num_layers))
    outputs = (layer.get_output(i) for layer in layers for i in range(layer.num_outputs))
    return any(
        tensor.dtype == trt.DataType.HALF for source in (inputs, outputs) for tensor in source
    )


def has_int8(network: Any) -> bool:
    """Whether any layer quantises: then the builder must be allowed to compute in int8."""
    return any(_kind(network.get_layer(i)) == "QUANTIZE" for i in range(network.num_layers))


def _kind(layer: Any) -> str:
    """The LayerType's name, through the base class: IActivationLayer hides it behind a `type` of
    its own.
    """
    return str(trt.ILayer.type.__get__(layer).name)


def _source(layer: Any, arguments: tuple[Any, ...]) -> Any:
    """The type that the layer's output has in PyTorch's eyes; None where no rule says it."""
    kind = type(layer).__name__
    if kind == "IConstantLayer":
        return arguments[1].dtype
    follows = FOLLOWS.get(kind)
    return None if follows is None else layer.get_input(follows).dtype


def _declare(layer: Any) -> None:
    """Say half, whatever 8.6 says at the moment: an unsaid type is looked up again when the network
    changes.
    """
    now, kind = layer.get_output(0).dtype, type(layer).__name__
    if now not in (trt.DataType.FLOAT, trt.DataType.HALF) or (
        now == trt.DataType.HALF and kind in CARRYING
    ):
        return  # a comparison, or known
    if kind not in UNCOMPUTED:
        layer.precision = trt.DataType.HALF
    layer.set_output_type(0, trt.DataType.HALF)
