"""Report the progress of a build, and cancel it, through TensorRT's IProgressMonitor, if the flavor
has one (10, 11, RTX).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from builder.engine.flavor import trt
from builder.processes import CANCEL

Report = Callable[[str, int, int], None]
"""(TensorRT's name of the phase, steps done, total steps)."""


SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class BuildCanceled(KeyboardInterrupt):
    """The build was canceled, for example by Ctrl-C."""


@contextmanager
def building() -> Iterator[None]:
    """Defer signals during a build: a signal sets CANCEL and is handled after TensorRT returns.

    Otherwise an exception from a handler in one of TensorRT's callbacks would be printed and lost.
    Raises the handler's exception, and BuildCanceled if CANCEL was set.
    """
    heard: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        CANCEL.set()

    # only the main thread may set signal handlers
    main = threading.current_thread() is threading.main_thread()
    before = {
        signal_number: handler
        for signal_number in SIGNALS
        if main and callable(handler := signal.getsignal(signal_number))
    }
    try:
        for signal_number in before:
            signal.signal(signal_number, note)
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
        for number in heard:
            CANCEL.clear()
            before[signal.Signals(number)](number, None)
        if CANCEL.is_set():
            raise BuildCanceled("the build was canceled")


def monitor(report: Report | None) -> Any:
    """A monitor that reports the outermost phases and stops on CANCEL; None if the flavor has no
    such interface.
    """
    if not hasattr(trt, "IProgressMonitor"):
        return None

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.totals: dict[str, int] = {}

        def phase_start(
            self, phase_name: str, parent_phase: str | None, num_steps: int
        ) -> None:
            self.totals[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            if report is not None:
                report(phase_name, step + 1, self.totals.get(phase_name, 0))
            return not CANCEL.is_set()

        def phase_finish(self, phase_name: str) -> None:
            self.totals.pop(phase_name, None)

    return Monitor()
