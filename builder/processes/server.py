"""The fork server: `python -m builder.processes.server DESCRIPTOR`.

It imports once what the caller names, which takes seconds. Then it forks a worker for each task,
which takes milliseconds: a worker begins with everything imported and nothing used. Forking is safe
here because this process starts no thread and touches no GPU; all of that happens in the worker,
and ends with it. A fork of the caller would not be safe: its threads (OpenMP, CUDA, a notebook's)
do not survive one. multiprocessing's forkserver would run the caller's main module again in every
child, which fails for a script without a `__main__` guard.

Over the socket DESCRIPTOR comes one socket for each task. The first message on that socket is the
tuple of modules to import before the fork; builder.processes.worker documents the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

from builder.processes import worker


def main(descriptor: int) -> None:
    """Fork a worker for every socket that comes, until the other side closes."""
    # Ctrl-C reaches the whole process group; the caller decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are not waited for
    with socket.socket(fileno=descriptor) as control:
        while True:
            message, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            connection = Connection(descriptors[0])
            with contextlib.suppress(OSError, EOFError):
                worker.preload(connection.recv())
                if os.fork() == 0:
                    control.close()
                    worker.supervise(connection)
            connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
