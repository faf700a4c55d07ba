"""Where the outputs of a GPU are returned."""

from __future__ import annotations

from typing import Any

import torch

from .memory import Staging


class Landing:
    """Page-locked memory of the host for each output of one model. The next request reuses it."""

    def __init__(self) -> None:
        self.staging: dict[int, Staging] = {}

    def land(self, outputs: list[torch.Tensor], stream: Any) -> list[torch.Tensor]:
        """The outputs on the host, valid until the next call."""
        landed = [
            self.staging.setdefault(number, Staging()).download(output)
            for number, output in enumerate(outputs)
        ]
        stream.synchronize()
        return landed


def outputs_for_triton(
    outputs: list[torch.Tensor],
    stream: Any,
    stays: bool,
    lends: bool,
    landing: Landing | None = None,
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
        if landing and lends:
            return landing.land(outputs, stream)
        return [output.cpu() for output in outputs]
    row = torch.contiguous_format
    contiguous = [
        output.contiguous() if lends else output.clone(memory_format=row)
        for output in outputs
    ]
    stream.synchronize()
    return contiguous
