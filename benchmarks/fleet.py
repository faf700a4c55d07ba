"""Distributes jobs to one worker process for each GPU. Each worker takes the next free job."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks import records

Job = tuple[str, str]
"""A network and a precision."""

FAILED = 3
"""The exit code of a worker that finished but had failed jobs."""
RESTARTS = 6


def claimed(jobs: Iterable[Job], claims: Path | None, deadline: float) -> Iterator[Job]:
    """Yield, in order, the jobs that this process takes first. None begins after `deadline`
    (time.time()).
    """
    for job in jobs:
        if time.time() > deadline:
            print(f"out of budget before {' '.join(job)}", flush=True)
            return
        if claims is None or _claim(claims / "-".join(job)):
            yield job


def measured(
    jobs: Iterable[Job], rows: Callable[[str, str], Iterable[records.Row]], file: Path
) -> int:
    """Append the rows of each job to `file` and print them as they are measured. The exit code
    reports whether a job failed.
    """
    import torch

    code = 0
    for job in jobs:
        begun = time.monotonic()
        try:
            for row in rows(*job):
                records.append(file, [row])
                print(json.dumps(row), flush=True)
        except Exception:
            code = FAILED
            print(f"{' '.join(job)} failed:\n{traceback.format_exc()}", flush=True)
        print(f"{' '.join(job)}: {time.monotonic() - begun:.0f} s", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return code


def _claim(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def run(module: str, arguments: list[str], uuids: list[str], deadline: float) -> int:
    """Run one `python -m module ARGUMENTS` pinned to each GPU until the jobs are done.

    Returns the number of failed workers. A worker that dies loses its job. It is replaced by one
    that continues with the next job, while there is time.
    """
    with tempfile.TemporaryDirectory() as claims:
        command = [
            sys.executable,
            "-m",
            module,
            *arguments,
            "--claims",
            claims,
            "--until",
            str(deadline),
        ]
        start = [(uuid, _start(command, uuid)) for uuid in uuids]
        return _watch(command, dict(start), deadline)


def _start(command: list[str], uuid: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid})


def _watch(
    command: list[str], workers: dict[str, subprocess.Popen[bytes]], deadline: float
) -> int:
    died = 0
    while workers:
        for uuid, worker in list(workers.items()):
            code = worker.poll()
            if code is None:
                continue
            del workers[uuid]
            died += code != 0
            if code not in (0, FAILED):
                print(f"the worker of {uuid} ended with {code}", flush=True)
                if time.time() < deadline and died <= RESTARTS:
                    workers[uuid] = _start(command, uuid)
        time.sleep(0.5)
    return died
