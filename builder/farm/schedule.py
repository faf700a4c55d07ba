"""Runs tasks on the cluster, a limited number at a time.

Tasks on a lost machine are restarted. All tasks are canceled if the command ends early.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.errors import Defect, EnvironmentProblem
from builder.farm import cluster
from builder.farm.config import Retries
from builder.farm.remote import JobLost

Event = dict[str, Any]
Observe = Callable[["Task", Event], None]
POLL_SECONDS = 0.5
NODES_SECONDS = 5.0
"""Interval in seconds between listings of the cluster's nodes."""


@dataclass
class Task:
    """A task and its result: `ended` is its last event.

    `arguments` are those of the function that runs on the cluster, `options` are Ray's, and
    `demand` has the resources by name. It starts after the task named `after` has ended,
    successfully or not.
    """

    name: str
    group: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    demand: Mapping[str, float]
    estimate: float | None = None
    after: str = ""
    attempts: int = 0
    not_before: float = 0.0
    node: str = ""
    ended: Event | None = None


@dataclass
class Schedule:
    """Runs tasks with the generator function `work` and passes their events to `observe`.

    `at_once` limits the tasks of a group that are submitted at a time. `canceled` is polled; True
    ends the run like Ctrl-C.
    """

    library: Any
    work: Callable[..., Any]
    at_once: Mapping[str, int]
    observe: Observe
    retries: Retries
    node_seconds: float = 300
    canceled: Callable[[], bool] = lambda: False
    waiting: dict[str, deque[Task]] = field(default_factory=dict)
    running: dict[Any, Task] = field(default_factory=dict)
    _unfinished: set[str] = field(default_factory=set)
    _nodes_checked_at: float = 0.0
    _unserved: dict[str, float] = field(default_factory=dict)

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks, each to its last event.

        Raises KeyboardInterrupt if the run is canceled; the tasks are then canceled, too.
        """
        for task in tasks:
            self.waiting.setdefault(task.group, deque()).append(task)
            self._unfinished.add(task.name)
        function = self.library.remote(self.work)
        try:
            while self.running or any(self.waiting.values()):
                self._submit(function)
                self._read()
                self._check_nodes()
                if self.canceled():
                    raise KeyboardInterrupt
        finally:
            self._cancel()

    def _submit(self, function: Any) -> None:
        busy = Counter(task.group for task in self.running.values())
        now = time.monotonic()
        for group, queue in self.waiting.items():
            free = self.at_once[group] - busy[group]
            ready = (
                queued
                for queued in list(queue)
                if queued.not_before <= now and queued.after not in self._unfinished
            )
            for task in itertools.islice(ready, max(free, 0)):
                queue.remove(task)
                task.attempts += 1
                self.running[
                    function.options(**task.options).remote(*task.arguments)
                ] = task

    def _read(self) -> None:
        if not self.running:
            time.sleep(min(POLL_SECONDS, 0.1))
            return
        refs = list(self.running)
        ready, _ = self.library.wait(refs, num_returns=1, timeout=POLL_SECONDS)
        if ready:  # and all others that are ready
            ready, _ = self.library.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            self._take(ref)

    def _take(self, ref: Any) -> None:
        """Process one event of a ready task."""
        task = self.running[ref]
        try:
            event = self.library.get(next(ref))
        except StopIteration:
            self._retry(ref, task, "the task ended without a result")
        except Exception as error:
            if reason := self._loss(error):
                self._retry(ref, task, reason)
            else:
                self._end(
                    ref, task, {"event": "ended", "ok": False, "error": _defect(error)}
                )
        else:
            self._handle(ref, task, event)

    def _handle(self, ref: Any, task: Task, event: Event) -> None:
        if event["event"] == "started":
            task.node = str(event["node"])
        if event["event"] != "ended":
            self.observe(task, event)
            return
        error = event.get("error") or {}
        if error.get("exit_code") == EnvironmentProblem.exit_code:
            # another machine may have the missing resource
            self._retry(ref, task, str(error["message"]), event)
        else:
            self._end(ref, task, event)

    def _loss(self, error: Exception) -> str:
        """Return why the task can be restarted; empty if it cannot."""
        known = self.library.exceptions
        cause = getattr(error, "cause", None)
        if isinstance(error, JobLost) or isinstance(cause, JobLost):
            return str(cause or error)
        lost = (
            *(known.WorkerCrashedError, known.NodeDiedError, known.OutOfMemoryError),
            *(known.LocalRayletDiedError, known.ObjectLostError, known.RaySystemError),
            known.RuntimeEnvSetupError,  # the container `image` did not start
        )
        if isinstance(error, lost):
            return f"{type(error).__name__}: {str(error).strip()}"
        return ""

    def _retry(
        self, ref: Any, task: Task, reason: str, event: Event | None = None
    ) -> None:
        """Schedule a restart of the task, unless its attempts are used up."""
        if task.attempts > self.retries.max:
            ended = event or {
                "event": "ended",
                "ok": False,
                "error": _lost_error(task, reason),
            }
            self._end(ref, task, ended)
            return
        del self.running[ref]
        wait = self.retries.wait(task.attempts)
        task.not_before = time.monotonic() + wait
        self.waiting[task.group].appendleft(task)
        self.observe(task, {"event": "lost", "reason": reason, "wait_seconds": wait})

    def _end(self, ref: Any, task: Task, event: Event) -> None:
        self.running.pop(ref, None)
        self._unfinished.discard(task.name)
        task.ended = event
        self.observe(task, event)

    def _check_nodes(self) -> None:
        """Fail the tasks that no node could run for `node_seconds`."""
        now = time.monotonic()
        if now - self._nodes_checked_at < NODES_SECONDS:
            return
        self._nodes_checked_at = now
        alive = cluster.nodes(self.library)
        waiting = [(None, task) for queue in self.waiting.values() for task in queue]
        here = [*self.running.items(), *waiting]
        unserved: dict[str, float] = {}
        for ref, task in here:
            if any(cluster.fits(node, task.demand) for node in alive):
                continue
            since = unserved.setdefault(task.group, self._unserved.get(task.group, now))
            if now - since < self.node_seconds:
                continue
            if ref is None:
                self.waiting[task.group].remove(task)
            else:
                self.library.cancel(ref, force=True)
            error = _no_node(task, self.node_seconds)
            self._end(ref, task, {"event": "ended", "ok": False, "error": error})
        for group in unserved.keys() - self._unserved.keys():
            task = next(task for _, task in here if task.group == group)
            self.observe(task, {"event": "waiting", "for": dict(task.demand)})
        self._unserved = unserved

    def _cancel(self) -> None:
        """Cancel the submitted tasks. Their Ray processes are killed, and each build stops when its
        standard input ends.
        """
        for ref in self.running:
            with contextlib.suppress(Exception):  # the cluster may be down
                self.library.cancel(ref, force=True)
        self.running.clear()


def _lost_error(task: Task, reason: str) -> Event:
    return EnvironmentProblem(
        f"the task was lost {task.attempts} times, the last time with: {reason}",
        fix="see the log of the node; `retries: {max: N}` in the farm file allows more",
    ).as_dict()


def _no_node(task: Task, seconds: float) -> Event:
    demand = ", ".join(f"{name}: {amount:g}" for name, amount in task.demand.items())
    return EnvironmentProblem(
        f"no node of the cluster has {demand}, for {seconds:g} s",
        fix="add such a node, or reduce the target's resources in the farm file",
    ).as_dict()


def _defect(error: Exception) -> Event:
    words = str(error).strip()
    if "No module named" in words:
        return EnvironmentProblem(
            words.splitlines()[-1], fix="install trt-build[farm] on every node"
        ).as_dict()
    return Defect(f"{type(error).__name__}: {words}", fix="report it").as_dict()
