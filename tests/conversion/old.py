"""Simulate TensorRT 8.6 with the installed flavor, so that code for 8.6 is tested without a GPU.

The network is the flavor's own. Layers, operations and types that 8.6 lacks are hidden, what
builder.engine.tensorrt8 lists is refused, and shapes and indices are INT32. Only a real engine of
8.6 shows what its builder accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from builder.conversion import dtypes
from builder.engine import capabilities, flavor
from builder.engine.tensorrt8 import network as typing_network
from builder.engine.tensorrt8.network import TypedNetwork
from builder.engine.tensorrt8.refused import REFUSED

LATER = (
    "add_squeeze add_unsqueeze add_cumulative add_attention add_dynamic_quantize"
    " add_rotary_embedding".split()
)
"""Methods of INetworkDefinition that are newer than 8.6."""
HIDDEN = {
    "ActivationType": ("GELU_ERF", "GELU_TANH"),
    "UnaryOperation": ("ISNAN",),
    "DataType": ("BF16", "INT64"),
    "INetworkDefinition": tuple(LATER),
}
"""By enumeration or class, the members that are newer than 8.6."""


class _Enumeration:
    """An enumeration or a class without some of its members."""

    def __init__(self, own: Any, hidden: tuple[str, ...]) -> None:
        self._own, self._hidden = own, hidden

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(name)
        return getattr(self._own, name)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._own) if name not in self._hidden]

    @property
    def __members__(self) -> dict[str, Any]:
        return {n: m for n, m in self._own.__members__.items() if n not in self._hidden}


class _Flags:
    """8.6 has no strongly typed network; one simulates a network of explicit batch."""

    def __init__(self, own: Any) -> None:
        self.EXPLICIT_BATCH = own.STRONGLY_TYPED


class _Module:
    def __init__(self, own: Any) -> None:
        self._own = own
        self.NetworkDefinitionCreationFlag = _Flags(own.NetworkDefinitionCreationFlag)
        for name, hidden in HIDDEN.items():
            setattr(self, name, _Enumeration(getattr(own, name), hidden))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Late:
    """A layer that is added when its output is requested, because 8.6 derives its type from the
    inputs that are set until then.
    """

    def __init__(self, network: Any) -> None:
        self.network, self.inputs, self.made = network, {}, None

    def set_input(self, index: int, tensor: Any) -> None:
        self.inputs[index] = tensor

    def get_output(self, index: int) -> Any:
        self.made = self.made or self.make()
        return self.made.get_output(index)


class _Fill(_Late):
    def __init__(self, network: Any, shape: Any, operation: Any) -> None:
        super().__init__(network)
        self.arguments = (shape, operation)

    def make(self) -> Any:
        layer = self.network.add_fill(*self.arguments, self.inputs[1].dtype)
        for index, tensor in self.inputs.items():
            layer.set_input(index, tensor)
        return layer


class IIdentityLayer(_Late):
    """An identity that converts once its output type is set."""

    def __init__(self, network: Any, tensor: Any) -> None:
        super().__init__(network)
        self.tensor, self.dtype, self.precision = tensor, tensor.dtype, None

    def get_input(self, index: int) -> Any:
        return self.tensor

    def set_output_type(self, index: int, dtype: Any) -> None:
        assert self.made is None or dtype == self.dtype, "output type set too late"
        self.dtype = dtype

    def make(self) -> Any:
        converts = self.dtype != self.tensor.dtype
        return (
            self.network.add_cast(self.tensor, self.dtype)
            if converts
            else self.network.add_identity(self.tensor)
        )


class IMatrixMultiplyLayer:
    """A product of float16 tensors, whose output stays float32 whatever type is set (observed on
    8.6.0).
    """

    precision = None

    def __init__(self, product: Any, result: Any) -> None:
        self._product, self._result = product, result

    def get_input(self, index: int) -> Any:
        return self._product.get_input(index)

    def get_output(self, index: int) -> Any:
        return self._result.get_output(index)

    def set_output_type(self, index: int, dtype: Any) -> None:
        """Ignore the type."""


class Old:
    """The flavor's network with the interface of 8.6."""

    def __init__(self, network: Any, trt: Any) -> None:
        self._network, self._trt = network, trt

    def __getattr__(self, name: str) -> Any:
        if name in LATER:
            raise AttributeError(name)
        return getattr(self._network, name)

    def _narrow(self, layer: Any) -> Any:
        return self._network.add_cast(layer.get_output(0), self._trt.DataType.INT32)

    def add_shape(self, tensor: Any) -> Any:
        return self._narrow(self._network.add_shape(tensor))

    def add_non_zero(self, tensor: Any) -> Any:
        return self._narrow(self._network.add_non_zero(tensor))

    def add_fill(self, shape: Any, operation: Any) -> Any:
        return _Fill(self._network, shape, operation)

    def add_identity(self, tensor: Any) -> Any:
        return IIdentityLayer(self._network, tensor)

    def add_matrix_multiply(self, a: Any, operation: Any, b: Any, other: Any) -> Any:
        product = self._network.add_matrix_multiply(a, operation, b, other)
        if product.get_output(0).dtype != self._trt.DataType.HALF:
            return product
        return IMatrixMultiplyLayer(
            product,
            self._network.add_cast(product.get_output(0), self._trt.DataType.FLOAT),
        )

    def add_quantize(self, tensor: Any, scale: Any) -> Any:
        return self._network.add_quantize(tensor, scale, self._trt.DataType.INT8)

    def add_dequantize(self, tensor: Any, scale: Any) -> Any:
        return self._network.add_dequantize(tensor, scale, self._trt.DataType.FLOAT)


def _set_layer_output_type(layer: Any, index: int, dtype: Any) -> None:
    assert layer.get_output(index).dtype == dtype, (
        f"{layer.name} gives {layer.get_output(index).dtype}, told {dtype}"
    )


def _set_tensor_dtype(tensor: Any, dtype: Any) -> None:
    assert tensor.dtype == dtype, f"{tensor.name} is {tensor.dtype}, said to be {dtype}"


def play(patch: pytest.MonkeyPatch) -> None:
    """Convert for 8.6 until `patch` is undone. Does nothing if 8.6 itself is installed."""
    if not capabilities.current().strongly_typed:
        return
    own = flavor.load()
    patch.setattr(flavor, "_loaded", _Module(own))
    patch.setattr(
        typing_network, "typed", lambda network: TypedNetwork(Old(network, own))
    )
    patch.setattr(own.ILayer, "set_output_type", _set_layer_output_type, raising=False)
    patch.setattr(
        own.ITensor, "dtype", property(own.ITensor.dtype.fget, _set_tensor_dtype)
    )
    patch.setattr(
        own.ILayer,
        "precision",
        property(lambda layer: None, lambda layer, dtype: None),
        raising=False,
    )
    patch.setattr(own.ILayer, "precision_is_set", False, raising=False)
    _forget()


@contextmanager
def playing() -> Iterator[None]:
    """Convert for 8.6 inside a `with` block, and for the installed version after it, also if the
    block fails.
    """
    try:
        with pytest.MonkeyPatch.context() as patch:
            play(patch)
            yield
    finally:
        _forget()


def _forget() -> None:
    """Clear the caches of the dtype tables, which have the values of another version."""
    for table in (dtypes.carrier, dtypes.endpoint, dtypes.to_trt, dtypes._from_trt):
        table.cache_clear()


WANTS: dict[str, Callable[[Any], bool]] = {
    "TOPK": lambda node: len(node.inputs) > 1 or node.layer.k > 0,  # "condition: k > 0"
    # "at least 1 dimensions are required for input"
    "PARAMETRIC_RELU": lambda node: len(node.inputs[0].shape) > 0,
}
"""By layer, a further condition of 8.6."""


def refused(network: Any) -> list[str]:
    """The layers of a network that 8.6 would refuse, by REFUSED and WANTS."""
    from builder.reference.node import read_layers

    found = []
    for node in read_layers(network):
        settings = (getattr(node.layer, name, None) for name in ("op", "mode"))
        names = [
            node.kind,
            *(f"{node.kind}.{s.name}" for s in settings if hasattr(s, "name")),
        ]
        read = node.inputs[0].dtype.name if node.inputs else ""
        found += [
            f"{node.layer.name}: {name} of {read}"
            for name in names
            if read in REFUSED.get(name, ())
        ]
        if not WANTS.get(node.kind, lambda node: True)(node):
            found.append(f"{node.layer.name}: {node.kind} as it is")
    return found
