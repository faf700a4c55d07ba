"""Models are pushed to a running server while clients ask for them; every answer is judged.

Half of the pushes are ensembles, half models of one folder. Every fifth has goldens that the model
does not give: it must be rejected, and no client may see it.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from builder.deployment import Target, push
from builder.parity.clients import Client, GrpcClient, HttpClient
from builder.serving import Server, find
from builder.serving.server import start
from builder.store import published
from builder.triton import publish, publish_ensemble
from tests.chaos import plans as engines
from tests.chaos.kill import single
from tests.chaos.load import POLL
from tests.triton.artifacts import pair, reseal

MODELS = ("pair", "one")
EXPLICIT = ["--model-control-mode=explicit", "--load-model=*"]
BAD_EVERY = 5


@dataclass
class Counts:
    """What the clients saw, what `push` said, and the memory of the server with its processes.

    `wrong`: an answer of two generations, or of one that had to be rejected. Latencies in
    milliseconds, memory in MiB and the
    number of processes after each push.
    """

    mode: str
    clients: int
    pushes: int = 0
    rejected: int = 0
    wrong_verdicts: int = 0
    requests: int = 0
    failed: int = 0
    wrong: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    slowest_ms: float = 0.0
    memory_mib: list[float] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        """What no user may see."""
        return self.failed + self.wrong + self.wrong_verdicts

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def run(
    folder: Path, mode: str, *, pushes: int, clients: int, pause: float, plans: bool = False
) -> Counts:
    """Push `pushes` generations under `clients` threads, half over HTTP and half over gRPC, which
    wait `pause` seconds between their requests. With `plans` TensorRT engines answer, by Triton's
    own backend; else the Python backend runs torch.
    """
    served, counts = folder / "served", Counts(mode, clients)
    publish_one = engines.write if plans else _publish
    for model in MODELS:
        publish_one(model, 1, served)
    if plans:
        engines.prepare(MODELS, folder, range(2, 2 + pushes))
    server = start(
        served,
        port=dict.fromkeys(("--http-port", "--grpc-port", "--metrics-port"), 0),
        address="127.0.0.1",
        options=POLL if mode == "poll" else EXPLICIT,
        log_path=folder / f"{mode}.log",
        installation=find(),
    )
    with server:
        server.wait_ready(240)
        with _asking(server, counts, pause):
            for generation in range(2, 2 + pushes):
                source = folder / str(generation)
                model = MODELS[generation % len(MODELS)]
                made = source / model if plans else _publish(model, generation, source)
                _one(source, made, served, server, counts, bad=_is_bad(generation))
    return counts


def _publish(model: str, generation: int, repository: Path) -> Path:
    if model == "pair":
        return publish_ensemble(pair(generation, model), repository)
    return publish(single(generation, model), repository)


def _is_bad(generation: int) -> bool:
    return generation % BAD_EVERY == 0


def _one(
    source: Path, made: Path, served: Path, server: Server, counts: Counts, *, bad: bool
) -> None:
    if bad:
        spoil(made)
    target = Target(served, server.http_url, server.grpc_url, timeout=120, drain=1)
    (found,) = push(source, target)
    counts.pushes += 1
    counts.rejected += found.state == "rejected"
    if found.state != ("rejected" if bad else "pushed"):
        counts.wrong_verdicts += 1
        counts.errors[f"push: {found.state}: {'; '.join(found.problems)[:200]}"] = 1
    memory, processes = _held(server.process.pid)
    counts.memory_mib.append(memory)
    counts.processes.append(processes)
    shutil.rmtree(source)


def spoil(model: Path) -> None:
    """Record other answers than the model gives."""
    for file in (model / "goldens").iterdir():
        with np.load(file) as arrays:
            changed = {
                key: array + 1 if key.startswith("output") else array
                for key, array in arrays.items()
            }
        np.savez(file.with_suffix(""), **changed)
    assert published.versions(model)
    reseal(model)


def _held(server: int) -> tuple[float, int]:
    """MiB that the server and its children hold of their own (PSS), and how many processes they
    are, once former ones have ended.
    """
    time.sleep(2)
    total = processes = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid = int(stat.parent.name)
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if server in (pid, parent):
                lines = (stat.parent / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
                processes += 1
    return round(total / 1024, 1), processes


@contextlib.contextmanager
def _asking(server: Server, counts: Counts, pause: float) -> Any:
    ended, lock, began = threading.Event(), threading.Lock(), time.monotonic()
    times: list[float] = []
    threads = [
        threading.Thread(target=_ask, args=(server, n, ended, lock, counts, times, pause))
        for n in range(counts.clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        counts.seconds = round(time.monotonic() - began, 1)
        found = np.percentile(np.asarray(times) * 1e3, (50, 99, 100)).round(1)
        counts.p50_ms, counts.p99_ms, counts.slowest_ms = map(float, found)


def _ask(
    server: Server,
    number: int,
    ended: threading.Event,
    lock: threading.Lock,
    counts: Counts,
    times: list[float],
    pause: float,
) -> None:
    client: Client = (
        GrpcClient(server.grpc_url, 60) if number % 2 else HttpClient(server.http_url, 60)
    )
    random, seen, errors = np.random.default_rng(number), Counter[str](), Counter[str]()
    taken: list[float] = []
    while not ended.is_set():
        model = MODELS[int(random.integers(len(MODELS)))]
        x = random.integers(0, 1000, (int(random.integers(1, 4)), 2)).astype("float32")
        began = time.monotonic()
        seen["requests"] += 1
        try:
            outputs = client.infer(model, {"x": x}).outputs
        except Exception as error:
            seen["failed"] += 1
            errors[f"{model}: {str(error)[:200]}"] += 1
            continue
        taken.append(time.monotonic() - began)
        seen["wrong"] += not _is_right(model, x, outputs)
        time.sleep(pause)
    client.close()
    with lock:
        times += taken
        for what in ("requests", "failed", "wrong"):
            setattr(counts, what, getattr(counts, what) + seen[what])
        counts.errors = dict(Counter(counts.errors) + errors)


def _is_right(model: str, x: Any, outputs: dict[str, Any]) -> bool:
    y, g = outputs.get("y"), outputs.get("g")
    if y is None or g is None or not np.array_equal(y, x):
        return False
    generation = int(g.flat[0])
    own = generation == 1 or MODELS[generation % len(MODELS)] == model
    return bool((g == generation).all()) and own and not _is_bad(generation)
