"""The process that builds one job on a farm machine: `python -m builder.farm.task`.

The job is the first line of standard input. Events go to standard output, one JSON object a line;
the build's own output goes to standard error. When standard input ends, the machine's Ray process
has ended or canceled the task, and the build stops.

The model file is loaded in the confined child process of `builder.processes`, as on one machine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from builder import processes, unforeseen
from builder.engine import BuildOptions
from builder.errors import EnvironmentProblem, TrtBuildError
from builder.farm import verification
from builder.farm.job import Job
from builder.farm.publish import find, keep
from builder.progress import FINISHED, Progress
from builder.repository import (
    ModelResult,
    Settings,
    build_repository,
    record_goldens,
    request_of,
)
from builder.store import Folders, Hashes, digest, sources

Emit = Callable[[dict[str, Any]], None]
STOP_SECONDS = processes.GRACE_SECONDS + 5
"""Seconds that a build may take to stop before its process exits."""
PARTS = ("source", "flavor", "tensorrt", "gpu")
"""The parts of the request that the last event includes, for the report."""
VERIFIED = "verified"
"""The part of a result that comes from verification with a tritonserver."""


def perform(job: Job, emit: Emit) -> dict[str, Any]:
    """Build the job, unless the store has its publication. Returns the last event.

    Errors of the model and of this machine are in the event.
    """
    ended: dict[str, Any] = {"event": "ended", "ok": False}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trt-build-farm-") as scratch:
        try:
            ended |= _performed(job, Path(scratch), emit)
        except Exception as error:
            ended["error"] = described(unforeseen.as_defect(error), scratch)
    return {**ended, "seconds": round(time.monotonic() - started, 3)}


def _performed(job: Job, scratch: Path, emit: Emit) -> dict[str, Any]:
    if sources.version_of_all() != job.version:
        raise EnvironmentProblem(
            "the version of trt-build on this machine differs from the one that started"
            " the farm",
            fix="install the same version of trt-build on all machines",
        )
    if job.require_sandbox:
        processes.require()
    emit({"event": "phase", "phase": "fetch"})
    models = _fetched(job, scratch / "models")
    options = BuildOptions().over(job.build)
    settings = replace(Settings(**job.settings), store=job.store, options=options)
    report = partial(_report, emit)
    if job.only_goldens:
        return _recorded(job, models, settings, report)
    return _built(job, models, settings, scratch, report)


def _fetched(job: Job, models: Path) -> Path:
    """Fetch the job's files from the store into the folder `models`."""
    store = Folders(job.store)
    for name, sha256 in job.files.items():
        store.fetch(sha256, models / name)
    return models


def _built(
    job: Job, models: Path, settings: Settings, scratch: Path, report: Progress
) -> dict[str, Any]:
    """Return the stored publication of an equal request, else build it."""
    store = Folders(job.store)
    (order,) = settings.orders(settings.specs(models / job.file), scratch / "out")
    with Hashes() as hashes:
        request = request_of(order, hashes)
    key = digest({"name": job.model, "request": request})
    about = {"key": key, **{part: request[part] for part in PARTS}}
    server = verification.server_of(job.verify)
    if not job.rebuild and (stored := find(store, key)) is not None:
        facts = dict(stored.facts)
        if server is not None and VERIFIED not in facts:
            # it was built without a server
            store.restore(stored, order.out)
            facts[VERIFIED] = verification.verified(order.out, server, report)
            keep(store, key, order.out, facts)
        return {**about, "ok": True, "state": "found", "result": facts}
    file = models / job.file
    rebuild = job.rebuild
    (result,) = build_repository(
        file, order.out, settings, rebuild=rebuild, jobs=1, progress=report
    )
    if result.error is not None:
        return {**about, "error": described(result.error, str(scratch))}
    facts = shown_result(result)
    if server is not None:
        facts[VERIFIED] = verification.verified(order.out, server, report)
    keep(store, key, order.out, facts)
    return {**about, "ok": True, "state": result.state, "result": facts}


def _recorded(
    job: Job, models: Path, settings: Settings, report: Progress
) -> dict[str, Any]:
    """Record the goldens of the job. Its builds on other machines take them from the store."""
    (recording,) = record_goldens(models / job.file, settings, progress=report)
    if recording.error is not None:
        return {"error": described(recording.error, str(models.parent))}
    return {"ok": True, "state": "recorded", "result": {"seconds": recording.seconds}}


def _report(emit: Emit, model: str, phase: str) -> None:
    if not phase.startswith(FINISHED):  # the last event reports it
        emit({"event": "phase", "phase": phase})


def shown_result(result: ModelResult) -> dict[str, Any]:
    """Return the parts of a result that the report shows, JSON-able."""
    fields = {
        key: value
        for key, value in vars(result).items()
        if key not in ("error", "path")
    }
    data: dict[str, Any] = json.loads(json.dumps(fields, default=str))
    return data


def described(error: TrtBuildError, scratch: str) -> dict[str, Any]:
    """Return the error as JSON, with paths that do not name this machine's scratch folder."""
    texts = {
        name: value.replace(f"{scratch}/models/", "")
        for name, value in error.as_dict().items()
        if isinstance(value, str)
    }
    return {**texts, "exit_code": error.exit_code}


class _Stopped(BaseException):
    """The machine's Ray process no longer waits for a result."""


def main() -> None:
    """Read a job, build it, and write its events."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries also print
    lock = threading.Lock()

    def emit(event: dict[str, Any]) -> None:
        with lock:
            print(json.dumps(event), file=out, flush=True)

    job = Job.from_json(sys.stdin.readline())
    signal.signal(signal.SIGTERM, _stop)
    # Ctrl-C: the command cancels its tasks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        ended = perform(job, emit)
        # the caller closes standard input now
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        emit(ended)
    except (_Stopped, BrokenPipeError):
        os._exit(1)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def _end_with_input() -> None:
    # use the descriptor: at exit the interpreter holds the lock of sys.stdin
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
