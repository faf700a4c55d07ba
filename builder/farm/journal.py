"""Records the events of the farm: a file of events, a log for each task, and terminal output."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.farm.schedule import Event, Task
from builder.progress import FINISHED, Progress


def folder_of(out: Path) -> Path:
    """The folder with the events and logs of a repository: `R.farm` beside R."""
    root = out.resolve()
    return root.with_name(f"{root.name}.farm")


class Journal:
    """Writes `events.jsonl`, one event a line with its time, task, target and attempt, and
    `<target>/<model>.log` with the end of each build's output. Raises OSError.
    """

    def __init__(self, folder: Path, tasks: Sequence[Task], progress: Progress) -> None:
        self.folder = folder
        self.progress = progress
        self.tasks = tuple(tasks)
        self.states: Counter[str] = Counter(waiting=len(self.tasks))
        self.began: dict[str, float] = {}
        self.seconds: list[float] = []
        estimates = [task.estimate for task in self.tasks if task.estimate is not None]
        self.estimated, self.unknown = sum(estimates), len(self.tasks) - len(estimates)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / "events.jsonl").open("w", encoding="utf-8")

    def close(self) -> None:
        """Close the events file."""
        self.file.close()

    def observe(self, task: Task, event: Event) -> None:
        """Record an event of a task."""
        log = event.pop("log", None)
        if log:
            self._write_log(task, log)
        details = {key: value for key, value in event.items() if key != "result"}
        about = {
            "time": round(time.time(), 3),
            "task": task.name,
            "attempt": task.attempts,
        }
        print(json.dumps({**about, **details}, default=str), file=self.file, flush=True)
        self._count(task, event)
        self.progress(task.name, self._text(task, event))

    def counts(self) -> dict[str, Any]:
        """Return the number of tasks by state, and the estimated seconds left."""
        return {
            **{
                name: self.states[name]
                for name in ("waiting", "running", "done", "failed")
            },
            "seconds_left": self.seconds_left(),
        }

    def seconds_left(self) -> float | None:
        """Estimate the seconds until all tasks have ended, at the present number of running tasks.

        A task without a recorded time counts as the mean of the ended tasks. None before the first
        task has ended.
        """
        if not self.seconds:
            return None
        mean = sum(self.seconds) / len(self.seconds)
        now = time.monotonic()
        begun = sum(min(now - began, mean) for began in self.began.values())
        whole = self.estimated + self.unknown * mean
        return round(max(0.0, whole - begun) / max(1, self.states["running"]), 1)

    def _count(self, task: Task, event: Event) -> None:
        kind = event["event"]
        if kind == "started":
            self.states.update(waiting=-1, running=1)
            self.began[task.name] = time.monotonic()
        elif kind == "lost":
            if self.began.pop(task.name, None) is not None:
                self.states.update(waiting=1, running=-1)
        elif kind == "ended":
            began = self.began.pop(task.name, None)
            self.states.update({"running" if began is not None else "waiting": -1})
            self.states.update({"done" if event["ok"] else "failed": 1})
            self.estimated -= task.estimate or 0.0
            self.unknown -= task.estimate is None
            if began is not None:
                self.seconds.append(time.monotonic() - began)

    def _text(self, task: Task, event: Event) -> str:
        kind = event["event"]
        if kind == "started":
            return f"started on {event['node']}"
        if kind == "lost":
            reason = str(event["reason"]).partition("\n")[0]
            return f"{FINISHED}: lost ({reason}); again in {event['wait_seconds']:g} s"
        if kind == "waiting":
            demand = ", ".join(
                f"{name}: {amount:g}" for name, amount in event["for"].items()
            )
            return f"{FINISHED}: target {task.group} waits for a node with {demand}"
        if kind == "phase":
            return str(event["phase"])
        ended = self.states["done"] + self.states["failed"]
        seconds_left = self.seconds_left()
        remaining = ""
        if seconds_left and ended < len(self.tasks):
            remaining = f", about {seconds_left:.0f} s left"
        state = event.get("state") if event["ok"] else "failed"
        on = f" on {task.node}" if task.node else ""
        return f"{FINISHED}: {state}{on} ({ended} of {len(self.tasks)}{remaining})"

    def _write_log(self, task: Task, text: str) -> None:
        model, _, target = task.name.rpartition("@")
        file = self.folder / target / f"{model}.log"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
