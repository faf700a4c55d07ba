"""Pushes models to a running server while clients send requests, and checks every response.

Half of the pushes are ensembles, half are single-folder models. Every fifth has goldens that differ
from the model's outputs. It must be rejected, and no client may see it. All generations are built
before the load begins. After each push the server must hold exactly the models and processes that
its repository names.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from builder.deployment import Pushed, Target, push
from builder.serving import Server
from builder.store import published
from builder.triton import publish
from tests.chaos import census, flat
from tests.chaos import plans as engines
from tests.chaos.asking import MODELS, Window, is_bad
from tests.chaos.clients import Clients
from tests.chaos.counts import ServedCounts
from tests.chaos.kill import single
from tests.chaos.servers import start_free
from tests.triton.artifacts import pair, reseal

MODES = ("explicit", "poll")
DRAIN_SECONDS = 1.0


@dataclass
class Counts(ServedCounts):
    """The results of the clients, of `push`, and of the server after each push.

    `wrong`: a response of two generations, or of a generation that had to be rejected. `p99_ms` is
    that of all requests during a push; `between_p99_ms` is that of the others. `flat`: whether no
    stream's memory grew.
    """

    mode: str = ""
    streams: int = 1
    pushes: int = 0
    ensembles: int = 0
    rejected: int = 0
    wrong_verdicts: int = 0
    kib_per_push: float | None = None
    """The growth of the server's memory with each push, for the stream with the largest growth."""
    seconds: float = 0.0
    """The duration of the load in the longest stream."""
    between_p99_ms: float = 0.0
    push_seconds: dict[str, float] = field(default_factory=dict)
    """The median time of a push of each kind, and of the longest wait for unloading."""
    stub_mib: list[float] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)

    @property
    def bad(self) -> int:
        """Failures that users must not see, and incorrect verdicts."""
        return super().bad + self.wrong_verdicts


def run(
    folder: Path,
    mode: str,
    *,
    pushes: int,
    clients: int,
    pause: float,
    plans: bool = False,
    seconds: float = float("inf"),
    out: Path | None = None,
) -> Counts:
    """Push `pushes` generations under the load of `clients` clients.

    Half of the clients use HTTP and half gRPC, and wait `pause` seconds between their requests.
    With `plans`, Triton's TensorRT backend runs TensorRT engines; else the Python backend runs
    torch. No push begins after `seconds`. Each push is a line of the file `out`.
    """
    served, lines = folder / "served", list[dict[str, Any]]()
    _prepare(folder, served, range(2, 2 + pushes), plans)
    with start_free(served, mode, "*", folder / f"{mode}.log") as server:
        server.wait_ready(240)
        for line in _pushed(
            server, served, folder, mode, range(2, 2 + pushes), clients, pause, seconds
        ):
            lines.append(line)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    return summed(lines)


def _prepare(folder: Path, served: Path, generations: range, plans: bool) -> None:
    """Build the first generation into `served`, and each other into a separate repository."""
    for model in MODELS:
        (engines.write if plans else publish_generation)(model, 1, served)
    if plans:
        engines.prepare(MODELS, folder, generations)
    for generation in generations:
        model = MODELS[generation % len(MODELS)]
        if not plans:
            publish_generation(model, generation, folder / str(generation))
        if is_bad(generation):
            spoil(folder / str(generation) / model)


def publish_generation(model: str, generation: int, repository: Path) -> Path:
    """Publish one generation of a model of MODELS."""
    if model == "pair":
        return publish(pair(generation, model), repository)
    return publish(single(generation, model), repository)


def _pushed(
    server: Server,
    served: Path,
    folder: Path,
    mode: str,
    generations: range,
    clients: int,
    pause: float,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """Yield one record for each push, and a last one with the later results of the clients."""
    target = Target(
        served, server.http_url, server.grpc_url, timeout=120, drain=DRAIN_SECONDS
    )
    began = time.monotonic()
    head = {"mode": mode, "clients": clients}
    with Clients(server, clients, pause) as clients_running:
        while not clients_running.taken().requests:  # until the first response
            time.sleep(0.1)
        for generation in generations:
            if time.monotonic() - began > seconds:
                break
            source = folder / str(generation)
            (pushed,) = push(source, target)
            during = clients_running.taken()
            held = census.take(server, served, mode)
            shutil.rmtree(source)
            yield {
                **head,
                "generation": generation,
                "at": round(time.monotonic() - began, 1),
                "verdict": _verdict(pushed, generation),
                "during": during.as_dict(),
                "between": clients_running.taken().as_dict(),
                **held.as_dict(),
            }
    last = {"between": clients_running.taken().as_dict(), "died": clients_running.died}
    yield {**head, "at": round(time.monotonic() - began, 1), **last}


def _verdict(pushed: Pushed, generation: int) -> dict[str, Any]:
    expected = "rejected" if is_bad(generation) else "pushed"
    return {
        "model": pushed.name,
        "state": pushed.state,
        "right": pushed.state == expected,
        "problems": [problem[:200] for problem in pushed.problems[:3]],
        "seconds": pushed.seconds,
    }


def summed(*streams: Sequence[dict[str, Any]]) -> Counts:
    """Sum the records of streams of one mode."""
    first = streams[0][0]
    counts = Counts(mode=first["mode"], clients=first["clients"], streams=len(streams))
    during, between = Window(), Window()
    for line in (line for lines in streams for line in lines):
        between.add(Window.of(line["between"]))
        counts.seconds = max(counts.seconds, line["at"])
        counts.failed += line.get("died", 0)
        if "verdict" in line:
            during.add(Window.of(line["during"]))
            _count(counts, line)
    _latencies(counts, during, between)
    _memory(counts, streams)
    return counts


def _count(counts: Counts, line: dict[str, Any]) -> None:
    verdict = line["verdict"]
    counts.pushes += 1
    counts.ensembles += verdict["model"] == "pair"
    counts.rejected += verdict["state"] == "rejected"
    counts.wrong_verdicts += not verdict["right"]
    if not verdict["right"]:
        counts.errors[f"push: {verdict['state']}: {'; '.join(verdict['problems'])}"] = 1
    for name in ("leaked_models", "leaked_processes", "missing"):
        setattr(counts, name, getattr(counts, name) + len(line[name]))
        for model in line[name]:
            counts.errors[f"{name} after {line['generation']}: {model}"] = 1


def _latencies(counts: Counts, during: Window, between: Window) -> None:
    counts.set_latencies(during)
    counts.between_p99_ms = between.percentile(99)
    during.add(between)
    counts.set_answers(during)
    counts.failed += during.failed


def _memory(counts: Counts, streams: Sequence[Sequence[dict[str, Any]]]) -> None:
    """The largest growth of a stream's server, and of its other processes, each on average."""
    pushes = [[line for line in lines if "verdict" in line] for lines in streams]
    for lines in pushes:
        servers = [line["server_mib"] for line in lines]
        stubs = [line["stubs_mib"] / max(1, line["processes"] - 1) for line in lines]
        if trend := flat.trend(servers, [line["processes"] for line in lines]):
            counts.server_growth = _larger(
                counts.server_growth, flat.growth(trend.level)
            )
            rise = round(trend.per_sample * 1024, 1)
            counts.kib_per_push = _larger(counts.kib_per_push, rise)
        counts.stub_growth = _larger(counts.stub_growth, flat.growth(stubs))
        counts.server_mib += servers
        counts.stub_mib += [round(one, 1) for one in stubs]
        counts.processes += [line["processes"] for line in lines]
    counts.set_flat()
    every = [line for lines in pushes for line in lines]
    for model in MODELS:
        seconds = [
            one["verdict"]["seconds"]
            for one in every
            if one["verdict"]["model"] == model
        ]
        counts.push_seconds[model] = (
            round(float(np.median(seconds)), 1) if seconds else 0.0
        )
    counts.push_seconds["longest unloading"] = max(
        (one["settled_seconds"] for one in every), default=0
    )


def _larger(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def spoil(model: Path) -> None:
    """Record outputs that differ from the model's."""
    for file in (model / "goldens").iterdir():
        with np.load(file) as arrays:
            changed = {
                key: array + 1 if key.startswith("output") else array
                for key, array in arrays.items()
            }
        np.savez(file.with_suffix(""), **changed)
    assert published.versions(model)
    reseal(model)
