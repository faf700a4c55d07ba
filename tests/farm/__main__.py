"""`python -m tests.farm MODE`: measurements of docs/farm.md on Ray nodes of this machine.

    kills      models x targets, with processes and nodes killed at random moments
    scaling    tasks that sleep, on 1, 2 and 4 nodes: simulated builds
    memory     many empty tasks: the time for each, and the memory of the command
    gpus       real builds on 1 and on 2 GPUs of this host (simulated for TensorRT for RTX)
    stages     the seconds of each stage of a build, and with goldens from the store

The figures are printed as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

STORE_BYTES = 80 << 20
CAPABILITIES = {"ampere": "8.6", "ada": "8.9", "blackwell": "12.0"}
KEY = "the key of the measurements"


def cluster(nodes: int, **resources: float) -> Any:
    """A cluster whose head builds nothing, and `nodes` nodes of one core; connected."""
    import ray
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 0,
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
    }
    found = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        add(found, resources)
    ray.init(address=found.address, log_to_driver=False)
    return found


def add(found: Any, resources: dict[str, float]) -> Any:
    """Another node."""
    return found.add_node(
        num_cpus=1, resources=resources, object_store_memory=STORE_BYTES
    )


def kills(models: int, count: int, nodes: int, seed: int) -> dict[str, Any]:
    """Build while processes and nodes are killed, and compare with builds on one machine. A second
    run builds nothing.
    """
    from builder.farm import Farm, Target, build_on_farm
    from builder.farm.config import Retries
    from builder.repository import Settings

    root = Path(tempfile.mkdtemp(prefix="farm-kills-"))
    write_models(root / "models", models)
    everywhere = dict.fromkeys(CAPABILITIES, 1.0)
    ray_cluster = cluster(nodes, **everywhere)
    targets = tuple(
        Target(
            name, resources={name: 0.01}, build={"compute_capabilities": [capability]}
        )
        for name, capability in CAPABILITIES.items()
    )
    farm = Farm("connected", targets, retries=Retries(count, 0.1), node_seconds=600)
    settings = Settings(store=root / "store")
    random_kills = RandomKills(
        ray_cluster, root, count, models * len(targets), everywhere, random.Random(seed)
    )
    began = time.monotonic()
    outcomes = build_on_farm(
        root / "models", root / "out", farm, settings, progress=random_kills
    )
    first = time.monotonic() - began
    log = events_of(root)
    began = time.monotonic()
    again = build_on_farm(root / "models", root / "out", farm, settings)
    return {
        "combinations": len(outcomes),
        "published": sum(outcome.published == "published" for outcome in outcomes),
        "killed": random_kills.killed,
        "lost": sum(event["event"] == "lost" for event in log),
        "states": Counter(outcome.state for outcome in outcomes),
        "built_though_in_the_store": random_kills.rebuilt_stored(outcomes),
        "published_before_the_end": random_kills.published_early,
        "half_published": half_published(root / "out"),
        **compared(root, outcomes),
        "seconds": round(first, 1),
        "states_again": Counter(
            (outcome.state, outcome.published) for outcome in again
        ).most_common(),
        "seconds_again": round(time.monotonic() - began, 1),
    }


def compared(root: Path, outcomes: Sequence[Any]) -> dict[str, list[str]]:
    """Build everything on one machine without a store, and name the models whose files or keys
    differ from those of the farm.
    """
    from builder.engine import BuildOptions, parse_capabilities
    from builder.repository import build_repository
    from builder.store import digest
    from tests.farm.test_cluster import read_record, same_model

    keys = {(outcome.model, outcome.target): outcome.key for outcome in outcomes}
    files, requests = [], []
    for name, capability in CAPABILITIES.items():
        options = BuildOptions(compute_capabilities=parse_capabilities([capability]))
        alone = root / "alone" / name
        build_repository(root / "models", alone, options=options)
        for folder in sorted(alone.iterdir()):
            key = digest(
                {"name": folder.name, "request": read_record(folder)["request"]}
            )
            files += (
                []
                if same_model(root / "out" / name / folder.name, folder)
                else [folder.name]
            )
            requests += [] if keys[folder.name, name] == key else [folder.name]
    return {"files_or_plan_keys_differ": files, "keys_differ": requests}


def half_published(out: Path) -> list[str]:
    """The incomplete models of the repositories: staged folders, damaged and missing files."""
    from builder.store import published

    damaged_files = []
    for folder in sorted(out.glob("*/*")):
        if not published.versions(folder):
            damaged_files.append(str(folder))
        damaged_files += [f"{folder}/{name}" for name in published.damaged(folder)]
    return damaged_files


def events_of(root: Path) -> list[dict[str, Any]]:
    """The events of the last run."""
    from tests.farm.test_cluster import events

    return events(root / "out")


class RandomKills:
    """A farm's `progress` that kills a process or a node at `count` random events. It also records
    the keys in the store when an attempt starts, and files that are published before the end.
    """

    def __init__(
        self,
        ray_cluster: Any,
        root: Path,
        count: int,
        tasks: int,
        resources: dict[str, float],
        choose: random.Random,
    ) -> None:
        self.cluster, self.root, self.resources, self.choose = (
            ray_cluster,
            root,
            resources,
            choose,
        )
        # a task that is not killed has about ten events
        self.kill_events = sorted(choose.sample(range(tasks * 9), count))
        self.seen = 0
        self.killed: Counter[str] = Counter()
        self.stored: dict[str, set[str]] = {}
        self.published_early: list[str] = []

    def __call__(self, task: str, phase: str) -> None:
        self.seen += 1
        print(self.seen, task, phase, file=sys.stderr, flush=True)
        if phase.startswith("started"):
            self.stored[task] = keys_in(self.root / "store")
        self.published_early += [str(path) for path in self.root.glob("out/*/*")]
        if not self.kill_events or self.seen < self.kill_events[0]:
            return
        running: dict[str, dict[str, Any]] = {}
        for event in events_of(self.root):
            if event["event"] == "started":
                running[event["task"]] = event
            elif event["event"] in ("lost", "ended"):
                running.pop(event["task"], None)
        if running and self._kill(self.choose.choice([*running.values()])):
            self.kill_events.pop(0)

    def _kill(self, started: dict[str, Any]) -> bool:
        """Kill a process or a node. Returns False if it has ended already."""
        kind = self.choose.choice(["Ray process", "build process", "node"])
        if kind == "node":
            nodes = {node.node_id: node for node in self.cluster.worker_nodes}
            if started["node_id"] not in nodes:
                return False
            self.cluster.remove_node(nodes[started["node_id"]])
            add(self.cluster, self.resources)
        else:
            pid = started["pid"] if kind == "Ray process" else child_of(started["pid"])
            if pid is None:
                return False
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
        self.killed[kind] += 1
        return True

    def rebuilt_stored(self, outcomes: Sequence[Any]) -> list[str]:
        """The models whose last attempt built what the store had when that attempt started."""
        from tests.farm.test_cluster import read_record

        found = []
        for outcome in outcomes:
            name = f"{outcome.model}@{outcome.target}"
            plans = read_record(self.root / "out" / outcome.target / outcome.model)[
                "plans"
            ]
            if not plans:
                raise RuntimeError(f"{name} has no plan, so it cannot be compared")
            has_plans = {plan["key"] for plan in plans.values()} <= self.stored[name]
            is_whole = outcome.key in self.stored[name]
            if (is_whole and outcome.state != "found") or (
                has_plans and outcome.state == "built"
            ):
                found.append(name)
        return found


def keys_in(store: Path) -> set[str]:
    """The keys of the plans and of the published models that the store has."""
    return {path.parent.name for path in store.glob("plans/*/*/record.json")} | {
        path.stem for path in store.glob("published/*/*.json")
    }


def child_of(pid: int) -> int | None:
    """The process of the build that a Ray process has started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def write_models(folder: Path, count: int) -> None:
    """Small models with different weights."""
    import torch

    from tests.cli.conftest import Small, save

    folder.mkdir()
    for number in range(count):
        module = Small()
        with torch.no_grad():
            module.linear.weight.mul_(number + 1)
        save(module, folder / f"model{number:02}.pt")


def sleeping(seconds: float, result_bytes: int) -> Iterator[dict[str, Any]]:
    """The work of a simulated build."""
    yield {"event": "started", "node": "", "node_id": "", "pid": os.getpid()}
    time.sleep(seconds)
    result = {"warnings": "x" * result_bytes}
    yield {
        "event": "ended",
        "ok": True,
        "state": "built",
        "seconds": seconds,
        "result": result,
    }


def timed(
    count: int,
    seconds: float,
    result_bytes: int = 0,
    observe: Callable[[Any, dict[str, Any]], None] = lambda task, event: None,
) -> float:
    """The wall time of `count` tasks on the cluster that is connected."""
    import ray

    from builder.farm import schedule
    from builder.farm.config import Retries

    options = {"num_cpus": 1, "max_retries": 0, "num_returns": "streaming"}
    tasks = [
        schedule.Task(str(number), "all", (seconds, result_bytes), options, {"CPU": 1})
        for number in range(count)
    ]
    began = time.monotonic()
    schedule.Schedule(ray, sleeping, {"all": 100}, observe, Retries()).run(tasks)
    return time.monotonic() - began


def scaling(count: int, seconds: float) -> dict[str, Any]:
    """Simulated builds: wall times, and the efficiency relative to the tasks' own time."""
    import ray

    row: dict[str, Any] = {"tasks": count, "seconds_each": seconds}
    for nodes in (1, 2, 4):
        ray_cluster = cluster(nodes)
        timed(nodes * 2, 0.0)  # the processes of Ray start
        wall = timed(count, seconds)
        row[f"{nodes} nodes"] = {
            "wall_seconds": round(wall, 1),
            "efficiency": round(count * seconds / nodes / wall, 3),
        }
        ray.shutdown()
        ray_cluster.shutdown()
    return row


def memory(count: int, result_bytes: int) -> dict[str, Any]:
    """Run `count` tasks that return results of the size of a build's. Returns the time for each,
    and this process's memory after each tenth.
    """
    import ray

    ray_cluster = cluster(2)
    timed(20, 0.0)
    resident, ended = [mebibytes()], 0

    def observe(task: Any, event: dict[str, Any]) -> None:
        nonlocal ended
        ended += event["event"] == "ended"
        if event["event"] == "ended" and ended % (count // 10) == 0:
            resident.append(mebibytes())

    wall = timed(count, 0.0, result_bytes, observe)
    ray.shutdown()
    ray_cluster.shutdown()
    return {
        "tasks": count,
        "result_bytes": result_bytes,
        "milliseconds_each": round(1000 * wall / count, 1),
        "resident_mib": resident,
    }


def mebibytes() -> float:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


def main() -> None:
    """Run one mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "mode", choices=("kills", "scaling", "memory", "gpus", "stages")
    )
    parser.add_argument("--models", type=int, default=24)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--share", action="store_true", help="record goldens in own tasks"
    )
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--result-bytes", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--builds", type=int, default=8)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--takes", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", default=["resnet50"])
    parser.add_argument("--verify", default="plan")
    options = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "TRT_BUILD_STORE_KEY": KEY}
    from builder.farm import sharing

    if options.mode == "kills":
        if options.share:
            sharing.LEAST_BYTES = 0
        found = kills(options.models, options.kills, options.nodes, options.seed)
    elif options.mode == "scaling":
        found = scaling(options.tasks or 32, options.seconds)
    elif options.mode == "memory":
        found = memory(options.tasks or 2000, options.result_bytes)
    elif options.mode == "stages":
        from tests.farm.stages import stages

        found = {"builds": stages(options.only)}
    else:
        from tests.farm.gpus import Build, gpus

        how = Build(options.precision, options.level, options.verify, options.takes)
        found = gpus(options.builds, options.gpus, how)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
