"""The fork server: `python -m builder.processes.server DESCRIPTOR`.

It imports the caller's modules once, which takes seconds. Then it forks a worker for each task,
which takes milliseconds. A worker starts with everything imported and nothing used. Forking is safe
here because this process starts no thread and uses no GPU. Only the workers do, and their threads
and GPU contexts end with them.

A fork of the caller would not be safe: its threads (OpenMP, CUDA, a notebook's) do not survive it.
multiprocessing's forkserver would run the caller's main module again in every child, which fails
for a script without a `__main__` guard.

The socket DESCRIPTOR receives one socket for each task. The first message on that socket is the
tuple of modules to import before the fork. builder.processes.worker documents the others.
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
    """Fork a worker for every received socket, until the other side closes."""
    # Ctrl-C reaches the whole process group; the caller handles it
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
