"""`python -m tests.hostile`: tries hostile inputs, and prints the outcomes as JSON.

    python -m tests.hostile --seconds 50 --seed 20261123000     each suite for its share of the time
    python -m tests.hostile --full --out docs/hostile.json      the counts of docs/security.md

Each input is tried in its own process, confined as the commands confine it. The exit code is 1 if
an input caused a defect (exit code 70), a hang, a changed file, executed code, wrong outputs, or a
copy of a secret.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from builder import processes, unforeseen
from builder.errors import TrtBuildError
from builder.repository import jobs
from builder.torchscript import trial
from tests.hostile import archives, manifests, repositories, requests
from tests.hostile.counts import EXECUTED, Case, Counts, attempt_all, watch, written

MODULES = (
    *jobs.MODULES,
    *(f"builder.cli.{name}" for name in ("check", "merge", "bench", "verify")),
    *("builder.triton.history", "model_signing.verifying", "model_signing.signing"),
    "tests.hostile.__main__",
)
ATTEMPT = "tests.hostile.__main__:attempt"
LOAD_SECONDS, STAGE_SECONDS = 5, 20
BATCH = 20
FULL = {
    "archives": 1000,
    "manifests": 1000,
    "crafted": 300,
    "damaged": 300,
    "requests": 100,
}
SHARES = {
    "archives": 0.35,
    "manifests": 0.3,
    "crafted": 0.2,
    "damaged": 0.15,
    "requests": 0.0,
}
"""Shares of the time of a short run, which is too short to start a server."""


def attempt(path: str, report: Any) -> tuple[str, str]:
    """Load, lower and run one archive. Returns the outcome and the message."""
    trial.SECONDS = LOAD_SECONDS
    try:
        return _use(Path(path), report)
    except TrtBuildError as error:
        return "refused", str(error)
    except Exception as error:
        defect = unforeseen.as_defect(error)
        return (
            "exit_70" if defect.exit_code == 70 else "refused"
        ), defect.traceback or str(defect)


def _use(path: Path, report: Any) -> tuple[str, str]:
    from builder import lower
    from builder.torchscript import load

    report(path.name, "load")
    module = load(path)
    report(path.name, "lower")
    lowered = lower(module)
    report(path.name, "run")
    x = torch.ones(2, 4)
    errors = (RuntimeError, torch.jit.Error, ValueError, TypeError, IndexError)
    try:
        expected = module(x.clone())
    except errors as error:
        return "refused", f"the model's own error: {error}"
    if not isinstance(expected, torch.Tensor):
        return "accepted_correct", ""
    try:
        (output,) = lowered.run(x.clone())
    except errors as error:
        return "refused", f"the lowered graph's error: {error}"
    same = torch.allclose(output, expected, equal_nan=True)
    return (
        ("accepted_correct", "")
        if same
        else ("wrong_outputs", f"{output} is not {expected}")
    )


@dataclass(frozen=True)
class Suite:
    """One kind of hostile input: `write` creates the case of a seed in a new folder."""

    target: str
    write: Callable[[Path, int], Case]


def _archive(
    originals: list[archives.Members], victim: Path, folder: Path, seed: int
) -> Case:
    folder.mkdir()
    path = folder / "m.pt"
    return Case(archives.write(path, seed, originals, victim), (str(path),))


def suites(base: Path, url: str, published: repositories.Published) -> dict[str, Suite]:
    """The suites that run in workers; their files are below `base`. `url` is the address of a
    server of the models in `published`.
    """
    watched = base / "watched"
    watched.mkdir()
    for name in ("victim.py", "victim.txt"):
        (watched / name).write_text("content that must stay\n")
    executed = watched / EXECUTED
    model = manifests.prepare(base / "originals")
    originals, victim = archives.seeds(), watched / "victim.py"
    return {
        "archives": Suite(ATTEMPT, partial(_archive, originals, victim)),
        "manifests": Suite(
            manifests.ATTEMPT, lambda f, n: manifests.write(f, n, model, executed)
        ),
        "crafted": Suite(
            repositories.CRAFTED,
            lambda f, n: repositories.craft(f, n, published, executed, url),
        ),
        "damaged": Suite(
            repositories.DAMAGED, lambda f, n: repositories.damage(f, n, published)
        ),
    }


def run(
    suite: Suite,
    base: Path,
    first_seed: int,
    counts: Counts,
    *,
    count: int = sys.maxsize,
    seconds: float = float("inf"),
    confined: bool = True,
    workers: int = 1,
) -> None:
    """Try inputs until `count` are done or the time is up."""
    deadline, seed = time.monotonic() + seconds, first_seed
    while counts.cases < count and time.monotonic() < deadline:
        # a batch of a short run must not take much longer than the run
        size = min(BATCH if seconds > 60 else 4 * workers, count - counts.cases)
        _batch(suite, range(seed, seed + size), base, counts, confined, workers)
        seed += size


def _batch(
    suite: Suite, seeds: range, base: Path, counts: Counts, confined: bool, workers: int
) -> None:
    inputs, results = base / "watched" / "inputs", base / "results"
    inputs.mkdir()
    results.mkdir()
    cases = [suite.write(inputs / str(seed), seed) for seed in seeds]
    # `merge --out` writes into a folder that is not watched
    for seed in seeds:
        (results / str(seed)).mkdir()
        (inputs / str(seed) / "out").symlink_to(results / str(seed))
    sandbox = (
        processes.Sandbox((results, base / "cache"), network=True) if confined else None
    )
    tried = partial(
        attempt_all,
        suite.target,
        cases,
        counts,
        modules=MODULES,
        sandbox=sandbox,
        stage_seconds=STAGE_SECONDS,
        jobs=workers,
    )
    watch(base / "watched", counts, f"seeds {seeds.start} to {seeds.stop - 1}", tried)
    for folder in (inputs, results):
        shutil.rmtree(folder)


def main() -> int:
    """Run the suites that the command line selects."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--full", action="store_true", help="all counts, however long it takes"
    )
    parser.add_argument("--suite", choices=FULL, action="append", help="only this one")
    parser.add_argument("--seed", type=int, default=0, help="the first input's seed")
    parser.add_argument("--jobs", type=int, default=1, help="inputs at a time")
    parser.add_argument("--out", type=Path, help="write the counts into this JSON file")
    parser.add_argument("--unconfined", action="store_true", help="without the sandbox")
    args = parser.parse_args()
    if args.out:
        args.out = args.out.resolve()  # the suites change the working directory
    found: dict[str, Counts] = {}
    with tempfile.TemporaryDirectory(prefix="hostile-") as name, ExitStack() as stack:
        base = Path(name).resolve()
        (base / "cache").mkdir()
        os.environ["TRT_BUILD_CACHE"] = str(base / "cache")
        (base / "originals").mkdir()
        published = repositories.prepare(base / "originals")
        url = (
            stack.enter_context(_server(published))
            if args.full
            else repositories.NO_SERVER
        )
        for suite, ready in {**suites(base, url, published), "requests": None}.items():
            if suite not in (args.suite or FULL) or not (args.full or SHARES[suite]):
                continue
            counts = found.setdefault(suite, Counts())
            began = time.monotonic()
            amount: dict[str, Any] = (
                {"count": FULL[suite]}
                if args.full
                else {"seconds": args.seconds * SHARES[suite] / _shares(args.suite)}
            )
            if ready is None:
                act = partial(
                    requests.run, published.plain, base, FULL[suite], args.seed, counts
                )
                watch(base / "watched", counts, suite, act)
            else:
                options = {"confined": not args.unconfined, "workers": args.jobs}
                run(ready, base, args.seed, counts, **amount, **options)
            print(
                f"{suite}: {counts.cases} in {time.monotonic() - began:.0f} s",
                file=sys.stderr,
            )
            if args.out:
                written(args.out, found)
    print(
        json.dumps({name: counts.as_dict() for name, counts in found.items()}, indent=2)
    )
    return 0 if all(counts.passed for counts in found.values()) else 1


@contextmanager
def _server(published: repositories.Published) -> Iterator[str]:
    """The address of a server of a copy of the unchanged models, in which it may compile Python
    files.
    """
    from builder import serving

    served = shutil.copytree(published.plain, published.folder / "served")
    with serving.serve(served, **serving.FREE_PORTS) as server:
        yield server.http_url


def _shares(chosen: list[str] | None) -> float:
    return sum(SHARES[name] for name in chosen or SHARES)


if __name__ == "__main__":
    sys.exit(main())
