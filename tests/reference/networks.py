"""Small networks made through TensorRT's own API, for tests that compare the reference with written-out formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from builder import reference
from builder.engine.flavour import trt

_KEPT: list[Any] = []  # TensorRT reads weights when it compiles: what add_constant was given has to live until then

DTYPES = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.int8: "INT8",
    torch.uint8: "UINT8",
    torch.bool: "BOOL",
}


def constant(network: Any, value: Any, dtype: torch.dtype | None = None) -> Any:
    """A constant tensor of any of torch's dtypes."""
    tensor = torch.as_tensor(value, dtype=dtype).contiguous()
    weights = trt.Weights(getattr(trt.DataType, DTYPES[tensor.dtype]), tensor.data_ptr(), tensor.numel())
    _KEPT.append(tensor)
    return network.add_constant(tuple(tensor.shape), weights).get_output(0)


def weights(value: Any) -> Any:
    """A float32 numpy array that outlives the network's compilation."""
    array = np.ascontiguousarray(np.asarray(value, dtype=np.float32))
    _KEPT.append(array)
    return array


def network_of(build: Callable[..., Any], inputs: Sequence[Tensor], dynamic: bool = False) -> Any:
    """(builder, network) with the outputs that `build(network, *inputs)` returns: a layer, a tensor, or a list."""
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    tensors = [
        network.add_input(
            f"x{i}", getattr(trt.DataType, DTYPES[x.dtype]), [-1] * x.dim() if dynamic else tuple(x.shape)
        )
        for i, x in enumerate(inputs)
    ]
    made = build(network, *tensors)
    for tensor in made if isinstance(made, (list, tuple)) else [made]:
        network.mark_output(tensor.get_output(0) if hasattr(tensor, "get_output") else tensor)
    return builder, network


def compiles(builder: Any, network: Any, inputs: Sequence[Tensor]) -> bool:
    """Whether TensorRT compiles the network for the shapes of `inputs`."""
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for i, x in enumerate(inputs):
        if -1 in tuple(network.get_input(i).shape):
            profile.set_shape(f"x{i}", tuple(x.shape), tuple(x.shape), tuple(x.shape))
    config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config) is not None


def evaluate(build: Callable[..., Any], *inputs: Tensor, compiled: bool = True, dynamic: bool = False) -> Any:
    """The reference's outputs (one alone is not in a list) of a network that TensorRT compiles too."""
    builder, network = network_of(build, inputs, dynamic)
    outputs = reference.run(network, inputs)
    if compiled:
        assert compiles(builder, network, inputs), "TensorRT does not compile the network"
    return outputs[0] if len(outputs) == 1 else outputs


def exactly(actual: Tensor, expected: Any) -> None:
    """Assert equal dtype, shape and values (NaN equals NaN)."""
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=0, atol=0, equal_nan=True)


def closely(actual: Tensor, expected: Any, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    """Assert equal dtype and shape, and values within a few float32 roundings."""
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=atol, equal_nan=True)
