"""Where the outputs of a GPU go."""

from __future__ import annotations

import torch


def handed_out(outputs: list[torch.Tensor], stream: torch.cuda.Stream, stays: bool, lends: bool) -> list[torch.Tensor]:
    """The outputs once the stream has made them. In a step of an ensemble, and where an input came on the GPU (CUDA
    shared memory), they stay there, and nothing goes through the host; else they go to the CPU, where the answer is
    wanted. Triton copies them after `execute` and before the next one: the engine's own buffers are lent for one
    request, copied for more.
    """
    if not stays:
        return [output.cpu() for output in outputs]
    kept = outputs if lends else [output.clone() for output in outputs]
    stream.synchronize()
    return kept
