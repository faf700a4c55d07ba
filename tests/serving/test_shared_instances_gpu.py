"""Instances that share one engine on a GPU: concurrent requests, with tensors of every kind."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc

from builder.parity.shared_memory import Regions, wire
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve
from builder.serving.stubs import Stubs
from builder.triton import Golden
from tests.serving.test_live_gpu import MANIFEST, Scores, golden

pytestmark = [pytest.mark.gpu, pytest.mark.live]

INSTANCES = 3
CLIENTS = 6
REPEATS = 60
"""More than the calls after which a CUDA graph is captured."""
CUDA_LOCK = Lock()
"""tritonclient's CUDA shared memory is not thread-safe: its calls from two threads crash."""


def answers(url: str, kind: str, one: Golden) -> list[Any]:
    """The scores of repeated requests of one client."""
    client = grpc.InferenceServerClient(url)
    found = []
    if kind == "body":
        tensor = grpc.InferInput("x", list(one.inputs["x"].shape), "FP32")
        tensor.set_data_from_numpy(one.inputs["x"])
        for _ in range(REPEATS):
            found.append(client.infer("scores", [tensor]).as_numpy("scores"))
        return found
    regions = Regions(kind, client, one)
    with CUDA_LOCK:
        regions.__enter__()
    try:
        inputs, outputs = regions.inputs(grpc), regions.outputs(grpc)
        for _ in range(REPEATS):
            client.infer("scores", inputs, outputs=outputs)
            with CUDA_LOCK:
                scores = one.outputs["scores"]
                found.append(regions.read("scores", wire(scores), scores.shape))
    finally:
        with CUDA_LOCK:
            regions.__exit__(None, None, None)
    return found


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "unbatched"])
def test_shared_instances_answer_every_client(tmp_path: Path, batching: bool) -> None:
    models = tmp_path / "models"
    models.mkdir()
    torch.jit.script(Scores().eval()).save(str(models / "scores.pt"))
    text = MANIFEST.replace("instances: 2", f"instances: {INSTANCES}")
    if not batching:
        text = text.replace("batching: {max_queue_delay_us: 5000}\n", "")
    text += "runtime: {share_engine: true}\n"
    (models / "scores.yaml").write_text(text)
    out = tmp_path / "repository"
    (result,) = build_repository(models, out, serve_as="python", isolate=False)
    assert result.ok, result.error
    kinds = ["body", "system", "cuda"] * (CLIENTS // 3)
    goldens = [golden(1 + n % 3, 16, seed=n) for n in range(CLIENTS)]
    with (
        serve(out, client_shared_memory=True, **FREE_PORTS) as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        jobs = [
            pool.submit(answers, server.grpc_url, kind, one)
            for kind, one in zip(kinds, goldens, strict=True)
        ]
        for job, one in zip(jobs, goldens, strict=True):
            for scores in job.result():
                np.testing.assert_allclose(
                    scores, one.outputs["scores"], rtol=1e-3, atol=1e-4
                )
        assert Stubs(server.process.pid).running("scores") == 1
        assert re.search(r"answered_by\W+plan", server.log())  # Triton escapes quotes
