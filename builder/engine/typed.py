"""TensorRT 8.6's network made to keep dtypes as the strongly typed networks of 10, 11 and RTX do.

8.6 treats a half tensor as a wish: a layer's output counts as float32 until it is told otherwise. So each new layer is
told, by the dtype of the input that its output follows, and what converters read back is what they wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.engine import flavour
from builder.engine.flavour import trt

FOLLOWS = {
    "ISelectLayer": 1,
    **dict.fromkeys(
        "IActivationLayer IPoolingLayer ILRNLayer IScaleLayer ISoftMaxLayer IConvolutionLayer IDeconvolutionLayer "
        "IConcatenationLayer IElementWiseLayer IUnaryLayer IPaddingLayer IShuffleLayer IReduceLayer ITopKLayer "
        "IGatherLayer IMatrixMultiplyLayer IIdentityLayer ISliceLayer IParametricReLULayer IResizeLayer IScatterLayer "
        "IEinsumLayer IGridSampleLayer IReverseSequenceLayer INormalizationLayer".split(),
        0,
    ),
}
"""By layer class, the input whose dtype the first output has."""


class TypedNetwork:
    """An INetworkDefinition whose add_* methods set the precision and the output type of half layers."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._network, name)
        return _typing(attribute) if name.startswith("add_") else attribute


def typed(network: Any) -> Any:
    """The network itself where it keeps dtypes, else the wrapper that makes it."""
    return network if flavour.strongly_typed() or network is None else TypedNetwork(network)


def has_half(network: Any) -> bool:
    """Whether any tensor of the network is half: then the builder must be allowed to compute in it."""
    inputs = (network.get_input(i) for i in range(network.num_inputs))
    layers = (network.get_layer(i) for i in range(network.num_layers))
    outputs = (layer.get_output(i) for layer in layers for i in range(layer.num_outputs))
    return any(tensor.dtype == trt.DataType.HALF for source in (inputs, outputs) for tensor in source)


def has_int8(network: Any) -> bool:
    """Whether any layer quantises: then the builder must be allowed to compute in int8."""
    kind = trt.LayerType.QUANTIZE
    return any(trt.ILayer.type.__get__(network.get_layer(i)) == kind for i in range(network.num_layers))


def _typing(add: Callable[..., Any]) -> Callable[..., Any]:
    def added(*arguments: Any, **named: Any) -> Any:
        layer = add(*arguments, **named)
        follows = FOLLOWS.get(type(layer).__name__)
        if follows is not None:
            _set(layer, follows)
        return layer

    return added


def _set(layer: Any, follows: int) -> None:
    source = layer.get_input(follows)
    if source.dtype == trt.DataType.HALF and layer.get_output(0).dtype == trt.DataType.FLOAT:
        layer.precision = trt.DataType.HALF
        layer.set_output_type(0, trt.DataType.HALF)
