"""The program `trt-build`, also `python -m builder`. Ctrl-C ends it without a traceback while it
imports the command line.
"""

from __future__ import annotations

import os
import signal

from builder.interruption import end, is_default


def main() -> None:
    """Run the command line with the arguments of the process."""
    _open_closed_streams()
    by_default = is_default()
    if by_default:
        signal.signal(signal.SIGINT, end)
    from builder.cli import main as command_line

    if by_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line(prog_name="trt-build")


def _open_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams, also for child processes. The next file
    or pipe would get their descriptors, and so the output of libraries.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


if __name__ == "__main__":
    main()
