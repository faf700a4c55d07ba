"""Limits of memory, time and file size that a worker sets for itself before it runs a task."""

from __future__ import annotations

import resource
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """The limits of a task; None for no limit.

    `memory_bytes`: private memory in addition to the worker's at its start. `seconds`: wall-clock
    time, and CPU time; the process is ended by SIGALRM or SIGXCPU. `file_bytes`: the size of any
    file that it writes (writes through mmap are not covered). `stage_seconds`: wall-clock time
    between two reports of the task, and before the first; the pool kills the worker.
    """

    memory_bytes: int | None = None
    seconds: int | None = None
    file_bytes: int | None = None
    stage_seconds: float | None = None

    def apply(self) -> None:
        """Limit this process until its end."""
        if self.memory_bytes is not None:
            # not RLIMIT_AS: a CUDA build maps tens of GiB that it never touches
            data = _data_bytes() + self.memory_bytes
            _lower(resource.RLIMIT_DATA, data, data)
        if self.file_bytes is not None:
            _lower(resource.RLIMIT_FSIZE, self.file_bytes, self.file_bytes)
        if self.seconds is not None:
            # the soft limit's signal gives the reason; the hard limit's is SIGKILL
            _lower(resource.RLIMIT_CPU, self.seconds, self.seconds + 5)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(self.seconds)  # time asleep does not count as CPU time
        if self != UNLIMITED:
            _lower(resource.RLIMIT_CORE, 0, 0)


UNLIMITED = Limits()


def _lower(limit: int, soft: int, hard: int) -> None:
    """Set a limit, but never above the current one."""
    before = resource.getrlimit(limit)[1]
    most = hard
    if before != resource.RLIM_INFINITY:
        most = min(hard, before)
    resource.setrlimit(limit, (min(soft, most), most))


def _data_bytes() -> int:
    """Private writable memory mapped so far, which RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
