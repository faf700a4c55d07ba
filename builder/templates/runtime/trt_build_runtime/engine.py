"""One TensorRT plan on one GPU and stream."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

import importlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import triton_python_backend_utils as pb_utils

from .activations import Activations
from .call import Call, Input, Output
from .errors import InvalidRequest, NoPlan
from .memory import Staging, Storage, allocator
from .recent import Recent
from .shapes import Profiles

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
TENSORRT_TO_TORCH = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "FLOAT": torch.float32,
}
CALLS = 64
"""Number of sets of input shapes whose calls are kept."""
SMALL = 1 << 16
"""Up to this many bytes, CUDA copies from any memory of the host as fast as from page-locked
memory.
"""
STEADY = 20
"""The number of calls with the same shapes after which a CUDA graph is captured. Capturing takes as
long as many calls save, and a context that gets other shapes loses its graph, because TensorRT
requires a new capture then.
"""


class Plan:
    """A plan that TensorRT has loaded. Raises NoPlan."""

    def __init__(self, path: Path, flavor: str) -> None:
        self.trt = importlib.import_module(MODULES[flavor])
        self.runtime = self.trt.Runtime(self.trt.Logger(self.trt.Logger.WARNING))
        self.engine = self.runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            raise NoPlan(
                "TensorRT refused the plan; the reason is above in the server's log"
            )
        self._activations: Activations | None = None

    def activations(self, device: torch.device) -> Activations:
        """The memory for activations that the contexts of all instances share."""
        if self._activations is None:
            self._activations = Activations(self.trt, self.engine, device)
        return self._activations


_LOADED: WeakValueDictionary[tuple[Path, str], Plan] = WeakValueDictionary()
"""The plans in use, by path and flavor. The instances in one process share a plan's weights."""


def _loaded(path: Path, flavor: str) -> Plan:
    plan = _LOADED.get((path, flavor))
    if plan is None:
        plan = _LOADED[path, flavor] = Plan(path, flavor)
    return plan


class Engine:
    """Runs the plan on CUDA tensors. Each optimization profile has an execution context, created on
    first use. Output buffers are reused by the next run. With `shares_memory`, all engines of the
    plan in this process have one memory for activations.
    """

    def __init__(
        self,
        path: Path,
        flavor: str,
        tensors: dict[str, Any],
        device: str,
        stream: Any,
        graphs: bool = False,
        shares_memory: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.tensors = tensors
        self.handle = stream.cuda_stream
        self.path = path
        self.plan = _loaded(path, flavor)
        self.trt = self.plan.trt
        self.engine = self.plan.engine
        self.shared: Any = None
        if shares_memory:
            self.shared = self.plan.activations(self.device)
        self.exclusive: Any = nullcontext() if self.shared is None else self.shared
        # RTX compiles kernels for new shapes while it serves, and captures graphs by itself where
        # it is configured to.
        self.steady = STEADY if graphs and flavor == "tensorrt" else 0
        self.profiles = Profiles(tensors)
        self.calls = Recent(CALLS)
        self.contexts: dict[int, Any] = {}
        self.bound: dict[int, Call] = {}
        self.allocated: set[tuple[int, str]] = set()
        self._reserve()

    def _reserve(self) -> None:
        """Empty storage for each tensor."""
        sides = (
            [tensor["name"] for tensor in self.tensors[side]]
            for side in ("inputs", "outputs")
        )
        self.inputs, self.buffers = (
            {name: Storage(self.device) for name in names} for names in sides
        )
        self.allocators = {
            name: allocator(self.trt, buffer) for name, buffer in self.buffers.items()
        }
        self.placeholder = Storage(self.device)
        self.staging: dict[str, Staging] = {}
        if self.device.type == "cuda":
            self.staging = {name: Staging() for name in self.inputs}
        self.by_value = any(
            self.engine.is_shape_inference_io(name) for name in self.inputs
        )

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Enqueue on the stream, which is the current one. The outputs have the module's element
        types. Raises InvalidRequest for shapes outside every profile.
        """
        shapes = tuple([tensor.shape for tensor in tensors])
        call = self.calls.get(shapes)
        if call is None:
            self.profiles.check(tensors)
            call = self.calls.put(shapes, Call(self.profiles.find(tensors), shapes))
        if self.bound.get(call.profile) is not call:
            self._bind(call)
        return call.run(self, self.contexts[call.profile], tensors)

    def prepare(self) -> None:
        """Create the execution context of the first profile. Raises RuntimeError."""
        self._context(0)

    def no_graphs(self, reason: Exception) -> None:
        """Turn capturing off."""
        self.steady = 0
        pb_utils.Logger.log_warn(
            f"trt-build: {self.path.name} runs without CUDA graphs: {reason}"
        )

    def _bind(self, call: Call) -> None:
        """Set the shapes and addresses in the context of the call's profile."""
        before = self.bound.pop(call.profile, None)
        if before is not None:
            before.unbind()
        context = self._context(call.profile)
        names = [tensor["name"] for tensor in self.tensors["inputs"]]
        for name, shape in zip(names, call.shapes):
            if not context.set_input_shape(name, tuple(shape)):
                raise InvalidRequest(
                    f"TensorRT refuses shape {list(shape)} for input {name!r}"
                )
        call.inputs = [
            self._input(name, shape) for name, shape in zip(names, call.shapes)
        ]
        call.outputs = [
            self._output(call.profile, tensor) for tensor in self.tensors["outputs"]
        ]
        self.bound[call.profile] = call

    def _input(self, name: str, shape: torch.Size) -> Input:
        dtype = self._dtype(name)
        large = shape.numel() * torch.empty(0, dtype=dtype).element_size() > SMALL
        return Input(
            name, dtype, self.inputs[name], self.staging.get(name) if large else None
        )

    def _output(self, profile: int, declared: dict[str, Any]) -> Output:
        """The output, bound to memory of its size if TensorRT knows its shape already, else to an
        allocator.
        """
        name = declared["name"]
        context = self.contexts[profile]
        output = Output(name, self._dtype(name), getattr(torch, declared["dtype"]))
        shape = self._shape(context, name)
        if shape is None:
            context.set_output_allocator(name, self.allocators[name])
            self.allocated.add((profile, name))
            return output
        if (profile, name) in self.allocated:
            context.set_output_allocator(name, None)
        output.view = self.buffers[name].view(shape, output.dtype)
        context.set_tensor_address(name, self.buffers[name].reserve(1))
        return output

    def _shape(self, context: Any, name: str) -> tuple[int, ...] | None:
        """The output's shape for the shapes of the inputs; None if it depends on their values."""
        if self.by_value:
            return None
        try:
            shape = tuple(context.get_tensor_shape(name))
        except ValueError:  # not even the number of axes is known
            return None
        if any(size < 0 for size in shape):
            return None
        return shape

    def _dtype(self, name: str) -> torch.dtype:
        return TENSORRT_TO_TORCH[self.engine.get_tensor_dtype(name).name]

    def _context(self, profile: int) -> Any:
        if profile not in self.contexts:
            if self.shared is not None:
                context = self.shared.context()
            else:
                context = self.engine.create_execution_context()
            if context is None:
                raise RuntimeError(
                    "TensorRT could not create an execution context; the usual cause is"
                    " too little GPU memory"
                )
            context.set_optimization_profile_async(profile, self.handle)
            self.contexts[profile] = context
        return self.contexts[profile]
