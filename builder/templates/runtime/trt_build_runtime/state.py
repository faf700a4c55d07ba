"""The state that a model keeps between the requests of a sequence."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from .errors import InvalidRequest


class Memory:
    """The state of every open sequence of this instance, by correlation id. Empty for a model
    without state.

    Triton sends all requests of a sequence to one instance, in order, at most one of them in a
    batch. It refuses a sequence that does not begin with a start, and does not report that it ended
    one without requests for too long. So the least recently used states are discarded when more are
    kept than can be open.
    """

    def __init__(self, folder: Path, tensors: dict[str, Any], batching: bool) -> None:
        self.states = tensors.get("state", ())
        self.limit = tensors.get("max_sequences", 0)
        self.indices = {
            tensor["name"]: index for index, tensor in enumerate(tensors["outputs"])
        }
        self.start = {
            state["input"]: _start(folder, state, batching) for state in self.states
        }
        self.sequences: OrderedDict[Any, dict[str, torch.Tensor]] = OrderedDict()

    def of(self, request: Any) -> dict[str, torch.Tensor]:
        """The state for the request, by input name. A start resets the sequence."""
        if not self.states:
            return {}
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sequences.pop(request.correlation_id(), None)
            return self.start
        if request.correlation_id() not in self.sequences:
            raise InvalidRequest(
                f"sequence {request.correlation_id()} has no state: its start failed, so start it"
                " again"
            )
        return self.sequences[request.correlation_id()]

    def keep(self, request: Any, outputs: Any) -> None:
        """Store the state after the request. A failed request does not change it."""
        if not self.states:
            return
        sequence = request.correlation_id()
        if not isinstance(outputs, Exception):
            self.sequences[sequence] = {
                state["input"]: self._copy(outputs, state["output"])
                for state in self.states
            }
            self.sequences.move_to_end(sequence)
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            self.sequences.pop(sequence, None)
        while len(self.sequences) > self.limit:
            self.sequences.popitem(last=False)

    def _copy(self, outputs: list[torch.Tensor], output: str) -> torch.Tensor:
        """A copy, because the output may be a row of a batch or a buffer that the next run reuses.
        It is on the CPU, so that sequences of clients with and without CUDA shared memory are
        joined to one batch.
        """
        return outputs[self.indices[output]].detach().to("cpu", copy=True).contiguous()


def _start(folder: Path, state: dict[str, Any], batching: bool) -> torch.Tensor:
    """The initial state of a sequence, of the model's shape: zeros, or the raw values of a file."""
    dtype = getattr(torch, state["dtype"])
    shape = ([1] if batching else []) + state["shape"]
    if state["initial"] == "zeros":
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(
        bytearray((folder / state["initial"]).read_bytes()), dtype=dtype
    ).reshape(shape)
