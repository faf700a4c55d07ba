"""The memory of an engine's tensors, and copies between the CPU and the GPU."""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 1 << 20
"""Bytes that are copied at once: while the GPU reads one block, the next is prepared."""


class Storage:
    """A block of memory that grows and is reused by each call. Views from before it grew stay
    valid. `pinned`: page-locked memory of the host. The GPU reads and writes it directly, several
    times as fast as other memory of the host.
    """

    def __init__(self, device: Any, pinned: bool = False) -> None:
        self.device = device
        self.pinned = pinned
        self.storage = torch.empty(0, dtype=torch.uint8, device=device)

    def reserve(self, size: int) -> int:
        """The address of at least `size` bytes. It is never null: TensorRT does not accept that."""
        if self.storage.numel() < max(size, 1):
            self.storage = torch.empty(
                max(size, 1),
                dtype=torch.uint8,
                device=self.device,
                pin_memory=self.pinned,
            )
        return self.storage.data_ptr()

    def view(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The first bytes as a tensor."""
        size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
        self.reserve(size)
        return self.storage[:size].view(dtype).view(shape)


class Staging:
    """Page-locked memory between tensors of the host and the GPU. The next call reuses it, so the
    stream must have been awaited before.
    """

    def __init__(self, pinned: bool = True) -> None:
        self.ready = Storage("cpu", pinned)

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue the copy of a host's tensor of the same dtype and shape on the current stream.
        Both are contiguous.
        """
        target_bytes, source_bytes = (  # reshape(-1) of one element keeps its stride
            tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
            for tensor in (target, source)
        )
        staged = self.ready.view(tuple(source_bytes.shape), torch.uint8)
        for begin in range(0, source_bytes.numel(), CHUNK):
            part = slice(begin, begin + CHUNK)
            staged[part].copy_(source_bytes[part])
            target_bytes[part].copy_(staged[part], non_blocking=True)

    def download(self, source: torch.Tensor) -> torch.Tensor:
        """The host tensor that has the GPU tensor's values once the stream reaches this point."""
        return self.ready.view(tuple(source.shape), source.dtype).copy_(
            source, non_blocking=True
        )


def allocator(trt: Any, buffer: Storage) -> Any:
    """TensorRT's allocator for an output whose shape depends on the data: TensorRT requests memory,
    and reports the shape afterwards, as `shape`.
    """

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.shape: tuple[int, ...] = ()

        def reallocate_output(
            self, name: str, memory: int, size: int, alignment: int
        ) -> int:
            return buffer.reserve(size)

        def reallocate_output_async(
            self, name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return buffer.reserve(size)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator()
