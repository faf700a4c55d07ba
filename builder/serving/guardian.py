"""Ends a server whose parent was killed. Run as a script, by path, with the standard library only:

    python -I -S guardian.py PARENT SERVER SCRATCH

It waits until process PARENT, which started it, has ended. Then it kills the process group of
SERVER and removes the shared memory and the folder SCRATCH of that server. A parent that stops its
server itself kills the guardian afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

PERIOD = 0.25
"""Seconds between two checks of the parent."""
SHARED_MEMORY = Path("/dev/shm")


def end(server: int) -> None:
    """Kill the server and all processes of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server, signal.SIGKILL)


def clean(scratch: Path) -> None:
    """Remove the shared memory and the folder of a server."""
    for region in SHARED_MEMORY.glob(f"{scratch.name}*"):
        with contextlib.suppress(OSError):
            region.unlink(missing_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)


def main(parent: int, server: int, scratch: Path) -> None:
    """Wait until the parent has ended, then clean up."""
    while os.getppid() == parent:
        time.sleep(PERIOD)
    end(server)
    clean(scratch)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
