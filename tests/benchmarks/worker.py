"""A worker for the fleet's test: takes jobs, notes who did each, and is killed by the job named
`crash`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from benchmarks import fleet


def main(folder: Path, claims: Path, until: float) -> None:
    """Do the jobs that are in jobs.txt."""
    jobs = [(name, "fp16") for name in (folder / "jobs.txt").read_text().split()]
    for name, _ in fleet.claimed(jobs, claims, until):
        if name == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        with (folder / "done.txt").open("a") as done:
            done.write(f"{name} {os.environ['CUDA_VISIBLE_DEVICES']}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[3]), float(sys.argv[5]))
