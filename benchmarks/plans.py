"""Plans that are built in several processes and kept in files, so that they are timed afterwards
without other work on the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.networks import NETWORKS


@dataclass(frozen=True)
class Task:
    """A plan to build: its file, and a function that returns the plan. The function is pickled."""

    path: Path
    make: Callable[[], bytes]


def add_options(parser: argparse.ArgumentParser, folder: str) -> None:
    """Add the options of a benchmark that builds its plans first; `folder` is the default folder.

    The parsed `level` has pairs of a network and its optimization level; see `levels`.
    """
    parser.add_argument(
        "--level",
        nargs="+",
        default=[],
        metavar="NETWORK=N",
        help="an optimization level",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that build at a time"
    )
    parser.add_argument("--plans", type=Path, default=Path(folder))
    parser.add_argument(
        "--budget",
        type=float,
        default=7200,
        help="seconds after which builds are ended",
    )
    parser.add_argument(
        "--stage",
        choices=("build", "time"),
        help="do one of the two; the default is both",
    )
    parser.add_argument(
        "--apart",
        nargs="+",
        default=[],
        choices=list(NETWORKS),
        help="build the plans of these networks at a time, without a shared timing cache",
    )


def levels(args: argparse.Namespace) -> dict[str, int]:
    """Return the optimization level of each network that `--level` names."""
    return {
        name: int(level) for name, level in (pair.split("=") for pair in args.level)
    }


def chained(tasks: Sequence[Task], apart: bool) -> list[list[Task]]:
    """Return the chains of a network: one, or one for each plan if they are built `apart`."""
    return [[task] for task in tasks] if apart else [list(tasks)]


def build_all(chains: Sequence[Sequence[Task]], args: argparse.Namespace) -> None:
    """Build the plans with the options of `add_options`, and print the result of each chain."""
    for facts in build(chains, args.jobs, args.budget):
        print(json.dumps({"built": facts}), flush=True)


def build(
    chains: Sequence[Sequence[Task]], jobs: int, budget: float
) -> Iterator[dict[str, Any]]:
    """Build the plans that are missing, in `jobs` processes, for at most `budget` seconds.

    A chain is built in one process, in order, so its tasks may share a timing cache. Yields for
    each chain that ends the seconds of each plan by its path, or why there is none. When the
    budget is used up, builds that still run are ended without a plan.
    """
    until = time.monotonic() + budget
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        results = pool.imap_unordered(_chain, chains)
        for _ in chains:
            with contextlib.suppress(multiprocessing.TimeoutError):
                yield results.next(max(0.0, until - time.monotonic()))


def _chain(tasks: Sequence[Task]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        # a separate cache folder: builds with one folder wait for each other's lock on the GPU
        os.environ["TRT_BUILD_CACHE"] = folder
        for task in tasks:
            if not task.path.exists():
                facts[str(task.path)] = _built(task)
    return facts


def _built(task: Task) -> float | str:
    task.path.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        data = task.make()
    except Exception as refusal:
        return f"{type(refusal).__name__}: {refusal}"[:300]
    unfinished = task.path.with_suffix(".part")
    unfinished.write_bytes(data)
    unfinished.rename(task.path)
    return round(time.monotonic() - begun, 1)
