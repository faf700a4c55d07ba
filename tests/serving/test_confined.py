"""The sandbox of a served model, in a real process of Triton's Python backend."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http as triton_http

from builder import processes
from builder.serving import FREE_PORTS, serve

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(processes.missing()) or Path("/dev/nvidiactl").exists(),
        reason="needs Landlock and seccomp and no GPU; with a GPU models are not confined",
    ),
]

MODEL = """
import os
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trt_build_runtime.confine import confine


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])
        self.held = confine(self.folder) if "free" not in args["model_name"] else ()

    def actions(self):
        folder = self.folder
        outside = folder.parents[1]
        yield "write own", lambda: (folder / "new").write_text("x")
        yield "overwrite own", lambda: (folder / "config.pbtxt").open("r+").close()
        yield "write outside", lambda: (outside / "new").write_text("x")
        yield "write temporary", lambda: tempfile.TemporaryFile().close()
        yield "read other model", lambda: (folder.parent / "other" / "config.pbtxt").read_text()
        yield "read outside", lambda: (outside / "secret.txt").read_text()
        yield "read other memory", lambda: Path("/dev/shm/trt-build-test-secret").read_text()
        yield "TCP", lambda: socket.socket(socket.AF_INET).close()
        yield "local socket", lambda: socket.socket(socket.AF_UNIX).close()
        yield "a child's write", lambda: self.child()
        yield "read own", lambda: (folder / "config.pbtxt").read_text()
        yield "import", lambda: __import__("sqlite3")

    def child(self):
        if os.system(f"echo x 2>/dev/null > {self.folder}/child"):
            raise PermissionError

    def execute(self, requests):
        names = [f"held {name}" for name in self.held]
        for name, act in self.actions():
            try:
                act()
                names.append(name)
            except OSError:
                pass
        # larger than the shared memory at the start of the process
        big = pb_utils.Tensor("big", np.ones((1 << 22,), np.float32))
        done = pb_utils.Tensor("done", np.array([", ".join(names)], object))
        return [pb_utils.InferenceResponse([done, big]) for _ in requests]
"""
CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [-1] }
output { name: "done" data_type: TYPE_STRING dims: [1] }
output { name: "big" data_type: TYPE_FP32 dims: [-1] }
instance_group { kind: KIND_CPU count: 1 }
"""
RUNTIME = files("builder") / "templates" / "runtime" / "trt_build_runtime"


def test_confined_model_can_only_read_its_folder(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "repository"
    for name in ("net", "free", "other"):
        shutil.copytree(str(RUNTIME), repository / name / "1" / "trt_build_runtime")
        (repository / name / "1" / "model.py").write_text(MODEL)
        (repository / name / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "secret.txt").write_text("secret")
    memory = Path("/dev/shm/trt-build-test-secret")
    memory.write_text("secret")
    try:
        with (
            serve(repository, **FREE_PORTS) as server,
            triton_http.InferenceServerClient(server.http_url) as client,
        ):
            actions = {
                name: completed_actions(client, name) for name in ("net", "free")
            }
    finally:
        memory.unlink()
    assert actions["net"] == {"held landlock", "held seccomp", "read own", "import"}
    # an unconfined model can do everything
    assert len(actions["free"]) == 12


def completed_actions(client: triton_http.InferenceServerClient, name: str) -> set[str]:
    x = triton_http.InferInput("x", [1 << 22], "FP32")
    x.set_data_from_numpy(np.ones((1 << 22,), np.float32))
    response = client.infer(name, [x])
    assert response.as_numpy("big").sum() == 1 << 22
    return set(response.as_numpy("done")[0].decode().split(", "))


def test_published_model_is_confined(valid_repository: Path) -> None:
    with serve(valid_repository, **FREE_PORTS) as server:
        assert "confined by landlock, seccomp" in server.log()
