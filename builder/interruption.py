"""Ctrl-C before a command has begun."""

from __future__ import annotations

import os
import signal

MESSAGE = "interrupted; no partly written files remain"


def end(number: int, frame: object) -> None:
    """The handler of a signal while the program starts: end the process without a traceback."""
    try:
        os.write(2, f"{MESSAGE}\n".encode())
    finally:  # standard error may be closed
        os._exit(128 + number)


def is_default() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt. A program may be started with SIGINT ignored."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
