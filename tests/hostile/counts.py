"""Counts of the outcomes of hostile inputs, and functions that try a batch and watch its files."""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from builder import processes

MEMORY_BYTES = 4 << 30
HANG_SECONDS = 60
EXECUTED = "executed"
"""The file that a payload creates if its code runs."""
SECRET = "a secret that must not be copied"
UNEXPECTED: tuple[Any, ...] = (None, True, -1, 2**63, 1e308, "", "x" * 5000, "\x00")
"""Values that hardly any field expects."""

REASONS = ("error:", '"problem', '"message"', '"damaged"')
"""The output of a command that refuses contains one of these."""

OUTCOMES = (
    "refused",
    "accepted_correct",
    "ended_by_limit",
    "worker_crashed",
    "exit_70",
    "hangs",
    "files_written",
    "code_executed",
    "wrong_outputs",
    "leaks",
)
ZERO = OUTCOMES[4:]
"""The forbidden outcomes."""


@dataclass
class Counts:
    """The number of inputs by outcome; `bad` describes forbidden outcomes. `ended_by_limit`: by a
    limit of time or memory. `worker_crashed`: only its own process crashed.
    """

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, kind: str, outcome: str, message: str = "") -> None:
        """Count one input of that kind."""
        assert outcome in OUTCOMES, outcome
        self.cases += 1
        self.outcomes[outcome] += 1
        self.by_kind[f"{kind}: {outcome}"] += 1
        if outcome in ZERO:
            self.bad.append(f"{kind}: {outcome}: {message[-1500:]}")

    def found(self, outcome: str, message: str) -> None:
        """Count a forbidden outcome of a batch, in addition to the outcomes of its inputs."""
        self.outcomes[outcome] += 1
        self.bad.append(f"{outcome}: {message}")

    @property
    def passed(self) -> bool:
        """Whether there are no forbidden outcomes."""
        return not any(self.outcomes[name] for name in ZERO)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, every outcome included."""
        return {
            "cases": self.cases,
            **{name: self.outcomes[name] for name in OUTCOMES},
            "by_kind": dict(sorted(self.by_kind.items())),
            "bad": self.bad,
        }


@dataclass(frozen=True)
class Case:
    """One input: its kind, and the arguments of the function that is tried on it."""

    kind: str
    arguments: tuple[Any, ...]


def attempt_all(
    target: str,
    cases: Sequence[Case],
    counts: Counts,
    *,
    modules: Sequence[str],
    sandbox: processes.Sandbox | None,
    stage_seconds: float,
    jobs: int,
) -> None:
    """Call `target` ("module:function", which returns an outcome and a message) for each case, and
    count the outcomes. A process tries several cases; if a case ends the process, the next process
    continues after that case.
    """
    limits = processes.Limits(stage_seconds=stage_seconds, memory_bytes=MEMORY_BYTES)
    remaining = [list(cases[index::jobs]) for index in range(jobs)]
    while any(remaining):
        chunks = [chunk for chunk in remaining if chunk]
        finished: list[list[tuple[str, str]]] = [[] for _ in chunks]
        tasks = [
            processes.Task(
                partial(attempt_chunk, target, [case.arguments for case in chunk]),
                partial(_append_outcome, found),
                limits=limits,
                sandbox=sandbox,
            )
            for chunk, found in zip(chunks, finished, strict=True)
        ]
        began = time.monotonic()
        outcomes = processes.run(tasks, jobs, modules=tuple(modules))
        if time.monotonic() - began > HANG_SECONDS * len(cases):
            counts.found("hangs", f"{len(cases)} cases took longer than their limits")
        for chunk, found, outcome in zip(chunks, finished, outcomes, strict=True):
            ended = _ended(outcome)
            results = [*found, (ended, "")] if ended else found
            for case, (name, message) in zip(chunk, results, strict=False):
                counts.add(case.kind, name, f"{case.arguments}: {message}")
            del chunk[: len(results)]


def _append_outcome(found: list[tuple[str, str]], *words: str) -> None:
    if words[0] == "ended":
        found.append((words[1], words[2]))


def _ended(outcome: object) -> str:
    """How the process ended early; empty if it did not."""
    if isinstance(outcome, processes.TimedOut):
        return "ended_by_limit"
    return "worker_crashed" if isinstance(outcome, processes.Crashed) else ""


def attempt_chunk(target: str, cases: Sequence[tuple[Any, ...]], report: Any) -> None:
    """Try the cases one after another, and report how each ended."""
    module, _, name = target.partition(":")
    attempt = getattr(importlib.import_module(module), name)
    for arguments in cases:
        result, message = attempt(*arguments, report)
        report("ended", result, message[-3000:])


Snapshot = dict[str, str]


def snapshot(folder: Path) -> Snapshot:
    """Every path below the folder with its kind and content."""
    return {
        str(path.relative_to(folder)): _content(path)
        for path in sorted(folder.rglob("*"))
    }


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "folder" if path.is_dir() else "other"


def watch(folder: Path, counts: Counts, label: str, act: Callable[[], None]) -> None:
    """Count it if `act` changes files below the folder, or if code of a payload runs."""
    before = snapshot(folder)
    act()
    after = snapshot(folder)
    changed = [
        path for path in {*before, *after} if before.get(path) != after.get(path)
    ]
    if any(Path(path).name == EXECUTED for path in changed):
        counts.found("code_executed", label)
    elif changed:
        counts.found("files_written", f"{label}: {', '.join(sorted(changed)[:5])}")


def command(*arguments: object) -> tuple[int, str]:
    """Run a command line of trt-build in this process. Returns the exit code and the output."""
    from click.testing import CliRunner

    from builder.cli import main

    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    text = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return 70, f"{type(result.exception).__name__}: {result.exception}"
    return result.exit_code, text


def outcome(code: int, text: str) -> tuple[str, str]:
    """The outcome of a command by its exit code; a refusal without a message is a defect."""
    if code == 0:
        return "accepted_correct", ""
    if code in (1, 2, 3, 4) and any(word in text for word in REASONS):
        return "refused", text
    return "exit_70", f"exit code {code}: {text}"


def written(path: Path, found: dict[str, Counts]) -> None:
    """Write the counts of the suites as JSON; suites that did not run keep their figures."""
    before = json.loads(path.read_text()) if path.is_file() else {}
    data = {**before, **{name: counts.as_dict() for name, counts in found.items()}}
    path.write_text(json.dumps(dict(sorted(data.items())), indent=2) + "\n")
