"""The memory that an engine reads its inputs from and writes its outputs to."""

from __future__ import annotations

from typing import Any

import torch


class Storage:
    """One growing piece of the GPU's memory, used again by each call. What was viewed before it grew stays valid."""

    def __init__(self, device: Any) -> None:
        self.storage = torch.empty(0, dtype=torch.uint8, device=device)

    def reserve(self, size: int) -> int:
        """The address of `size` bytes at least, never null: TensorRT takes none."""
        if self.storage.numel() < max(size, 1):
            self.storage = torch.empty(max(size, 1), dtype=torch.uint8, device=self.storage.device)
        return self.storage.data_ptr()

    def view(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The first bytes as a tensor."""
        size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
        self.reserve(size)
        return self.storage[:size].view(dtype).view(shape)


def allocator(trt: Any, buffer: Storage) -> Any:
    """TensorRT's way to an output whose shape depends on the data: it asks for memory, and says the shape afterwards,
    as `shape`."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.shape: tuple[int, ...] = ()

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            return buffer.reserve(size)

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return buffer.reserve(size)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator()
