"""How often TensorRT builds a wrong plan, and what finding it costs.

    python -m benchmarks.plan_check MODELS --builds 20 --jobs 4 --out results.jsonl

Every build runs `repo` on the folder MODELS into an empty repository, without a store and without
the timing cache of another build, so that TensorRT measures its tactics again. Then the published
plans run on the published goldens (`verify --engine`). One line of JSON for each model of each
build; the last line printed counts wrong plans that were published (expected: 0), plans that the
check replaced, and the time of the check as a share of the build.

A GPU and full TensorRT are required; without them the exit code is 2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Row = dict[str, Any]

WRONG = "the plan is wrong"


def build_once(models: Path, number: int, level: int) -> list[Row]:
    """Build every model in `models` once, and check the published plans."""
    from builder.engine import BuildOptions
    from builder.errors import TrtBuildError
    from builder.parity.engines import verify_engines
    from builder.repository import build_repository

    with tempfile.TemporaryDirectory() as folder:
        # a separate cache folder: builds with one folder wait for each other's lock on the GPU
        os.environ["TRT_BUILD_CACHE"] = folder
        repository = Path(folder, "repository")
        options = BuildOptions(
            optimization_level=level, timing_cache=Path(folder, "own.cache")
        )
        results = build_repository(
            models,
            repository,
            options=options,
            isolate=False,
            jobs=1,
            progress=partial(_log, number, time.monotonic()),
        )
        try:
            verdicts = {
                one.name: one.passed for one in verify_engines(repository, repeat=0)
            }
        except TrtBuildError:
            verdicts = {}
        return [
            {
                "model": result.name,
                "build": number,
                "level": level,
                "published": result.ok,
                "layout": result.layout,
                "plan_right": verdicts.get(result.name),
                "seconds": result.seconds,
                "warnings": list(result.warnings),
                "error": str(result.error or ""),
            }
            for result in results
        ]


def _log(number: int, started: float, model: str, phase: str) -> None:
    """Print a phase, so that a run that is cut off shows the steps of each build."""
    spent = time.monotonic() - started
    print(
        f"build {number}, {spent:.0f} s: {model}: {phase}", file=sys.stderr, flush=True
    )


def rows(models: Path, builds: int, jobs: int, level: int) -> Iterator[Row]:
    """Yield the rows of each build when it ends."""
    build = partial(build_once, models, level=level)
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for build_rows in pool.imap_unordered(build, range(builds)):
            yield from build_rows


def summary(results: list[Row]) -> str:
    """Return the counts, and the median share of `run plans` in the time of `build`."""
    replaced = [
        row for row in results if any(WRONG in warning for warning in row["warnings"])
    ]
    shares = [
        row["seconds"]["run plans"] / row["seconds"]["build"]
        for row in results
        if row not in replaced and row["seconds"].get("build")
    ]
    cost = f"{100 * statistics.median(shares):.1f} %" if shares else "not measured"
    return (
        f"{len(results)} builds: {sum(row['plan_right'] is True for row in results)} published as a"
        f" right plan, {sum(row['plan_right'] is False for row in results)} as a wrong plan,"
        f" {sum(row['published'] and row['plan_right'] is None for row in results)} in another"
        f" layout, {sum(not row['published'] for row in results)} not published;"
        f" {len(replaced)} first plans were wrong; the check takes {cost} of a build (median)"
    )


def main() -> int:
    """Run the builds, write the rows, print the summary."""
    from builder.parity import plan_check

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--builds", type=int, default=20)
    parser.add_argument(
        "--jobs", type=int, default=1, help="builds at a time on the GPU"
    )
    parser.add_argument(
        "--level", type=int, default=3, help="TensorRT's optimization level"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if not plan_check.possible():
        print("a GPU and full TensorRT are required", file=sys.stderr)
        return 2
    results = []
    with args.out.open("a") as out:
        for row in rows(args.models, args.builds, args.jobs, args.level):
            results.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
    print(summary(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
