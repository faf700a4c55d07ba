"""`python -m tests.hostile --seconds N`: prints its counts as JSON.

Each archive is loaded, lowered and run in a worker, as `check` does it. Exit code 1 where one ended
as a defect of ours (exit code 70), was not ended in time, or changed a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from builder import processes, unforeseen
from builder.errors import TrtBuildError
from builder.torchscript import trial
from tests.hostile import archives

MODULES = ("torch", "builder.lowering", "builder.torchscript", "tests.hostile.__main__")
ATTEMPT = "tests.hostile.__main__:attempt"
LOAD_SECONDS, STAGE_SECONDS, HANG_SECONDS = 5, 10, 60
BATCH = 40
CONTENT = "content that must stay\n"


@dataclass
class Counts:
    """What became of the archives; `bad` describes those that must not be."""

    archives: int = 0
    refused: int = 0
    accepted: int = 0
    ended_by_limit: int = 0
    crashed_alone: int = 0
    exit_70: int = 0
    hangs: int = 0
    files_written: int = 0
    bad: list[str] = field(default_factory=list)
    by_mutation: Counter[str] = field(default_factory=Counter)

    @property
    def passed(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.exit_70 or self.hangs or self.files_written)


def attempt(path: str, report: Any) -> tuple[str, str]:
    """Load, lower and run one archive: how it ended, and the message."""
    trial.SECONDS = LOAD_SECONDS
    try:
        _use(Path(path), report)
    except TrtBuildError as error:
        return "refused", str(error)
    except Exception as error:
        found = unforeseen.ours(error)
        return ("exit_70" if found.exit_code == 70 else "refused"), found.traceback or str(found)
    return "accepted", ""


def _use(path: Path, report: Any) -> None:
    from builder import lower
    from builder.torchscript import load

    report(path.name, "load")
    module = load(path)
    report(path.name, "lower")
    lowered = lower(module)
    report(path.name, "run")
    try:
        module(torch.ones(2, 4))
        lowered.run(torch.ones(2, 4))
    except (RuntimeError, torch.jit.Error, ValueError, TypeError, IndexError):
        pass  # the model's own error


def run(seconds: float, first_seed: int, confined: bool) -> Counts:
    """Attempt archives until the time is over."""
    counts, seed = Counts(), first_seed
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        folder, victim = Path(name), Path(name) / "given" / "victim.py"
        victim.parent.mkdir()
        originals = archives.seeds()
        while time.monotonic() < until:
            victim.write_text(CONTENT)
            _batch(range(seed, seed + BATCH), folder, victim, originals, confined, counts)
            seed += BATCH
    return counts


def _batch(
    seeds: range,
    folder: Path,
    victim: Path,
    originals: list[archives.Members],
    confined: bool,
    counts: Counts,
) -> None:
    kinds = {n: archives.write(folder / f"{n}.pt", n, originals, victim) for n in seeds}
    sandbox = processes.Sandbox() if confined else None
    limits = processes.Limits(stage_seconds=STAGE_SECONDS, memory_bytes=4 << 30)
    tasks = [
        processes.Task(ATTEMPT, (str(folder / f"{n}.pt"),), limits=limits, sandbox=sandbox)
        for n in seeds
    ]
    began = time.monotonic()
    answers = processes.run(tasks, 2, modules=MODULES)
    if time.monotonic() - began > HANG_SECONDS * len(tasks):
        counts.hangs += 1
    for number, answer in zip(seeds, answers, strict=True):
        _count(number, kinds[number], answer, counts)
        (folder / f"{number}.pt").unlink()
    changed = victim.read_text() != CONTENT or len(list(victim.parent.iterdir())) != 1
    if changed or {path.name for path in folder.iterdir()} != {"given"}:
        counts.files_written += 1
        counts.bad.append(f"a file was written by one of the seeds {seeds.start} to {seeds.stop}")


def _count(number: int, kind: str, answer: Any, counts: Counts) -> None:
    counts.archives += 1
    if isinstance(answer, processes.TimedOut):
        outcome = "ended_by_limit"
    elif isinstance(answer, processes.Crashed):
        outcome = "crashed_alone"
    else:
        outcome, message = answer
        if outcome == "exit_70":
            counts.bad.append(f"seed {number} ({kind}): {message[-1500:]}")
    setattr(counts, outcome, getattr(counts, outcome) + 1)
    counts.by_mutation[f"{kind}: {outcome}"] += 1


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first archive's seed")
    parser.add_argument("--unconfined", action="store_true", help="without the sandbox")
    asked = parser.parse_args()
    counts = run(asked.seconds, asked.seed, not asked.unconfined)
    print(json.dumps(vars(counts), indent=2, sort_keys=True))
    return 0 if counts.passed else 1


if __name__ == "__main__":
    sys.exit(main())
