"""Fakes of TensorRT, the CUDA driver and Triton's pb_utils on the CPU.

They count calls of the runtime and fail on invalid ones.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.resources import files
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

NUMPY = {"FLOAT": torch.float32, "INT32": torch.int32, "BOOL": torch.bool}
Shape = tuple[int, ...]


@dataclass
class Plan:
    """A fake plan.

    `run` computes the outputs. `shapes` computes their shapes from those of the inputs, with -1 for
    a size that depends on data. `calls` counts calls of TensorRT.
    """

    inputs: dict[str, str]
    outputs: dict[str, str]
    run: Callable[..., Sequence[torch.Tensor]]
    shapes: Callable[..., Sequence[Shape]]
    calls: Counter[str] = field(default_factory=Counter)
    by_value: bool = False


PLAN: list[Plan] = []
"""The last element is the plan that the next deserialization returns."""


def tensor_at(address: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """The memory at an address as a tensor."""
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    size = count * torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer(
        (ctypes.c_char * size).from_address(address), dtype=dtype
    ).view(shape)


class Context:
    """An execution context."""

    def __init__(self, plan: Plan, driver: Driver) -> None:
        self.plan, self.driver, self.shapes, self.addresses = (
            plan,
            driver,
            dict[str, Shape](),
            dict[str, int](),
        )
        self.allocators: dict[str, Any] = {}
        self.flushed = False
        self.device_memory: int | None = None

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        self.plan.calls["set_input_shape"] += 1
        self.flushed &= self.shapes.get(name) == shape
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.plan.calls["set_tensor_address"] += 1
        assert address, "TensorRT refuses a null address"
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.plan.calls["set_output_allocator"] += 1
        self.allocators[name] = allocator
        return True

    def get_tensor_shape(self, name: str) -> Shape:
        return dict(
            zip(self.plan.outputs, self.plan.shapes(*self.shapes.values()), strict=True)
        )[name]

    def execute_async_v3(self, stream: int) -> bool:
        self.plan.calls["execute"] += 1
        if self.driver.capturing is None:
            self.flushed = True
            self._work(dict(self.shapes), dict(self.addresses))()
            return True
        assert self.flushed, "TensorRT requires a run between new shapes and a capture"
        self.driver.capturing.append(
            self._work(dict(self.shapes), dict(self.addresses))
        )
        return self.driver.accepts_captures

    def _work(
        self, shapes: dict[str, Shape], addresses: dict[str, int]
    ) -> Callable[[], None]:
        def run() -> None:
            assert shapes == self.shapes, (
                "a graph is replayed after its context got other shapes"
            )
            inputs = [
                tensor_at(addresses[n], shapes[n], NUMPY[d])
                for n, d in self.plan.inputs.items()
            ]
            for name, made in zip(
                self.plan.outputs, self.plan.run(*inputs), strict=True
            ):
                address = addresses.get(name, 0)
                if allocator := self.allocators.get(name):
                    address = allocator.reallocate_output(
                        name, 0, made.numel() * made.element_size(), 256
                    )
                    allocator.notify_shape(name, tuple(made.shape))
                tensor_at(address, tuple(made.shape), made.dtype).copy_(made)

        return run


class Driver:
    """libcuda: capture of streams and launch of graphs."""

    def __init__(self) -> None:
        self.capturing: list[Callable[[], None]] | None = None
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.accepts_captures, self.capture_error = True, 0
        self.launched, self.captured = 0, 0

    def cuStreamBeginCapture_v2(self, stream: int, mode: int) -> int:
        self.capturing = []
        return 0

    def cuStreamEndCapture(self, stream: int, graph: Any) -> int:
        self.captured += 1
        graph._obj.value = self.captured
        self.graphs[self.captured] = self.capturing or []
        self.capturing = None
        return self.capture_error

    def cuGraphInstantiateWithFlags(
        self, executable: Any, graph: Any, flags: int
    ) -> int:
        executable._obj.value = graph.value + 1000
        self.graphs[graph.value + 1000] = self.graphs[graph.value]
        return 0

    def cuGraphLaunch(self, executable: Any, stream: int) -> int:
        self.launched += 1
        for work in self.graphs[executable.value]:
            work()
        return 0

    def cuGraphExecDestroy(self, executable: Any) -> int:
        del self.graphs[executable.value]
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        del self.graphs[graph.value]
        return 0


class NewContext(Context):
    """An execution context of TensorRT 10.16 and later."""

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size == DEVICE_MEMORY
        self.device_memory = memory


DEVICE_MEMORY = 64
"""Bytes that a context needs for activations."""


def tensorrt(driver: Driver) -> ModuleType:
    """A module `tensorrt` that deserializes the plans in PLAN."""

    class Engine:
        device_memory_size = DEVICE_MEMORY

        def __init__(self, plan: Plan) -> None:
            self.plan = plan

        def create_execution_context_without_device_memory(self) -> Context:
            return Context(self.plan, driver)

        def create_execution_context(self) -> Context:
            return Context(self.plan, driver)

        def get_tensor_dtype(self, name: str) -> Any:
            return SimpleNamespace(name={**self.plan.inputs, **self.plan.outputs}[name])

        def is_shape_inference_io(self, name: str) -> bool:
            return self.plan.by_value

    module: Any = ModuleType("tensorrt")
    module.__spec__ = ModuleSpec("tensorrt", None)  # torch's dispatch modes look for it
    module.Logger = lambda severity: None
    module.Logger.WARNING = 1  # type: ignore[attr-defined]
    module.IOutputAllocator = object
    module.Runtime = lambda logger: SimpleNamespace(
        deserialize_cuda_engine=lambda data: Engine(PLAN[-1])
    )
    return module


class Tensor:
    """A tensor of Triton."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, torch.as_tensor(value)

    def name(self) -> str:
        return self._name

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> Any:
        return self._value.numpy()

    def to_dlpack(self) -> Any:
        return torch.utils.dlpack.to_dlpack(self._value)

    @staticmethod
    def from_dlpack(name: str, capsule: Any) -> Tensor:
        return Tensor(name, torch.utils.dlpack.from_dlpack(capsule))


class Request:
    """A request of Triton."""

    def __init__(self, outputs: Sequence[str], **inputs: torch.Tensor) -> None:
        self.tensors, self.outputs = (
            {n: Tensor(n, t) for n, t in inputs.items()},
            list(outputs),
        )

    def requested_output_names(self) -> list[str]:
        return self.outputs

    def parameters(self) -> str:
        return "{}"


class Response:
    """A response of Triton before 25.02, which refuses parameters."""

    refused = 0

    def __init__(
        self, output_tensors: Any = (), error: Any = None, **more: Any
    ) -> None:
        if more:
            Response.refused += 1
            raise TypeError(more)
        self.tensors, self.error = {t.name(): t._value for t in output_tensors}, error


def _log(message: str) -> None:
    LOG.append(message)


LOG: list[str] = []


def pb_utils() -> ModuleType:
    """The module `triton_python_backend_utils`."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.Logger = SimpleNamespace(log_info=_log, log_warn=_log, log_error=_log)
    module.Tensor, module.InferenceResponse = Tensor, Response
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    module.get_input_tensor_by_name = lambda request, name: request.tensors.get(name)
    module.TritonError = lambda text, code: text
    module.TritonError.INTERNAL = module.TritonError.INVALID_ARG = 0
    return module


def runtime() -> tuple[Any, dict[str, Any]]:
    """Import model.py with the fakes; sys.modules does not change.

    Returns model.py and the modules of the runtime by name.
    """
    before = dict(sys.modules)
    for name in [
        name for name in sys.modules if name.split(".")[0] == "trt_build_runtime"
    ]:
        del sys.modules[name]
    sys.modules["triton_python_backend_utils"] = pb_utils()
    path = files("builder") / "templates" / "runtime" / "model.py"
    spec = importlib.util.spec_from_file_location("model_with_fakes", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = {
            n.split(".")[1]: m
            for n, m in sys.modules.items()
            if n.startswith("trt_build_runtime.")
        }
    finally:
        sys.modules.clear()
        sys.modules.update(before)
    return module, found
