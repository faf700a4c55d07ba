"""Where the outputs of a GPU go."""

from __future__ import annotations

from typing import Any

import torch

from .memory import Staging


class Landing:
    """Page-locked memory of the host for each output of one model, used again by the next
    request.
    """

    def __init__(self) -> None:
        self.staging: dict[int, Staging] = {}

    def land(self, outputs: list[torch.Tensor], stream: Any) -> list[torch.Tensor]:
        """The outputs on the host, lent until the next call."""
        landed = [
            self.staging.setdefault(n, Staging()).download(output)
            for n, output in enumerate(outputs)
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
    """The outputs once the stream has made them. In a step of an ensemble, and where an input came
    on the GPU (CUDA shared memory), they stay there, and nothing goes through the host; else they
    go to the CPU, where the answer is wanted. Triton copies them after `execute` and before the
    next one: the engine's own buffers, and where they land on the host, are lent for one request,
    copied for more.

    Triton knows nothing of the stream and takes no gaps, so an output must lie in a row (CUDA's
    nonzero lays its own by columns) before the stream is awaited: what is laid so afterwards may be
    read before it is written.
    """
    if not stays:
        if landing and lends:
            return landing.land(outputs, stream)
        return [output.cpu() for output in outputs]
    row = torch.contiguous_format
    kept = [output.contiguous() if lends else output.clone(memory_format=row) for output in outputs]
    stream.synchronize()
    return kept
