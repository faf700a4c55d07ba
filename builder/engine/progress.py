"""Where a build stands, and how it is stopped: TensorRT's IProgressMonitor, where the flavour has one (10, 11, RTX)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from builder.engine.flavour import trt

Report = Callable[[str, int, int], None]
"""(TensorRT's name of the phase, steps done, steps in all)."""

CANCEL = threading.Event()
"""Set, it ends the build that runs in this process at TensorRT's next step; the build then raises BuildCancelled."""


BUILDING = threading.Event()
"""Set while TensorRT builds and looks at CANCEL itself: an exception that a signal raised then would surface in one of
its callbacks, which prints it and goes on."""


class BuildCancelled(KeyboardInterrupt):
    """The build was stopped, as Ctrl-C stops anything else."""


@contextmanager
def building(watched: bool) -> Iterator[None]:
    """Around a build; `watched`: whether a monitor looks at CANCEL. Raises BuildCancelled after one that was told to
    stop, whatever it made of it."""
    if watched:
        BUILDING.set()
    try:
        yield
    finally:
        BUILDING.clear()
        if CANCEL.is_set():
            raise BuildCancelled("the build was cancelled")


def monitor(report: Report | None) -> Any:
    """A monitor that reports the outermost phases and stops on CANCEL; None where the flavour has no such interface."""
    if not hasattr(trt, "IProgressMonitor"):
        return None

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.totals: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.totals[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            if report is not None:
                report(phase_name, step + 1, self.totals.get(phase_name, 0))
            return not CANCEL.is_set()

        def phase_finish(self, phase_name: str) -> None:
            self.totals.pop(phase_name, None)

    return Monitor()
