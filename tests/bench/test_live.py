"""bench against a real server: the clients and Triton count the same requests."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from builder.bench import Load, Options, bench
from builder.bench.measure import Endpoint
from builder.bench.results import LevelResult
from builder.cli import main
from builder.errors import EnvironmentProblem, UsageError

pytestmark = [pytest.mark.live, pytest.mark.slow]


def measure_level(
    repository: Path,
    endpoint: Endpoint,
    model: str,
    load: Load,
    protocol: str = "grpc",
    **more: object,
) -> LevelResult:
    options = Options(loads=[load], protocols=[protocol], seconds=1.0, **more)  # type: ignore[arg-type]
    (result,) = bench(repository, endpoint, [model], options)
    assert result.problem is None
    (level,) = result.levels
    return level


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("load", [Load(3), Load(rate=100.0)], ids=str)
@pytest.mark.parametrize("model", ["scorer", "recognizer"])
def test_client_counts_equal_server_counts(
    repository: Path, endpoint: Endpoint, model: str, load: Load, protocol: str
) -> None:
    level = measure_level(repository, endpoint, model, load, protocol)
    assert level.requests > 20 and level.counts_agree and not level.errors
    assert level.server["success"] == level.requests and level.server["failed"] == 0
    sizes = level.server["batch_sizes"]
    assert sum(sizes.values()) == level.server["executions"] > 0
    assert (
        sum(int(size) * count for size, count in sizes.items()) == level.server["rows"]
    )
    assert level.server["ms"]["compute_infer"] > 0
    assert level.latency_ms["p50"].value > level.server["ms"]["compute_infer"] * 0.5


def test_counts_agree_with_processes_and_shared_memory(
    repository: Path, endpoint: Endpoint
) -> None:
    level = measure_level(repository, endpoint, "scorer", Load(4), processes=2)
    assert level.processes == 2 and level.counts_agree
    level = measure_level(
        repository, endpoint, "scorer", Load(4), "http", memories=["system"]
    )
    assert level.counts_agree and level.requests > 20
    level = measure_level(
        repository, endpoint, "scorer", Load(rate=80.0), memories=["system"]
    )
    assert level.counts_agree and not level.errors


def test_errors_are_counted_by_kind(
    repository: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Triton refuses each request because its shape does not fit the model."""
    np.savez(tmp_path / "r.npz", points=np.zeros((2, 3), np.float32))
    with pytest.raises(
        UsageError, match="the file has other arrays than the model's inputs: points"
    ):
        bench(repository, endpoint, ["scorer"], Options(file=tmp_path / "r.npz"))
    wrong = {"x": np.zeros((2, 9), np.float32), "ids": np.zeros((2, 9), np.int64)}
    np.savez(tmp_path / "r.npz", **wrong)
    (result,) = bench(
        repository, endpoint, ["scorer"], Options(file=tmp_path / "r.npz")
    )
    assert result.problem is not None and "no request got a response" in result.problem


def test_requests_with_several_sizes_are_read_from_a_file(
    repository: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """A closed loop sends them alternately, so half of the requests have each size."""
    file = tmp_path / "r.npz"
    sets = {}
    for number, rows in enumerate((1, 3)):
        with np.load(repository / "scorer" / "goldens" / "p0-opt.npz") as golden:
            for name in ("x", "ids"):
                sets[f"{number}/{name}"] = np.resize(
                    golden[f"input:{name}"], (rows, *golden[f"input:{name}"].shape[1:])
                )
    np.savez(file, **sets)
    level = measure_level(repository, endpoint, "scorer", Load(1), file=file)
    assert level.counts_agree and not level.errors
    assert abs(level.server["rows"] - 2 * level.requests) <= 1
    np.savez(file, **{name: array for name, array in sets.items() if name != "1/ids"})
    with pytest.raises(
        UsageError,
        match="request '1' of the file has other arrays than the model's inputs: x",
    ):
        measure_level(repository, endpoint, "scorer", Load(1), file=file)


def test_unreachable_server_is_reported(repository: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no Triton server responds"):
        bench(repository, Endpoint(None, "127.0.0.1:1"), ["scorer"])


def test_command_saves_and_compares_a_baseline(
    repository: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    words = [
        "bench",
        str(repository),
        "--grpc-url",
        str(endpoint.grpc),
        "--only",
        "scorer",
    ]
    words += ["--concurrency", "2", "--seconds", "1"]
    saved = str(tmp_path / "b.json")
    result = CliRunner().invoke(
        main, [*words, "--baseline", saved], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "req/s" in result.stdout and max(map(len, result.stdout.splitlines())) <= 80
    assert (
        json.loads(Path(saved).read_text())["models"][0]["levels"][0]["concurrency"]
        == 2
    )
    result = CliRunner().invoke(main, [*words, "--compare", saved, "--json"])
    data = json.loads(result.stdout)
    assert {one["figure"] for one in data["compared"]} >= {"throughput", "p50"}
    assert result.exit_code == (3 if "worse" in result.stdout else 0)
    words[words.index("2")] = "1"
    result = CliRunner().invoke(main, [*words, "--compare", saved])
    assert result.exit_code == 2 and "not compared: scorer grpc c1" in result.stderr


@pytest.mark.parametrize("percentile", [50.0, 99.0])
def test_high_latency_limit_is_met_at_some_rate(
    repository: Path, endpoint: Endpoint, percentile: float
) -> None:
    """A trial is extended if it has too few requests for the percentile."""
    options = Options(loads=[Load(1)], seconds=0.5, limit=(percentile, 1000.0))
    (result,) = bench(repository, endpoint, ["scorer"], options)
    assert result.limit is not None and result.limit.rate is not None
    assert result.limit.trials[0]["rate"] == pytest.approx(
        result.levels[0].throughput.value
    )


@pytest.mark.skipif(shutil.which("perf_analyzer") is None, reason="needs perf_analyzer")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_throughput_agrees_with_perf_analyzer(
    repository: Path, endpoint: Endpoint, concurrency: int
) -> None:
    """Both tools send one size to a model whose time does not depend on the load of the host."""
    ratios = []
    for _ in range(3):
        options = Options(
            loads=[Load(concurrency)], goldens=["p0-opt"], seconds=4.0, processes=1
        )
        (result,) = bench(repository, endpoint, ["paused"], options)
        reference = _perf_analyzer(str(endpoint.grpc), repository, concurrency)
        ratios.append(result.levels[0].throughput.value / reference)
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.05), ratios


def _perf_analyzer(url: str, repository: Path, concurrency: int) -> float:
    """Requests per second, each with the rows of the opt golden."""
    with np.load(repository / "paused" / "goldens" / "p0-opt.npz") as read:
        rows = read[read.files[0]].shape[0]
    model = ["perf_analyzer", "-m", "paused", "-u", url, "-i", "grpc", "-b", str(rows)]
    load = ["--concurrency-range", str(concurrency), "--measurement-interval", "3000"]
    load += ["-s", "30", "-r", "20"]
    process = subprocess.run(
        [*model, *load],
        capture_output=True,
        text=True,
        check=True,
    )
    (rate,) = re.findall(
        r"Client:.*?Throughput: ([\d.]+) infer/sec", process.stdout, re.S
    )
    return float(rate) / rows
