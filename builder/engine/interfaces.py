"""The types of TensorRT's network: tensors, layers and the network itself.

TensorRT's Python package has no type information. These protocols declare the members that
trt-build uses, under TensorRT's names. They import nothing, so they also work without TensorRT.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class DataType(Protocol):
    """An element type, a member of `trt.DataType`."""

    @property
    def name(self) -> str: ...


class ITensor(Protocol):
    """An input of the network, or an output of a layer."""

    name: str
    dtype: DataType

    @property
    def shape(self) -> Sequence[int]: ...  # -1: dynamic
    @property
    def is_network_input(self) -> bool: ...
    @property
    def is_network_output(self) -> bool: ...
    @property
    def is_shape_tensor(self) -> bool: ...

    def set_dimension_name(self, axis: int, name: str, /) -> None: ...


class ILayer(Protocol):
    """One layer of the network."""

    name: str
    metadata: str

    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...

    def get_input(self, index: int, /) -> ITensor: ...
    def get_output(self, index: int, /) -> ITensor: ...
    def set_input(self, index: int, tensor: ITensor, /) -> None: ...

    # the settings of one kind of layer, such as `stride_nd` of a convolution
    def __getattr__(self, name: str, /) -> Any: ...
    def __setattr__(self, name: str, value: object, /) -> None: ...


class INetworkDefinition(Protocol):
    """A network under construction, or a built one that is read."""

    name: str

    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def num_layers(self) -> int: ...

    def get_input(self, index: int, /) -> ITensor: ...
    def get_output(self, index: int, /) -> ITensor: ...
    def get_layer(self, index: int, /) -> ILayer: ...
    def add_input(self, name: str, dtype: DataType, shape: Any) -> ITensor: ...
    def mark_output(self, tensor: ITensor, /) -> None: ...

    def add_loop(self) -> Any: ...
    def add_if_conditional(self) -> Any: ...
    # the methods that add a layer, one for each kind of layer
    def __getattr__(self, name: str, /) -> Callable[..., ILayer]: ...
