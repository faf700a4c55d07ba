"""A call of an engine with inputs of given shapes. What it needs is determined once."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

from typing import Any

import torch

from . import graphs
from .memory import Storage

FAILED = "TensorRT could not run the plan; the server's log has its reason above"


class Input:
    """One input: its buffer, for tensors that the engine cannot read, and the address in use."""

    def __init__(
        self, name: str, dtype: torch.dtype, storage: Storage, staging: Any
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.storage = storage
        self.staging = staging
        self.address = 0
        self.buffer: Any = None  # a tensor, once it is needed

    def engine_input(
        self, tensor: torch.Tensor, device: torch.device, copies: bool
    ) -> torch.Tensor:
        """The tensor itself if the engine can read it and `copies` is false, else a copy in the
        buffer.
        """
        if (
            not copies
            and tensor.dtype is self.dtype
            and tensor.device == device
            and tensor.is_contiguous()
        ):
            return tensor
        if self.buffer is None:
            self.buffer = self.storage.view(tuple(tensor.shape), self.dtype)
        return self.fill(tensor)

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """The buffer with the tensor's values. Tensors of the host are copied through page-locked
        memory.
        """
        if (
            self.staging is None
            or tensor.is_cuda
            or tensor.dtype is not self.dtype
            or not tensor.is_contiguous()
        ):
            return self.buffer.copy_(tensor, non_blocking=True)
        self.staging.upload(self.buffer, tensor)
        return self.buffer


class Output:
    """One output: `view` is the buffer it is written to, None if its shape depends on the data."""

    def __init__(
        self, name: str, dtype: torch.dtype, module_dtype: torch.dtype
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.module_dtype = module_dtype
        self.view: Any = None


class Call:
    """A call bound to its execution context. The context belongs to it until another one is bound
    there.
    """

    def __init__(self, profile: int, shapes: tuple[torch.Size, ...]) -> None:
        self.profile = profile
        self.shapes = shapes
        self.inputs: list[Input] = []
        self.outputs: list[Output] = []
        self.graph: Any = None
        self.calls = 0

    def run(
        self, engine: Any, context: Any, tensors: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Enqueue on the engine's stream, which is the current one. The outputs have the module's
        element types.
        """
        if self.graph is not None:
            for input_, tensor in zip(self.inputs, tensors):
                input_.fill(tensor)
            with engine.exclusive:
                self.graph.launch(engine.handle)
        else:
            self.calls += 1
            captures = self.calls == engine.steady and all(
                output.view is not None for output in self.outputs
            )
            self._enqueue(engine, context, tensors, captures)
            if captures:
                self._capture(engine, context)
        return [self._take(engine, output) for output in self.outputs]

    def unbind(self) -> None:
        """Discard the captured graph, because the context gets other shapes."""
        if self.graph is not None:
            self.graph.close()
        self.graph = None
        self.calls = 0

    def _enqueue(
        self, engine: Any, context: Any, tensors: list[torch.Tensor], copies: bool
    ) -> None:
        for input_, tensor in zip(self.inputs, tensors):
            readable = input_.engine_input(tensor, engine.device, copies)
            address = readable.data_ptr() or engine.placeholder.reserve(1)
            if address != input_.address:
                context.set_tensor_address(input_.name, address)
                input_.address = address
        with engine.exclusive:
            enqueued = context.execute_async_v3(engine.handle)
        if not enqueued:
            raise RuntimeError(FAILED)

    def _capture(self, engine: Any, context: Any) -> None:
        """Use a CUDA graph from now on, if capturing succeeds and the first replay gives the same
        outputs, bit for bit.
        """
        views = [
            result.view.reshape(-1).view(torch.uint8)
            for result in self.outputs
            if result.view.numel()
        ]
        plain = [view.clone() for view in views]
        try:
            graph = graphs.capture(
                engine.handle, lambda: context.execute_async_v3(engine.handle)
            )
            with engine.exclusive:
                graph.launch(engine.handle)
            if not all(torch.equal(*pair) for pair in zip(plain, views)):
                graph.close()
                raise graphs.CannotCapture("the captured graph returns other outputs")
            self.graph = graph
        except Exception as reason:
            engine.no_graphs(reason)
            for view, output in zip(views, plain):
                view.copy_(output)

    def _take(self, engine: Any, output: Output) -> torch.Tensor:
        value = output.view
        if value is None:
            value = engine.buffers[output.name].view(
                engine.allocators[output.name].shape, output.dtype
            )
        if output.dtype is output.module_dtype:
            return value
        return value.to(output.module_dtype)
