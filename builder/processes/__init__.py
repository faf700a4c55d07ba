"""Runs tasks in child processes: one fork server, a pool of workers, limits, and a sandbox.

A worker that crashes fails its own task only, and Ctrl-C ends them all.
"""

from __future__ import annotations

from builder.processes.fork_server import close
from builder.processes.limits import Limits
from builder.processes.pool import Crashed, Task, TimedOut, run
from builder.processes.sandbox import Sandbox, available, missing, require, secrets_folder
from builder.processes.worker import CANCEL, GRACE_SECONDS, ask, can_ask

__all__ = [
    "CANCEL",
    "GRACE_SECONDS",
    "Crashed",
    "Limits",
    "Sandbox",
    "Task",
    "TimedOut",
    "ask",
    "available",
    "can_ask",
    "close",
    "missing",
    "require",
    "run",
    "secrets_folder",
]
