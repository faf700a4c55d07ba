"""Compares the models and processes of a server after a push with its repository."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.serving import Server
from builder.serving.stubs import ENDED, Stubs
from builder.store import published, retired
from builder.triton.config import parse_config
from tests.chaos.counts import Results

SETTLE_SECONDS = 60.0
"""Seconds until an unloaded model and its process are gone. A longer time is a leak."""
POLL_SLACK = 120.0
"""Seconds added to the grace period of a former step: the next push removes the step, and a poll
follows.
"""


@dataclass
class Census(Results):
    """The result: MiB of the server alone and of its other processes (_weigh).

    A model or process has leaked if no folder requires it, and is missing if a folder does.
    `details` has the kernel's data on leaked processes.
    """

    server_mib: float = 0.0
    stubs_mib: float = 0.0
    processes: int = 0
    leaked_models: list[str] = field(default_factory=list)
    leaked_processes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    settled_seconds: float = 0.0


def take(
    server: Server, repository: Path, mode: str, wait: float = SETTLE_SECONDS
) -> Census:
    """Compare after unloading has finished, or after at most `wait` seconds."""
    began = time.monotonic()
    while True:
        comparison = compare(required(repository, mode), *_held(server))
        waited = time.monotonic() - began
        if (
            not (
                comparison.leaked_models
                or comparison.leaked_processes
                or comparison.missing
            )
            or waited > wait
        ):
            break
        time.sleep(0.25)
    comparison.settled_seconds = round(waited, 1)
    for pid in [] if not comparison.leaked_processes else children(server.process.pid):
        comparison.details.append(_details(pid))
    _weigh(server.process.pid, comparison)
    return comparison


def required(repository: Path, mode: str) -> dict[str, int]:
    """The models that the server should hold, with the processes of each.

    In poll mode these are all folders, including former steps within their grace period.
    """
    now = time.time()
    named, former = set[str](), {}
    for folder in _models(repository):
        if retired.step_of(folder) is None:
            named |= {folder.name, *published.step_names(folder)}
            former.update(
                published.read(folder / published.SIDECAR).get(published.RETIRED) or {}
            )
    if mode == "poll":
        grace = retired.GRACE_SECONDS + POLL_SLACK
        named |= {step for step, since in former.items() if now - since < grace}
    return {
        folder.name: _instances(folder)
        for folder in _models(repository)
        if folder.name in named
    }


def compare(
    required: dict[str, int], models: Counter[str], stubs: Counter[str]
) -> Census:
    """Compare with the `models` that the server has not unloaded, and their processes (`stubs`)."""
    counts = Census()
    counts.leaked_models = sorted(name for name in models if name not in required)
    counts.missing = sorted(name for name in required if name not in models)
    surplus = stubs - Counter(required)
    counts.leaked_processes = sorted(surplus.elements())
    lacking = Counter(required) - stubs
    counts.missing += [f"a process of {name}" for name in sorted(lacking.elements())]
    return counts


def _models(repository: Path) -> list[Path]:
    return sorted(path.parent for path in repository.glob(f"*/{published.SIDECAR}"))


def _instances(folder: Path) -> int:
    """The number of Python backend processes that the config requires, without a GPU or on one."""
    message = parse_config((folder / "config.pbtxt").read_text(), str(folder))
    if message.backend != "python":
        return 0
    return sum(group.count or 1 for group in message.instance_group) or 1


def _held(server: Server) -> tuple[Counter[str], Counter[str]]:
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/repository/index", data=b"{}"
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        index = json.load(response)
    models = Counter(
        str(one["name"])
        for one in index
        if one.get("state") in ("READY", "LOADING", "UNLOADING")
    )
    living = Stubs(server.process.pid)._living().values()
    return models, Counter(model for model in living if model)


def children(server: int) -> list[int]:
    """The running processes that the server has started."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == server and state not in ENDED:
                processes.append(int(stat.parent.name))
    return processes


@dataclass(frozen=True)
class Memory:
    """MiB of a process: its allocated memory and its share of shared memory. Each process that maps
    a page counts the same part of it.

    Pages of files are left out. The part of a library that counts for a process depends on the
    number of others that map it: the server's PSS rises by 15 MiB when another tritonserver ends.
    """

    allocated: float
    shared: float


def memory(pid: int) -> Memory:
    """Read the memory of a process. Raises OSError if the process has ended, ValueError if it is
    ending.
    """
    lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    mib = {
        name: int(rest.split()[0]) / 1024
        for name, _, rest in (s.partition(":") for s in lines[1:])
    }
    try:
        return Memory(mib["Pss_Anon"], mib["Pss_Shmem"])
    except KeyError as error:
        raise ValueError(f"process {pid} has no {error}") from error


def _weigh(server: int, census: Census) -> None:
    """Attribute shared memory. A region shared by the server and a process counts for the process.
    Regions that no other process maps any more count for the server.
    """
    shared = 0.0
    for pid in children(server):
        with contextlib.suppress(OSError, ValueError):
            part = memory(pid)
            shared += part.shared
            census.processes += 1
            census.stubs_mib += part.allocated + 2 * part.shared
    with contextlib.suppress(OSError, ValueError):
        own = memory(server)
        census.processes += 1
        census.server_mib = round(own.allocated + max(0.0, own.shared - shared), 1)
    census.stubs_mib = round(census.stubs_mib, 1)


def _details(pid: int) -> dict[str, Any]:
    """The model of a process, its age, and the state of each of its threads."""
    folder, record = Path("/proc") / str(pid), dict[str, Any](pid=pid)
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = float((Path("/proc/uptime").read_text()).split()[0]) * 100 - float(
            fields[19]
        )
        record |= {"state": fields[0], "age_seconds": round(ticks / 100, 1)}
        record["model"] = (folder / "cmdline").read_text().split("\0")[1:2]
        threads = Counter(
            f"{_text(task / 'comm')} {_text(task / 'wchan')}"
            for task in (folder / "task").iterdir()
        )
        record["threads"] = dict(
            threads
        )  # asdict makes the items of a Counter its keys
    return record


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return "?"
