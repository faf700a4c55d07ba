"""The program `trt-build`, also `python -m builder`. Ctrl-C ends it without a traceback while it
imports the command line.
"""

from __future__ import annotations

import signal

from builder.interruption import end, is_default


def main() -> None:
    """Run the command line with the arguments of the process."""
    by_default = is_default()
    if by_default:
        signal.signal(signal.SIGINT, end)
    from builder.cli import main as command_line

    if by_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line(prog_name="trt-build")


if __name__ == "__main__":
    main()
