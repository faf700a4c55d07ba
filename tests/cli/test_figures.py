"""The results of `bench --record` and `verify --record` belong to one version of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builder import deployment
from builder.bench import ModelBench
from builder.cli import main, push, repo
from builder.report import gather, records
from builder.store import buckets
from builder.triton import history, publish, versions
from tests.report.repositories import level
from tests.triton.artifacts import pair
from tests.triton.test_history import net

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    def invoke(*words: object) -> Result:
        return CliRunner().invoke(
            main, [str(word) for word in words], catch_exceptions=False
        )

    return invoke


def bench_entry(rate: float, name: str = "scorer") -> dict[str, Any]:
    """An entry of bench.json with two loads, of which the second has the higher rate."""
    levels = (level(1, rate / 2, 2.0), level(4, rate, 3.0))
    return asdict(ModelBench(name, "grpc", "none", ("p0-min",), levels))


def record_rate(repository: Path, rate: float, name: str = "scorer") -> None:
    records.keep(repository, records.BENCH, {"models": [bench_entry(rate, name)]})


def rates(run: Run, repository: Path) -> dict[int, list[float]]:
    (record,) = json.loads(run("history", repository, "--json").stdout)["models"]
    return {
        one["number"]: [figure["requests_per_second"] for figure in one["bench"]]
        for one in record["versions"]
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three versions, each with a recorded result."""
    folder = tmp_path / "repository"
    for number in (1, 2, 3):
        publish(net(number), folder)
        record_rate(folder, number * 100.0)
    return folder


def test_each_version_keeps_its_results(run: Run, repository: Path) -> None:
    assert rates(run, repository) == {3: [300.0], 2: [200.0], 1: [100.0]}
    record_rate(repository, 350.0)
    assert rates(run, repository) == {3: [350.0], 2: [200.0], 1: [100.0]}
    assert "350.0" in (shown := run("history", repository).stdout) and "p99 ms" in shown
    (model,) = gather(repository)["models"]
    assert [one["levels"][1]["throughput"]["value"] for one in model["bench"]] == [
        350.0
    ]
    assert run("rollback", repository, "scorer", "--to", 1).exit_code == 0
    assert rates(run, repository) == {3: [350.0], 2: [200.0], 1: [100.0]}
    (model,) = gather(repository)["models"]
    assert [one["levels"][1]["throughput"]["value"] for one in model["bench"]] == [
        100.0
    ]
    assert model["bench"][0]["current"]


def test_promotion_copies_results_and_keeps_newer_ones(
    run: Run, repository: Path, tmp_path: Path
) -> None:
    live = tmp_path / "live"
    publish(net(9), live)
    record_rate(live, 900.0)
    assert run("promote", repository, live).exit_code == 0
    assert rates(run, live) == {2: [300.0], 1: [900.0]}
    file = records.path(live, records.BENCH)
    document = json.loads(file.read_text())
    for one in document["models"]:
        one |= {"recorded_at": "2999-01-01T00:00:00+00:00"}
    document["models"][1]["levels"][1]["throughput"]["value"] = 333.0
    file.write_text(json.dumps(document))
    assert run("promote", repository, live).exit_code == 0
    assert rates(run, live) == {2: [333.0], 1: [900.0]}


def test_push_copies_results_of_the_models(
    run: Run, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tmp_path / "live"

    def fake_push(
        source: Path, target: deployment.Target, *_: Any, **__: Any
    ) -> list[Any]:
        history.promote(source / "scorer", target.repository)
        return [deployment.Pushed("scorer", "pushed", 1)]

    monkeypatch.setattr(deployment, "push", fake_push)
    monkeypatch.setattr(push, "_prepare", lambda *_: None)
    result = run("push", repository, "--to", live, "--url", "localhost:1")
    assert result.exit_code == 0, result.output
    assert rates(run, live) == {1: [300.0]}
    assert records.path(repository, records.BENCH).is_file()


def test_results_of_removed_versions_are_removed(run: Run, repository: Path) -> None:
    record_rate(repository, 5.0, "another")
    assert run("prune", repository, "--keep", 2).exit_code == 0
    assert rates(run, repository) == {3: [300.0], 2: [200.0]}
    models = records.models(repository, records.BENCH)
    assert len(models["scorer"]) == 2 and len(models["another"]) == 1
    publish(net(4), repository)
    record_rate(repository, 400.0)
    publish(net(5), repository)
    record_rate(repository, 500.0)  # version 2 is removed
    assert rates(run, repository) == {5: [500.0], 4: [400.0], 3: [300.0]}
    assert len(records.models(repository, records.BENCH)["scorer"]) == 3


def test_build_removes_results_of_the_versions_that_it_removes(
    repository: Path,
) -> None:
    publish(net(4), repository)  # version 1 is removed
    result: Any = SimpleNamespace(name="scorer", ok=True)
    repo._update_records(repository, {}, [result], record=False)
    record = records.models(repository, records.BENCH)["scorer"]
    rates = [one["levels"][1]["throughput"]["value"] for one in record]
    assert rates == [200.0, 300.0]


def test_promote_and_prune_work_with_unreadable_results(
    run: Run, repository: Path, tmp_path: Path
) -> None:
    records.path(repository, records.BENCH).write_text("[]")
    for words in (
        ("promote", repository, tmp_path / "live"),
        ("prune", repository, "--keep", 1),
    ):
        result = run(*words)
        assert result.exit_code == 0 and "bench.json" in result.stderr, result.output
    assert [entry.number for entry in history.history(repository / "scorer")] == [3]
    shown = run("history", repository)
    assert shown.exit_code == 0 and "no figures are shown" in shown.stderr


def test_identity_does_not_depend_on_number_repository_or_policy(
    repository: Path, tmp_path: Path
) -> None:
    folder, other = repository / "scorer", tmp_path / "other"
    by_number = {entry.number: entry.identity for entry in history.history(folder)}
    assert len(set(by_number.values())) == 3
    alone = publish(net(3, versions.Versions()), other)
    assert records.identity(alone) == by_number[3]
    publish(pair(1), other)
    assert records.identity(other / "pair") is not None


def test_bucket_keeps_results_beside_the_repository(repository: Path) -> None:
    url = f"memory://figures-{id(repository)}/repository"
    with buckets.opened(url, writes=True) as mirror:
        publish(net(1), mirror.path)
        record_rate(mirror.path, 100.0)
        mirror.publish()
    with buckets.opened(url, writes=True) as mirror:
        publish(net(2), mirror.path)
        record_rate(mirror.path, 200.0)
        mirror.publish()
    with buckets.opened(url) as mirror:
        figures = records.figures(mirror.path, "scorer")
        numbers = {
            entry.identity: entry.number
            for entry in history.history(mirror.path / "scorer")
        }
    assert {
        numbers[one]: facts[0]["requests_per_second"] for one, facts in figures.items()
    } == {
        1: 100.0,
        2: 200.0,
    }


@pytest.mark.live
@pytest.mark.slow
def test_history_shows_results_of_bench(run: Run, tmp_path: Path) -> None:
    publish(net(1), tmp_path / "repository")
    result = run(
        "bench", tmp_path / "repository", "--serve", "--record", "--seconds", 2
    )
    assert result.exit_code == 0, result.output
    (record,) = json.loads(run("history", tmp_path / "repository", "--json").stdout)[
        "models"
    ]
    (version,) = record["versions"]
    assert version["bench"]
    assert all(one["requests_per_second"] > 0 for one in version["bench"])
    assert all(one["host"]["cores"] and one["recorded_at"] for one in version["bench"])
