"""Memory for activations that several execution contexts of one plan share."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .memory import Storage


class Activations:
    """GPU memory for the activations of a plan, as large as its largest profile needs.

    The contexts of `context` use it, so only one may run at a time. Enter this object to enqueue a
    call on the current stream: the GPU then runs the call after the previous one, which may be on
    another stream. Copies on the streams still overlap with calls.
    """

    def __init__(self, trt: Any, engine: Any, device: torch.device) -> None:
        self.trt = trt
        self.engine = engine
        self.size = _size(engine)
        self.memory = Storage(device)
        self.lock = threading.Lock()
        self.done = torch.cuda.Event() if device.type == "cuda" else None

    def context(self) -> Any:
        """Return a new execution context that uses this memory. None if TensorRT fails."""
        context = self._without_memory()
        if context is None:
            return None
        address = self.memory.reserve(self.size)
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(address, self.size)
        else:
            context.device_memory = address
        return context

    def _without_memory(self) -> Any:
        if hasattr(self.trt, "ExecutionContextAllocationStrategy"):
            return self.engine.create_execution_context(
                self.trt.ExecutionContextAllocationStrategy.USER_MANAGED
            )
        return self.engine.create_execution_context_without_device_memory()

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.done is not None:
            self.done.wait()

    def __exit__(self, *_: object) -> None:
        if self.done is not None:
            self.done.record()
        self.lock.release()


def _size(engine: Any) -> int:
    if hasattr(engine, "device_memory_size_v2"):
        return int(engine.device_memory_size_v2)
    return int(engine.device_memory_size)
