"""The Ray task on a machine: it starts the process of a job and forwards its events.

The Ray process itself reads no model. The build receives a few environment variables of the
machine, including those in the farm file, and none of the caller's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from builder import processes
from builder.farm import cluster

PASSED_VARIABLES = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SSL_CERT_FILE"),
    *("TRT_BUILD_CACHE", "TRT_BUILD_STORE_KEY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    "TRT_BUILD_TRITONSERVER",
)
"""Environment variables of the machine that every build receives."""
LOG_BYTES = 64 << 10
"""The number of bytes of a build's output, from its end, that are returned."""


class JobLost(Exception):
    """The process of a job ended without a result: it was killed, or ran out of memory."""


def build(
    job: str, environment: Sequence[str], threads: int
) -> Iterator[dict[str, Any]]:
    """Yield the events of a job: "started" first, "ended" last. Raises JobLost.

    `job` is a Job as JSON, `environment` has names of variables, `threads` is the number of cores
    for OpenMP.
    """
    ray = cluster.import_ray()
    node = ray.util.get_node_ip_address()
    identity = ray.get_runtime_context().get_node_id()
    yield {"event": "started", "node": node, "node_id": identity, "pid": os.getpid()}
    yield from events(job, variables(environment, threads))


def variables(names: Sequence[str], threads: int) -> dict[str, str]:
    """Return the environment of a build on this machine. PYTHONPATH begins with this
    installation.
    """
    passed = {*PASSED_VARIABLES, *names}
    values = {name: value for name, value in os.environ.items() if name in passed}
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([here, *filter(None, [values.get("PYTHONPATH")])])
    return {**values, "PYTHONPATH": path, "OMP_NUM_THREADS": str(max(threads, 1))}


def events(job: str, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the events of the process of a job; the last one has its log. Raises JobLost."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "builder.farm.task"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )
        try:
            ended = yield from _forwarded(process, job)
        finally:
            _end(process)
        if ended is None:
            raise JobLost(
                f"the process of the job ended with code {process.returncode}:\n{_tail(log)}"
            )
        yield {**ended, "log": _tail(log)}


def _forwarded(
    process: subprocess.Popen[str], job: str
) -> Iterator[dict[str, Any]] | Any:
    """Forward events. Returns the last one; None if the process ended without it."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{job}\n")
    process.stdin.flush()
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "ended":
            return event
        yield event
    return None


def _end(process: subprocess.Popen[str]) -> None:
    """Close the standard input of the process, which ends it, and wait for it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(processes.GRACE_SECONDS + 10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_BYTES))
    return log.read().decode(errors="replace")
