"""Stores the measured rows in benchmarks/results/*.jsonl: one JSON object a line, appended under a
file lock, newest last.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
ENGINES, TORCH, SERVING = (
    RESULTS / f"{name}.jsonl" for name in ("engine", "torch", "serving")
)
PROFILES = RESULTS / "batch_sizes.jsonl"
METHOD = 3
"""The timing method of a row.

1 (or none): on the default stream, where TensorRT waits for the GPU after each call. 2: on a
separate stream, with the contenders always in one order, trt-build after TorchScript. 3: in a
different order for each round.
"""
KEY = (
    "gpu",
    "tensorrt",
    "torch",
    "network",
    "precision",
    "batch",
    "way",
    "settings",
    "setting",
    "clients",
)
"""The fields that two rows of the same measurement share."""


def show(row: Row, as_json: bool, digits: int) -> None:
    """Print a row as JSON, or as names and values with rounded numbers."""
    shown = (
        f"{key} {value:.{digits}g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in row.items()
    )
    print(json.dumps(row) if as_json else "  ".join(shown), flush=True)


def append(path: Path, rows: Iterable[Row]) -> None:
    """Append to `path`, and to the file of the same name in $OUT if that is set."""
    from filelock import FileLock

    lines = "".join(json.dumps(row) + "\n" for row in rows)
    out = os.environ.get("OUT")
    for file in {path, Path(out or path.parent) / path.name}:
        file.parent.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(f"/tmp/{file.name}.lock"),
            file.open("a", encoding="utf-8") as open_file,
        ):
            open_file.write(lines)


def read(path: Path) -> list[Row]:
    """Every row of the file, oldest first; none if it does not exist."""
    return (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if path.exists()
        else []
    )


def key(row: Row) -> tuple[Any, ...]:
    """The measurement of the row. Rows of one key supersede each other."""
    return tuple(row.get(part, "") for part in KEY)


def newest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each key, in the order of the keys' first rows."""
    return list({key(row): row for row in rows}.values())


def host() -> Row:
    """Machine, GPU, driver, versions and date; `tensorrt` only if the process has loaded one."""
    import torch

    return {
        "host": socket.gethostname(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver(),
        "cuda": torch.version.cuda,
        **software(),
        "method": METHOD,
    }


def software() -> Row:
    """Versions and date, which are in every row."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def driver() -> str:
    """The NVIDIA driver's version."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    return (
        subprocess.run(command, capture_output=True, text=True, check=False)
        .stdout.split("\n")[0]
        .strip()
    )
