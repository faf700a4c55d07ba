"""Several client processes that start their load together."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from builder.bench.job import Job, Samples
from builder.errors import EnvironmentProblem

EXTRA_SECONDS = 60.0
"""Extra seconds that a client process may take, in addition to its load and its timeout."""


def run(job: Job, count: int, begun: Callable[[], None]) -> list[Samples]:
    """Return the samples of `count` processes that share the job's load.

    `begun` is called when all are ready, before the first request. Processes without a share are
    not started. Raises EnvironmentProblem if a client process fails.
    """
    jobs = [
        replace(job, load=job.load.share(number, count), seed=job.seed + number)
        for number in range(count)
    ]
    jobs = [share for share in jobs if share.load.rate or share.load.concurrency]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.extend(map(_start, jobs))
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise _failed(process)
        begun()
        for process in started:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        return [_samples(process, job) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _start(job: Job) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "builder.bench.client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    pickle.dump(job, process.stdin)
    process.stdin.flush()
    return process


def _samples(process: subprocess.Popen[bytes], job: Job) -> Samples:
    try:
        out, err = process.communicate(
            timeout=job.seconds + job.timeout + EXTRA_SECONDS
        )
    except subprocess.TimeoutExpired:
        process.kill()
        raise EnvironmentProblem(
            "a client process of the benchmark does not end"
        ) from None
    if process.returncode or not out:
        raise _problem(err)
    samples: Samples = pickle.loads(out)  # from a process that trt-build started
    return samples


def _failed(process: subprocess.Popen[bytes]) -> EnvironmentProblem:
    _, err = process.communicate()
    return _problem(err)


def _problem(err: bytes) -> EnvironmentProblem:
    lines: Sequence[str] = err.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else "it ended without a message"
    return EnvironmentProblem(f"a client process of the benchmark failed: {reason}")
