"""Steady state, intervals, the search for a rate, and the comparison with a baseline."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from builder.bench import baseline, client, results
from builder.bench.job import Load, Samples, requests
from builder.bench.measure import SEARCH_STEPS, search_rate
from builder.errors import UsageError
from builder.parity.served import PublishedModel

SECONDS = 10.0


def samples(latency: np.ndarray[Any, Any], late: float = 0.0) -> Samples:
    """Requests at even distances over SECONDS with these latencies in seconds."""
    intended = np.linspace(0, SECONDS, latency.size, endpoint=False)
    return Samples(
        intended,
        intended + late,
        intended + latency,
        np.ones(latency.size, np.int64),
        {},
        {},
        0,
        0.1,
        SECONDS,
    )


def test_warm_up_is_excluded_and_the_rest_is_steady() -> None:
    latency = np.full(4000, 0.010) + np.random.default_rng(0).normal(0, 0.0005, 4000)
    latency[:600] += 0.05  # the first 1.5 s
    summary = results.summarize([samples(latency)], SECONDS)
    assert summary["warm_up_seconds"] == 1.5 and summary["steady"]
    assert summary["latency_ms"]["p99"].value < 12
    assert summary["throughput"].value == pytest.approx(400, rel=0.02)


def test_growing_latency_is_not_steady() -> None:
    summary = results.summarize([samples(np.linspace(0.001, 1.0, 4000))], SECONDS)
    assert not summary["steady"]


def test_percentiles_need_enough_requests() -> None:
    assert set(
        results.summarize([samples(np.full(500, 0.01))], SECONDS)["latency_ms"]
    ) == {
        "p50",
        "p90",
        "p95",
    }
    many = results.summarize([samples(np.full(20000, 0.01))], SECONDS)["latency_ms"]
    assert set(many) == {"p50", "p90", "p95", "p99", "p99.9"}


def test_intervals_contain_the_true_percentile() -> None:
    """The test has 40 samples of one distribution. A 95 % interval misses two on average."""
    random = np.random.default_rng(1)
    true, hits = np.log(10) * 5, 0
    for _ in range(40):
        summary = results.summarize([samples(random.exponential(0.005, 4000))], SECONDS)
        p90 = summary["latency_ms"]["p90"]
        hits += p90.low <= true <= p90.high
    assert hits >= 33


def test_latency_is_measured_from_the_intended_time() -> None:
    summary = results.summarize([samples(np.full(1000, 0.25), late=0.2)], SECONDS)
    assert summary["latency_ms"]["p50"].value == pytest.approx(250)
    assert summary["send_delay_ms"] == pytest.approx(200)
    assert (
        results.client_limit(0.1, 1, 200.0, 250.0, 4)
        == "requests were sent up to 200.0 ms late"
    )


def test_busy_client_is_reported_as_the_limit() -> None:
    assert "96 % of a core each; use more" in (
        results.client_limit(0.96, 1, 0.0, 5.0, 4) or ""
    )
    assert results.client_limit(0.5, 1, 0.0, 5.0, 4) is None


@pytest.mark.parametrize("capacity", [37.0, 400.0, 2500.0])
def test_highest_rate_is_found_within_the_precision(capacity: float) -> None:
    tried: list[float] = []

    def meets_limit(rate: float) -> bool:
        tried.append(rate)
        return rate <= capacity

    highest_rate = search_rate(meets_limit, 400.0)
    assert highest_rate is not None and 0.94 * capacity <= highest_rate <= capacity
    assert len(tried) <= SEARCH_STEPS


def test_highest_rate_near_the_least_measurable_rate_is_found() -> None:
    rate = search_rate(lambda rate: rate <= 280, 300.0, least=216.7)
    assert rate is not None and 0.94 * 280 <= rate <= 280


def test_no_rate_is_found_if_every_rate_fails() -> None:
    assert search_rate(lambda rate: False, 100.0) is None
    holds = Mock(return_value=False)
    assert search_rate(holds, 100.0, least=30.0) is None
    assert [call.args[0] for call in holds.call_args_list] == [100.0, 50.0, 30.0]


def test_shares_of_a_load_sum_to_the_load() -> None:
    shares = [Load(5).share(number, 3).concurrency for number in range(3)]
    assert shares == [2, 2, 1]
    assert Load(rate=90.0).share(1, 3).rate == 30.0


def test_errors_are_classified() -> None:
    error = InferenceServerException("busy", status="StatusCode.UNAVAILABLE")
    assert client.kind_of(error) == "UNAVAILABLE"
    assert client.kind_of(asyncio.TimeoutError()) == "timeout"
    assert client.kind_of(ConnectionResetError()) == "ConnectionResetError"


def document(
    throughput: float, p99: float, spread: float = 0.02
) -> list[dict[str, Any]]:
    def estimate(value: float) -> dict[str, float]:
        return {
            "value": value,
            "low": value * (1 - spread),
            "high": value * (1 + spread),
        }

    level = {
        "load": "c4",
        "throughput": estimate(throughput),
        "latency_ms": {"p99": estimate(p99)},
    }
    return [{"name": "net", "protocol": "grpc", "memory": "none", "levels": [level]}]


def test_changes_within_noise_are_no_difference() -> None:
    comparison = baseline.compare(document(100, 10), document(103, 9.8))
    assert [change.verdict for change in comparison] == [
        "no difference",
        "no difference",
    ]
    noisy = baseline.compare(document(100, 10, 0.2), document(130, 7, 0.2))
    assert {change.verdict for change in noisy} == {"no difference"}


def test_levels_of_one_run_only_are_named() -> None:
    (other,) = document(100, 10)
    assert baseline.unmatched([other], [other]) == []
    alone = [{**other, "protocol": "http", "memory": "system"}]
    assert baseline.compare([other], alone) == []
    load = other["levels"][0]["load"]
    assert baseline.unmatched([other], alone) == [
        f"net grpc {load}",
        f"net http system {load}",
    ]


def test_real_changes_are_better_or_worse() -> None:
    comparison = baseline.compare(document(100, 10), document(150, 20))
    assert {change.figure: change.verdict for change in comparison} == {
        "throughput": "better",
        "p99": "worse",
    }
    assert comparison[0].share == pytest.approx(0.5)


@pytest.mark.parametrize("text", ['{"models": [{"levels": [{}]}]}', "[" * 100000])
def test_invalid_baseline_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(UsageError, match="not a file that trt-build bench wrote"):
        baseline.read(tmp_path / "b.json")


def test_requests_that_declare_more_than_they_have_are_refused(tmp_path: Path) -> None:
    """The declared array would fill the memory."""
    file = tmp_path / "requests.npz"
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    model = PublishedModel("net", Mock(input=()), {}, ())
    with pytest.raises(UsageError, match="is longer than its file"):
        requests(model, file)
