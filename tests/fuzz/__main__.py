"""python -m tests.fuzz [--seconds N] [--kind KIND] [--seed N] [--programs N] [--keep DIR]
    [--engine]

Runs random programs, minimizes those that give wrong outputs or crash, and keeps them as files.
The exit code is 1 if there were any.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from tests.fuzz.checking import Outcome, check
from tests.fuzz.minimize import minimized
from tests.fuzz.programs import KINDS, Program, program

FOUND = Path(__file__).parent / "found"
FAILURES = ("wrong", "crash")


def fuzz(
    kinds: tuple[str, ...],
    seed: int,
    seconds: float,
    programs: int,
    keep: Path,
    engine: bool = False,
) -> tuple[Counter[str], list[Path]]:
    """Run programs of each kind from a seed on, for an equal time each, until the time is up or
    the number of programs is reached.

    Returns the counts by outcome, and the files of the failures.
    """
    counts, kept = Counter[str](), list[Path]()
    seconds_by_kind, programs_of = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0)
    start = time.monotonic()
    for _ in range(programs):
        before = time.monotonic()
        if before >= start + seconds:
            break
        kind = min(kinds, key=lambda kind: seconds_by_kind[kind])
        next_program = program(kind, seed + programs_of[kind])
        programs_of[kind] += 1
        outcome = _outcome(next_program, engine)
        seconds_by_kind[kind] += time.monotonic() - before
        _count(counts, next_program, outcome)
        if outcome.verdict in FAILURES:
            kept.append(_keep(next_program, outcome, keep, engine))
    return counts, kept


def _outcome(candidate: Program, engine: bool) -> Outcome:
    return check(candidate.source(), f"{candidate.kind} {candidate.seed}", engine)


def _count(counts: Counter[str], candidate: Program, outcome: Outcome) -> None:
    counts["programs"] += 1
    counts[f"of kind {candidate.kind}"] += 1
    counts[outcome.verdict] += 1
    if outcome.verdict == "refused":
        counts[f"refused: {outcome.reason}"] += 1
    if outcome.network:
        network = outcome.network
        counts[
            "network: equal" if network == "equal" else f"no network: {network}"
        ] += 1


def _keep(candidate: Program, outcome: Outcome, folder: Path, engine: bool) -> Path:
    """Minimize a failing program, and write it to a file that later test runs include."""
    folder.mkdir(parents=True, exist_ok=True)
    file, note = folder / f"{candidate.kind}_{candidate.seed}.txt", _note(candidate)
    file.write_text(candidate.text(note))  # in case the run ends during minimization
    message = "\n    ".join(outcome.reason.splitlines()[:12])
    print(f"{outcome.verdict}: {file}\n    {message}", flush=True)
    kind_of_failure = _failure(outcome)
    small = minimized(
        candidate,
        lambda smaller: _failure(_outcome(smaller, engine)) == kind_of_failure,
    )
    file.write_text(small.text(note))
    return file


def _note(candidate: Program) -> str:
    return f"Found by: --kind {candidate.kind} --seed {candidate.seed}."


def _failure(outcome: Outcome) -> tuple[str, str]:
    """The properties that a smaller program must share: the verdict, and the exception or
    the path.
    """
    return outcome.verdict, outcome.reason.split(":")[0].split(",")[0]


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments, run, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--programs", type=int, default=10**9, help="at most this many")
    parser.add_argument("--kind", choices=KINDS, help="default: an equal time for each")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--keep", type=Path, default=FOUND, help="the folder for failing programs"
    )
    parser.add_argument(
        "--engine", action="store_true", help="also run engines, which requires a GPU"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kinds = (options.kind,) if options.kind else KINDS
    counts, kept = fuzz(
        kinds,
        options.seed,
        options.seconds,
        options.programs,
        options.keep,
        options.engine,
    )
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:7d}  {name}")
    return 1 if kept else 0


if __name__ == "__main__":
    sys.exit(main())
