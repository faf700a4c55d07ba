"""Runs several `push` commands in parallel: processes, each with a separate server, ports and
folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.pushing import MODES, Counts, summed

END_SECONDS = 240.0
"""Extra seconds for the last push of each stream, and for stopping its server."""


def run(
    out: Path, streams: int, words: Sequence[str], seconds: float
) -> dict[str, Counts]:
    """Run `push` with `words` in `streams` processes, equally many in each mode. Returns the counts
    of each mode.

    Each process writes its records to a file in the folder `out`.
    """
    out.mkdir(parents=True, exist_ok=True)
    running = [
        _start(out, number, MODES[number % len(MODES)], words)
        for number in range(streams)
    ]
    deadline = time.monotonic() + seconds + END_SECONDS
    try:
        for process in running:
            process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        print("streams were stopped: they took too long", file=sys.stderr)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return read(out)


def _start(
    out: Path, number: int, mode: str, words: Sequence[str]
) -> subprocess.Popen[bytes]:
    name = f"{number:02d}-{mode}"
    command = (sys.executable, "-m", "tests.chaos", "push")
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, f"--mode={mode}", *words, f"--lines={out / name}.jsonl"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def read(out: Path) -> dict[str, Counts]:
    """The counts of each mode in the records of a folder, finished or not."""
    by_stream = defaultdict[str, list[list[dict[str, Any]]]](list)
    for file in sorted(out.glob("*.jsonl")):
        # an interrupted stream may end within a line
        lines = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
        if lines:
            by_stream[lines[0]["mode"]].append(lines)
    return {mode: summed(*streams) for mode, streams in sorted(by_stream.items())}
