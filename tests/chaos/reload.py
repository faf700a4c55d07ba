"""Loads a trivial model of Triton's Python backend repeatedly.

The model is written without trt-build, so the memory that the server keeps is due to Triton.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from tests.chaos import census
from tests.chaos.counts import Results
from tests.chaos.servers import start_free

KEPT = "kept"
CODE = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", tensor)]) for tensor in tensors]
"""
CONFIG = """
backend: "python"
input {{ name: "x" data_type: TYPE_FP32 dims: 2 }}
output {{ name: "y" data_type: TYPE_FP32 dims: 2 }}
instance_group {{ kind: KIND_CPU count: 1 }}
parameters {{ key: "load" value {{ string_value: "{}" }} }}
"""
LOAD_TIMEOUT = 20.0
SAMPLES = 16


@dataclass
class Counts(Results):
    """The results.

    `server_mib`: the server's allocated memory at equal distances. `kib_per_load`: the growth
    between the medians of their second and last quarter; the first quarter is warm-up.
    """

    mode: str
    loads: int
    new_names: bool
    """Whether each load uses a new model name, like steps of ensembles."""
    names: int = 1
    """The number of names that the loads use in turn, unless each has a new one."""
    at_once: bool = False
    """Whether a name is loaded again while the server still unloads it."""
    crashed_at: int | None = None
    """The number of loads after which the server crashed."""
    start_mib: float = 0.0
    end_mib: float | None = None
    kib_per_load: float | None = None
    seconds: float = 0.0
    server_mib: list[float] = field(default_factory=list)


def run(
    folder: Path,
    mode: str,
    loads: int,
    *,
    new_names: bool = False,
    names: int = 1,
    at_once: bool = False,
) -> Counts:
    """Load and unload a model `loads` times, at least SAMPLES, in a separate server."""
    counts, served = Counts(mode, loads, new_names, names, at_once), folder / "served"
    _write(served, KEPT, 0)
    with start_free(served, mode, KEPT, folder / "log") as server:
        server.wait_ready(LOAD_TIMEOUT)
        client = InferenceServerClient(server.http_url, network_timeout=LOAD_TIMEOUT)
        counts.start_mib = round(census.memory(server.process.pid).allocated, 2)
        began = time.monotonic()
        for number in range(loads):
            try:
                _load_once(client, served, number, counts)
            except (OSError, InferenceServerException, TimeoutError):
                if server.process.poll() is None:
                    raise
                counts.crashed_at = number
                break
            if (number + 1) % (loads // SAMPLES) == 0:
                held = census.memory(server.process.pid).allocated
                counts.server_mib.append(round(held, 2))
        counts.seconds = round(time.monotonic() - began, 1)
        client.close()
    _sum(counts)
    return counts


def _load_once(
    client: InferenceServerClient, served: Path, number: int, counts: Counts
) -> None:
    """Add the model, wait until it is ready, remove it, and wait until it is unloaded."""
    name = f"m{number if counts.new_names else number % counts.names}"
    mode = counts.mode
    _write(served, name, number)
    if mode == "explicit":
        client.load_model(name)
    _await(lambda: client.is_model_ready(name))
    if mode == "explicit":
        client.unload_model(name)
    shutil.rmtree(served / name)
    _await(lambda: not client.is_model_ready(name))
    if not counts.at_once:
        _await(lambda: not _is_unloading(client, name))


def _is_unloading(client: InferenceServerClient, name: str) -> bool:
    return any(
        one["name"] == name and one.get("state") == "UNLOADING"
        for one in client.get_model_repository_index()
    )


def _write(served: Path, name: str, number: int) -> None:
    """Write the model beside the repository and move it in with one rename: a poll may occur at any
    time.
    """
    staging = served.parent / "staging"
    (staging / "1").mkdir(parents=True)
    (staging / "1" / "model.py").write_text(CODE)
    (staging / "config.pbtxt").write_text(CONFIG.format(number))
    served.mkdir(exist_ok=True)
    staging.rename(served / name)


def _await(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LOAD_TIMEOUT
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server changed nothing for {LOAD_TIMEOUT:g} s")
        time.sleep(0.05)


def _sum(counts: Counts) -> None:
    mib, quarter = counts.server_mib, len(counts.server_mib) // 4
    if counts.crashed_at is not None:
        counts.end_mib = counts.kib_per_load = None
        return
    grown = median(mib[-quarter:]) - median(mib[quarter : 2 * quarter])
    counts.end_mib = mib[-1]
    # the centers of the two quarters are half of the run apart
    counts.kib_per_load = round(grown * 1024 / (counts.loads / 2), 1)
