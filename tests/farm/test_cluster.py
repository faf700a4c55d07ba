"""A farm of several Ray nodes on this machine: lost processes and nodes, and what is published."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builder.cli import main
from builder.engine import BuildOptions, parse_capabilities
from builder.farm import (
    Farm,
    Outcome,
    Target,
    board,
    build_on_farm,
    cluster,
    schedule,
    sharing,
)
from builder.farm.config import Retries
from builder.repository import Settings, build_repository
from tests.cli.conftest import MANIFEST, save_small
from tests.farm.conftest import TARGETS, Nodes

pytestmark = pytest.mark.slow
FARM = Farm(
    "unused: the test is connected",
    tuple(
        Target(name, resources={name: 1}, build={"compute_capabilities": [capability]})
        for name, capability in TARGETS.items()
    ),
    retries=Retries(5, 0.1),
    node_seconds=60,
)


def events(out: Path) -> list[dict[str, Any]]:
    file = out.with_name(f"{out.name}.farm") / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def read_record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "trt-build.json").read_text())
    return record


def same_model(one: Path, other: Path) -> bool:
    """Whether two folders have the same files and plan keys; plan.json has the build's seconds."""
    files = [
        {
            name: digest
            for name, digest in read_record(folder)["files"].items()
            if name != "1/plan.json"
        }
        for folder in (one, other)
    ]
    keys = [
        {k: v["key"] for k, v in read_record(folder)["plans"].items()}
        for folder in (one, other)
    ]
    return files[0] == files[1] and keys[0] == keys[1]


class Kills:
    """Called as a farm's `progress`: kills the process of one task, and removes the node of
    another, while they are running.
    """

    def __init__(self, nodes: Nodes, out: Path) -> None:
        self.nodes, self.out = nodes, out
        self.completed: list[str] = []

    def __call__(self, task: str, phase: str) -> None:
        if phase.startswith(("started", "finished")):
            return
        if task.endswith("@ada") and not self.completed:
            self.completed.append("killed")
            started = [
                e
                for e in events(self.out)
                if e["task"] == task and e["event"] == "started"
            ]
            os.kill(started[-1]["pid"], signal.SIGKILL)
        elif task.endswith("@ampere") and self.completed == [
            "killed"
        ]:  # last, because it takes seconds
            self.completed.append("removed")
            self.nodes.replace("ampere")


def by_name(outcomes: Sequence[Outcome], model: str) -> list[Outcome]:
    """The outcomes of one model, in the order of the targets' names."""
    return [outcome for outcome in outcomes if outcome.model == model]


def test_farm_with_lost_nodes_publishes_the_same_models(
    nodes: Nodes, tmp_path: Path
) -> None:
    models, out = save_small(tmp_path), tmp_path / "out"
    (models / "bad.pt").write_bytes(b"no model")
    (models / "bad.yaml").write_text(f"{MANIFEST}targets: [ada]\n")
    settings = Settings(store=tmp_path / "store")
    failures = Kills(nodes, out)
    unpublished = build_on_farm(
        models, out, FARM, settings, require_all=True, progress=failures
    )
    for outcome in by_name(unpublished, "small"):
        # "found" if the lost build had ended just before
        assert (
            outcome.state in ("built", "found")
            and not outcome.ok
            and not outcome.published
        )
    assert not [*out.rglob("config.pbtxt")]
    assert sorted(failures.completed) == ["killed", "removed"]
    log = events(out)
    lost = [
        event["task"].rpartition("@")[2] for event in log if event["event"] == "lost"
    ]
    assert set(lost) == set(TARGETS)
    results = build_on_farm(models, out, FARM, settings)
    states = {
        (outcome.state, outcome.published) for outcome in by_name(results, "small")
    }
    assert states == {("found", "published")}
    ada, ampere = by_name(results, "bad")
    assert not ada.ok and ada.error is not None and ada.error.exit_code == 1
    assert ampere.state == "excluded"
    for target, capability in TARGETS.items():
        alone = tmp_path / "alone" / target
        options = BuildOptions(compute_capabilities=parse_capabilities([capability]))
        (single,) = build_repository(models / "small.pt", alone, options=options)
        assert single.ok
        assert same_model(out / target / "small", alone / "small")
        assert [path.name for path in (out / target).iterdir()] == ["small"]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    (models / "bad.pt").unlink()
    (models / "bad.yaml").unlink()
    again = build_on_farm(models, out, FARM, settings)
    assert {(outcome.state, outcome.published) for outcome in again} == {
        ("found", "unchanged")
    }
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_goldens_are_recorded_once_for_all_targets(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A separate task records them before the builds, which read them from the store. One target is
    verified by a tritonserver, which does not change the published files.
    """
    ada, *others = FARM.targets
    farm = replace(FARM, targets=(replace(ada, verify="server"), *others))
    monkeypatch.setattr(sharing, "LEAST_BYTES", 0)
    models, out, store = save_small(tmp_path), tmp_path / "out", tmp_path / "store"
    (models / "bad.pt").write_bytes(b"no model")
    (models / "bad.yaml").write_text(MANIFEST)
    results = build_on_farm(models, out, farm, Settings(store=store))
    assert {
        (outcome.state, outcome.published) for outcome in by_name(results, "small")
    } == {("built", "published")}
    facts = {
        outcome.target: dict(outcome.result or {}).get("verified")
        for outcome in by_name(results, "small")
    }
    assert facts["ampere"] is None and facts["ada"]["by"] == "tritonserver"
    for outcome in by_name(results, "bad"):
        assert (
            not outcome.ok
            and outcome.error is not None
            and outcome.error.exit_code == 1
        )
    log = events(out)
    ends = {event["task"]: event for event in log if event["event"] == "ended"}
    recorded = ends[f"small@{sharing.GROUP}"]
    assert recorded["state"] == "recorded" and not ends[f"bad@{sharing.GROUP}"]["ok"]
    started = {
        event["task"]: event["time"] for event in log if event["event"] == "started"
    }
    assert all(started[f"small@{target}"] >= recorded["time"] for target in TARGETS)
    # a build that records goldens writes their record again
    (record,) = store.glob("goldens/*/*.json")
    assert record.stat().st_mtime <= recorded["time"]
    for target, capability in TARGETS.items():
        options = BuildOptions(compute_capabilities=parse_capabilities([capability]))
        alone = tmp_path / "alone" / target
        build_repository(models / "small.pt", alone, options=options)
        assert same_model(out / target / "small", alone / "small")
    (models / "bad.pt").unlink()
    (models / "bad.yaml").unlink()
    build_on_farm(models, out, farm, Settings(store=store))
    assert {event["task"] for event in events(out)} == {
        f"small@{target}" for target in TARGETS
    }


def sleep(seconds: float, fails: int = 0, path: str = "") -> Iterator[dict[str, Any]]:
    """The task function of the tests; its process ends in its first `fails` attempts."""
    yield {"event": "started", "node": "here", "node_id": "", "pid": os.getpid()}
    if path:
        with open(path, "a") as stream:
            stream.write("x")
        if Path(path).stat().st_size <= fails:
            os._exit(1)
    time.sleep(seconds)
    yield {"event": "ended", "ok": True, "state": "built", "seconds": seconds}


def task(name: str, *arguments: Any, target: str = "ada") -> schedule.Task:
    options = {"num_cpus": 1, "resources": {target: 1}, "max_retries": 0}
    options["num_returns"] = "streaming"
    return schedule.Task(name, target, arguments, options, {"CPU": 1, target: 1})


def scheduled(tasks: Sequence[schedule.Task], **more: Any) -> list[tuple[str, str]]:
    """Run the tasks; the events as (task, event)."""
    import ray

    observed: list[tuple[str, str]] = []
    settings: dict[str, Any] = {
        "retries": Retries(1, 0.1),
        "node_seconds": 60.0,
        **more,
    }
    groups = {item.group: 10 for item in tasks}
    schedule.Schedule(
        ray,
        sleep,
        groups,
        lambda item, event: observed.append((item.name, event["event"])),
        **settings,
    ).run(tasks)
    return observed


def test_lost_task_is_retried_up_to_the_limit(nodes: Nodes, tmp_path: Path) -> None:
    good, bad = (
        task("good", 0.0, 1, str(tmp_path / "g")),
        task("bad", 0.0, 9, str(tmp_path / "b")),
    )
    observed = Counter(scheduled([good, bad]))
    assert good.ended is not None and good.ended["ok"] and good.attempts == 2
    assert (
        bad.ended is not None
        and bad.ended["error"]["exit_code"] == 4
        and bad.attempts == 2
    )
    assert "lost 2 times" in bad.ended["error"]["message"]
    assert observed["good", "lost"] == observed["bad", "lost"] == 1


def test_image_of_a_task_is_passed_to_ray(nodes: Nodes) -> None:
    """Ray runs podman, which fails because there is no such image."""
    target = Target("ada", resources={"ada": 1}, image="localhost:1/no-such/image:1")
    options = cluster.ray_options(target, None)
    contained = schedule.Task(
        "contained", "ada", (0.0,), options, cluster.demand(target)
    )
    observed = scheduled([contained], retries=Retries(1, 0.1))
    assert observed[0] == ("contained", "lost") and contained.attempts == 2
    assert contained.ended is not None and contained.ended["error"]["exit_code"] == 4
    message = contained.ended["error"]["message"]
    assert "RuntimeEnvSetupError" in message and "podman" in message


def test_task_waits_for_its_predecessor(nodes: Nodes, tmp_path: Path) -> None:
    """This also holds if the predecessor fails, or is later in the queue."""
    first, bad = (
        task("first", 0.2),
        task("bad", 0.0, 9, str(tmp_path / "b"), target="ampere"),
    )
    second, third, other = task("second", 0.0), task("third", 0.0), task("other", 0.0)
    second.after, third.after = "first", "bad"
    observed = scheduled([second, third, other, first, bad])
    assert all(
        item.ended and item.ended["ok"] for item in (first, second, third, other)
    )
    assert observed.index(("first", "ended")) < observed.index(("second", "started"))
    assert bad.ended is not None and not bad.ended["ok"]
    assert observed.index(("bad", "ended")) < observed.index(("third", "started"))
    assert observed.index(("other", "started")) < observed.index(("second", "started"))


def test_target_without_nodes_fails_alone(nodes: Nodes) -> None:
    unplaced, good = task("stuck", 0.0, target="none"), task("good", 0.0)
    observed = scheduled([unplaced, good], node_seconds=1.0)
    assert good.ended is not None and good.ended["ok"]
    assert (
        unplaced.ended is not None
        and "no node of the cluster has" in unplaced.ended["error"]["message"]
    )
    assert ("stuck", "waiting") in observed


def test_canceled_run_stops_its_tasks(nodes: Nodes) -> None:
    """The test cancels through the actor, as `trt-build farm cancel` does."""
    import ray

    posted = board.Posted(ray, "/somewhere/out", lambda: {"waiting": 1})
    canceled: list[list[str]] = []

    def is_canceled() -> bool:
        if not canceled and any(name.startswith("long") for name, _ in observed):
            ((about, _),) = board.runs(ray)
            assert (
                about["repository"] == "/somewhere/out" and about["pid"] == os.getpid()
            )
            canceled.append(board.cancel(ray))
        return posted.canceled()

    observed: list[tuple[str, str]] = []
    tasks = [task(f"long{number}", 600.0) for number in range(2)]
    run = schedule.Schedule(
        ray,
        sleep,
        {"ada": 10},
        lambda item, event: observed.append((item.name, event["event"])),
        Retries(),
        canceled=is_canceled,
    )
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run.run(tasks)
    assert canceled == [[posted.name]] and not run.running
    assert time.monotonic() - began < 300
    # the node is free again
    after = task("after", 0.0)
    scheduled([after])
    assert after.ended is not None and after.ended["ok"]


def test_status_lists_targets_and_nodes(nodes: Nodes, tmp_path: Path) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text(
        f"address: {nodes.cluster.address}\n"
        "targets:\n  ada: {resources: {ada: 1}}\n  h100: {resources: {H100: 1}}\n"
    )
    completed = CliRunner().invoke(main, ["farm", "status", str(file), "--json"])
    assert completed.exit_code == 0, completed.output
    assert (
        json.loads(completed.stdout)["dashboard"] == ""
    )  # the cluster of the tests has none
    counts = {
        target["target"]: target["nodes"]
        for target in json.loads(completed.stdout)["targets"]
    }
    assert counts == {"ada": 1, "h100": 0}
