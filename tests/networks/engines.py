"""Run every network on engines of this machine's GPUs, in each precision, and compare with torch in
float32 on the CPU.

    python -m tests.networks.engines            all, the small ones first; continues an ended run
    python -m tests.networks.engines "ResNet-50" --precision fp16 --again all
    python -m tests.networks.engines --by reference --out rows.jsonl "GRU (small)"   without a GPU

Rows are appended to benchmarks/results/networks.jsonl as they are measured, and to the file of that
name in $OUT. Then `python docs/generate.py networks-gpu` writes docs/networks-gpu.md. Each network
runs in a separate process, so a crash or a precision that hangs affects only its row. Several
engines are built on a GPU at a time, because nothing is timed here.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import time
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import records
from builder import processes
from builder.engine import gpu
from tests.networks import zoo

ROWS = records.RESULTS / "networks.jsonl"
PRECISIONS = ("fp32", "tf32", "fp16")
KEY = ("by", "gpu", "tensorrt", "network", "mode", "precision")
MODULES = ("builder.conversion", "builder.parity", "builder.torchscript")
LEAST_SECONDS = 5
"""A job is not started with less time than this."""
Job = tuple[str, str, str]
"""Network, mode, precision."""


def in_order(names: Sequence[str], mode: str, precisions: Sequence[str]) -> list[Job]:
    """The small networks first, in all precisions; then the others, those first that take longest
    to compile.
    """
    seconds: dict[str, float] = {}
    for row in zoo.kept().values():
        seconds[row["network"]] = max(
            seconds.get(row["network"], 0.0), row.get("build") or 0.0
        )
    known = [n for n in zoo.networks() if not names or n in names]
    ordered = sorted(
        known,
        key=lambda n: (0, 0.0) if n.endswith("(small)") else (1, -seconds.get(n, 0.0)),
    )
    return [
        (name, _mode(name, mode), precision)
        for name in ordered
        for precision in precisions
    ]


def _mode(name: str, requested: str) -> str:
    return "traced" if zoo.networks()[name].unscriptable else requested


def newest(rows: Iterable[records.Row]) -> dict[tuple[Any, ...], records.Row]:
    """The last row of each network, mode and precision on each machine."""
    return {key(row): row for row in rows}


def key(row: records.Row) -> tuple[Any, ...]:
    """The identity of a row; rows of one key supersede each other."""
    return tuple(row.get(part) for part in KEY)


def host(by: str) -> records.Row:
    """The fields of every row that describe the machine. For the reference, which runs on torch,
    only versions.
    """
    from builder.engine.flavor import trt

    return {
        "by": by,
        **(records.host() if by == "engine" else records.software()),
        "tensorrt": trt.__version__,
    }


def head(job: Job, where: records.Row) -> records.Row:
    """The fields of a row before anything is measured."""
    return {**dict(zip(("network", "mode", "precision"), job, strict=True)), **where}


def measure(
    jobs: Sequence[Job],
    where: records.Row,
    out: str,
    ends: float,
    limit: float,
    threads: int,
    report: Any,
) -> list[Job]:
    """Run the jobs in this process and append their rows. When a job begins, report (job, whether
    the run ends before its limit). Returns the jobs that were not started for lack of time.
    """
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process even if it hangs
    for index, job in enumerate(jobs):
        left = min(ends - time.time(), limit)
        if left < LEAST_SECONDS:
            return list(jobs[index:])
        report((job, left < limit))
        signal.alarm(int(left))
        started = time.time()
        row = {**head(job, where), **_judged(job, where["by"], where.get("level", 0))}
        records.append(Path(out), [{**row, "seconds": round(time.time() - started, 1)}])
    signal.alarm(0)
    return []


def _judged(job: Job, by: str, level: int) -> dict[str, Any]:
    from tests.networks import judging

    name, mode, precision = job
    try:
        if os.environ.get("TRT_BUILD_TEST_DIALECT") == "8.6":
            judging.play_8_6()
        return judging.judge(zoo.networks()[name], mode, precision, by, level)
    except Exception as error:
        words = " / ".join(
            line.strip() for line in str(error).splitlines() if line.strip()
        )
        return {"result": "failed", "problem": f"{type(error).__name__}: {words}"[:600]}


def run(
    jobs: Sequence[Job],
    where: records.Row,
    out: Path,
    count: int,
    budget: float,
    limit: float,
) -> list[Job]:
    """Measure the jobs, `count` processes at a time over all GPUs. Returns the jobs for which no
    time was left.

    The precisions of a network share a process, because a start takes longer than most builds. The
    jobs after one that crashed get another process.
    """
    ends, threads = time.time() + budget, max(1, (os.cpu_count() or 1) // count)
    pending, left = (
        [list(group) for _, group in itertools.groupby(jobs, lambda job: job[:2])],
        [],
    )
    while pending:
        begun: dict[int, tuple[Job, bool]] = {}
        tasks = [
            processes.Task(
                partial(measure, group, where, str(out), ends, limit, threads),
                partial(begun.__setitem__, number),
            )
            for number, group in enumerate(pending)
        ]
        results = processes.run(tasks, count, environments(count), modules=MODULES)
        groups, pending = pending, []
        for number, (group, result) in enumerate(zip(groups, results, strict=True)):
            if not isinstance(result, Exception):
                left += result
                continue
            job, hurried = begun.get(number, (group[0], False))
            behind, words = group[group.index(job) + 1 :], _words(result)
            if hurried and words == CUT:  # the end of the run is no failure of the job
                left += [job, *behind]
                continue
            records.append(
                out, [{**head(job, where), "result": "failed", "problem": words}]
            )
            pending += [behind] if behind else []
    return left


CUT = "not done in time"


def _words(crash: Exception) -> str:
    return CUT if "SIGALRM" in str(crash) else " / ".join(str(crash).splitlines())[:300]


def environments(count: int) -> list[dict[str, str]]:
    """One for each process: its GPU, and a separate cache, so that builds on one GPU do not wait
    for a lock.
    """
    pins = [{"CUDA_VISIBLE_DEVICES": device.uuid} for device in gpu.devices()] or [{}]
    return [
        {"TRT_BUILD_CACHE": f"/tmp/trt-build-networks-{i}", **pins[i % len(pins)]}
        for i in range(count)
    ]


def main() -> None:
    """Measure the jobs without a row, and print the results."""
    options = _options()
    if options.by == "engine" and not gpu.devices():
        raise SystemExit(
            "an engine requires a GPU; no CUDA device found: --by reference needs none"
        )
    where = {**host(options.by), "level": options.level}
    before = newest(records.read(options.out))
    jobs = [
        job
        for job in in_order(
            options.names, options.mode, options.precision or PRECISIONS
        )
        if _is_pending(before.get(key(head(job, where))), options.again)
    ]
    left = run(
        jobs, where, options.out, options.workers, options.budget, options.timeout
    )
    after = newest(records.read(options.out))
    for job in jobs:
        row = after.get(key(head(job, where)))
        print(
            *job,
            *(f"{row.get(n)}" for n in ("share", "noise", "result", "problem") if row),
            sep="  ",
        )
    print(f"{len(jobs)} to do, {len(left)} left for want of time")


def _is_pending(row: records.Row | None, again: str) -> bool:
    return (
        row is None
        or again == "all"
        or (again == "failed" and row["result"] in ("failed", "another answer"))
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="networks (default: all)")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--mode", choices=["traced", "scripted"], default="traced")
    parser.add_argument(
        "--by", choices=["engine", "reference"], default="engine", help="what answers"
    )
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2)
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=3600,
        help="seconds after which nothing more is begun",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120,
        help="seconds for one network in one precision",
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=range(6),
        default=0,
        help="builder optimization level",
    )
    parser.add_argument("--again", choices=["none", "failed", "all"], default="none")
    parser.add_argument("--out", type=Path, default=ROWS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
