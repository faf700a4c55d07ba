"""Where the outputs of a GPU are returned."""

from __future__ import annotations

from typing import Any

import torch

from .memory import Staging


class HostOutputs:
    """Page-locked memory of the host for each output of one model. The next request reuses it."""

    def __init__(self) -> None:
        self.staging: dict[int, Staging] = {}

    def download_all(
        self, outputs: list[torch.Tensor], stream: Any
    ) -> list[torch.Tensor]:
        """The outputs on the host, valid until the next call."""
        copied = [
            self.staging.setdefault(number, Staging()).download(output)
            for number, output in enumerate(outputs)
        ]
        stream.synchronize()
        return copied


def outputs_for_triton(
    outputs: list[torch.Tensor],
    stream: Any,
    stays: bool,
    returns_buffers: bool,
    host_outputs: HostOutputs | None = None,
) -> list[torch.Tensor]:
    """The outputs after the stream has computed them.

    They stay on the GPU in a step of an ensemble, and if an input came on the GPU (CUDA shared
    memory). Otherwise they are copied to the CPU. Triton copies them after `execute`, or in `send`,
    and before the next call. So for one request the buffers of the engine and of the host are
    returned themselves, and for several requests copies.

    Triton does not know the stream and requires contiguous outputs. So an output must be made
    contiguous (CUDA's nonzero stores its own by columns) before the stream is awaited: a later copy
    may be read before it is written.
    """
    if not stays:
        if host_outputs and returns_buffers:
            return host_outputs.download_all(outputs, stream)
        return [output.cpu() for output in outputs]
    row = torch.contiguous_format
    contiguous = [
        output.contiguous() if returns_buffers else output.clone(memory_format=row)
        for output in outputs
    ]
    stream.synchronize()
    return contiguous
