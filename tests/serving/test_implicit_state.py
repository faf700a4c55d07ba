"""Triton's Python backend cannot return implicit state, so the Python runtime keeps it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builder.parity.clients import HttpClient, SequencePosition
from builder.serving import FREE_PORTS, serve

pytestmark = pytest.mark.live

CONFIG = """\
name: "summing" backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU }
sequence_batching {
  oldest { max_candidate_sequences: 8 }
  state {
    input_name: "sum" output_name: "new" data_type: TYPE_FP32 dims: 1
    initial_state { name: "zero" data_type: TYPE_FP32 dims: 1 zero_data: true }
  }
}
"""
MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x, total = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("x", "sum"))
        new = x + total
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", new), pb_utils.Tensor("new", new)])
"""


def test_python_backend_does_not_keep_implicit_state(tmp_path: Path) -> None:
    """If this fails, Triton supports it and the Python runtime can use it."""
    (tmp_path / "summing" / "1").mkdir(parents=True)
    (tmp_path / "summing" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "summing" / "1" / "model.py").write_text(MODEL)
    with serve(tmp_path, **FREE_PORTS) as server:
        client = HttpClient(server.http_url, 30)
        one = {"x": np.ones((1, 1), np.float32)}
        outputs = [
            client.infer("summing", one, position=SequencePosition(7, at == 0, at == 2))
            .outputs["y"]
            .item()
            for at in range(3)
        ]
        client.close()
    assert outputs == [1, 1, 1]
