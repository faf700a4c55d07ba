"""Small networks built with TensorRT's own API, for tests that compare the reference with formulas.
If engines can run (the tensorrt flavor on a GPU), each network is also run and must agree with the
reference. A test is skipped if this TensorRT lacks a dtype or layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builder import reference
from builder.engine import capabilities, flavor
from builder.engine.flavor import trt
from builder.engine.network import has_half, has_int8, new_network
from builder.engine.tensorrt8.network import set_output_dtype, typed
from tests.conversion import compiling

# TensorRT reads weights when it compiles: arrays of add_constant must exist until then
_KEPT: list[Any] = []

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


def trt_dtype(dtype: torch.dtype) -> Any:
    """TensorRT's dtype with this name. Skips the test if this TensorRT lacks it."""
    if not hasattr(trt.DataType, DTYPES[dtype]):
        pytest.skip(f"this TensorRT has no {DTYPES[dtype]}")
    return getattr(trt.DataType, DTYPES[dtype])


def constant(network: Any, value: Any, dtype: torch.dtype | None = None) -> Any:
    """A constant tensor of any of torch's dtypes; int64 is int32 where TensorRT has no wider
    integers.
    """
    tensor = narrow(torch.as_tensor(value, dtype=dtype)).contiguous()
    return network.add_constant(tuple(tensor.shape), held(tensor)).get_output(0)


def held(tensor: Tensor) -> Any:
    """The values of a contiguous tensor as weights that exist until the network is compiled."""
    kind = trt_dtype(tensor.dtype)
    _KEPT.append(tensor)
    if capabilities.current().strongly_typed:
        return trt.Weights(kind, tensor.data_ptr(), tensor.numel())
    _KEPT.append(tensor.numpy())  # 8.6 takes no address, and no array of no values
    return trt.Weights(_KEPT[-1]) if tensor.numel() else trt.Weights(kind)


def narrow(tensor: Tensor) -> Tensor:
    """int64 as int32 if TensorRT has no wider integers. Skips the test if the values do not fit."""
    if tensor.dtype != torch.int64 or capabilities.current().has_int64:
        return tensor
    if not torch.equal(tensor.int().long(), tensor):
        pytest.skip("this TensorRT has no INT64")
    return tensor.int()


def weights(value: Any) -> Any:
    """A float32 numpy array that exists until the network is compiled."""
    array = np.ascontiguousarray(np.asarray(value, dtype=np.float32))
    _KEPT.append(array)
    return array


TYPED_SINCE_10 = {"add_quantize": 2, "add_dequantize": 2, "add_fill": 2, "add_topk": 4}
"""By method, the number of arguments in 8.6. The next argument of later versions is the type of the
output, of which 8.6 supports only one.
"""


class _Untyped:
    """A network of 8.6 with the newer signatures."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        method, takes = getattr(self._network, name), TYPED_SINCE_10.get(name)
        if takes is None:
            return method

        def shorter(*arguments: Any) -> Any:
            if any(getattr(argument, "name", "") == "FP8" for argument in arguments):
                pytest.skip("this TensorRT quantizes to INT8 alone")
            return method(*arguments[:takes])

        return shorter


def network_of(
    build: Callable[..., Any], inputs: Sequence[Tensor], dynamic: bool = False
) -> Any:
    """(builder, network) with the outputs that `build(network, *inputs)` returns: a layer, a
    tensor, or a list.
    """
    builder, network, _ = new_network()
    tensors = [
        network.add_input(
            f"x{i}", trt_dtype(x.dtype), [-1] * x.dim() if dynamic else tuple(x.shape)
        )
        for i, x in enumerate(map(narrow, inputs))
    ]
    try:
        result = build(
            typed(network if capabilities.current().has_int64 else _Untyped(network)),
            *tensors,
        )
    except AttributeError as missing:
        if capabilities.current().has_int64:
            raise
        pytest.skip(f"this TensorRT lacks what the test makes: {missing}")
    for output in result if isinstance(result, (list, tuple)) else [result]:
        tensor = output.get_output(0) if hasattr(output, "get_output") else output
        dtype = tensor.dtype
        network.mark_output(tensor)
        set_output_dtype(tensor, dtype)
    return builder, network


def plan_of(builder: Any, network: Any, inputs: Sequence[Tensor]) -> Any:
    """The network compiled for the shapes of `inputs`; None if TensorRT does not compile it."""
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for i, x in enumerate(inputs):
        if -1 in tuple(network.get_input(i).shape):
            profile.set_shape(f"x{i}", tuple(x.shape), tuple(x.shape), tuple(x.shape))
    config.add_optimization_profile(profile)
    if (
        not capabilities.current().strongly_typed
    ):  # which computes in what it is allowed to
        flags = {
            "FP16": has_half(network),
            "INT8": has_int8(network),
            "OBEY_PRECISION_CONSTRAINTS": has_half(network),
        }
        for flag in (name for name, wanted in flags.items() if wanted):
            config.set_flag(getattr(trt.BuilderFlag, flag))
        config.clear_flag(trt.BuilderFlag.TF32)
    return builder.build_serialized_network(network, config)


def evaluate(
    build: Callable[..., Any],
    *inputs: Tensor,
    compiled: bool = True,
    ran: bool = True,
    dynamic: bool = False,
) -> Any:
    """The outputs of the reference (a single one is not in a list). TensorRT also runs the network,
    and compiles it if it has a new feature. Without `ran` it does not: the documentation does not
    define the output, or TensorRT is known to return another.
    """
    builder, network = network_of(build, inputs, dynamic)
    outputs = reference.run(network, inputs)
    if compiled and compiling.should_compile(network):
        plan = plan_of(builder, network, inputs)
        assert plan is not None, "TensorRT does not compile the network"
        compiling.done(network)
        if ran and flavor.name() == "tensorrt":
            names = [network.get_output(i).name for i in range(network.num_outputs)]
            agrees(bytes(plan), inputs, dict(zip(names, outputs, strict=True)))
    return outputs[0] if len(outputs) == 1 else outputs


def agrees(
    plan: bytes, inputs: Sequence[Tensor], outputs: Mapping[str, Tensor]
) -> None:
    """Assert that the outputs of the engine match the reference by name (8.6 lists them in another
    order), floats up to the effect of another order of summation.
    """
    from builder.engine.run import Engine

    with Engine(plan) as engine:
        for name, output in zip(engine.outputs, engine(*inputs), strict=True):
            expected = outputs[name]
            exact = not expected.is_floating_point()
            rtol, atol = (
                (0.0, 0.0)
                if exact
                else (2e-3, 2e-3)
                if expected.dtype == torch.float16
                else (1e-4, 1e-4)
            )
            torch.testing.assert_close(
                output.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True
            )


def exactly(actual: Tensor, expected: Any) -> None:
    """Assert equal dtype, shape and values (NaN equals NaN)."""
    torch.testing.assert_close(
        actual, narrow(torch.as_tensor(expected)), rtol=0, atol=0, equal_nan=True
    )


def closely(
    actual: Tensor, expected: Any, rtol: float = 2e-6, atol: float = 1e-6
) -> None:
    """Assert equal dtype and shape, and values within a few float32 roundings."""
    torch.testing.assert_close(
        actual, torch.as_tensor(expected), rtol=rtol, atol=atol, equal_nan=True
    )
