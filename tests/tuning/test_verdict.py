"""The configuration that tune chooses from fixed measurements, without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import manifest
from builder.bench import LevelResult, Load
from builder.cli.tune import _change
from builder.repository import Settings
from builder.tuning import Goal, Tuned, TuneOptions
from builder.tuning.space import Configuration, Dimension, Space
from builder.tuning.tune import BETTER, SAME, UNMET, _Run
from tests.report.repositories import level

DEFAULT = {"instances": 1, "max_batch": 8, "queue_delay_us": 0, "runtime": "plan"}
Measurement = Callable[[Configuration, int], tuple[float, float | None]]


class FakeRun(_Run):
    """A run whose measurements come from a function of the configuration and the number of earlier
    measurements. It returns requests per second and p50 in milliseconds, or None for too few
    requests.
    """

    def __init__(
        self, spec: manifest.ModelSpec, options: TuneOptions, measure: Measurement
    ) -> None:
        super().__init__(spec, options, Settings(), Path("nowhere"), None, None)
        values = {"instances": (1, 2, 4), "runtime": ("plan", "torch")}
        self.space = Space(DEFAULT, tuple(Dimension(*item) for item in values.items()))
        self.sequences = ()
        self.measure, self.times = measure, dict[Any, int]()

    def _publish(self, configuration: Configuration) -> None:
        self.served = configuration

    def _levels(self) -> Iterator[LevelResult]:
        key = tuple(self.served.values())
        self.times[key] = self.times.get(key, -1) + 1
        rate, latency = self.measure(self.served, self.times[key])
        measured_level = level(1, rate, latency or 1.0)
        yield measured_level if latency else replace(measured_level, latency_ms={})


def tuned(folder: Path, result: Measurement, **options: Any) -> Tuned:
    return run(folder, result, **options).tuned()


def run(folder: Path, result: Measurement, **options: Any) -> FakeRun:
    (folder / "net.pt").touch()
    (folder / "net.yaml").write_text(
        "inputs: [{name: x, dtype: float32, shape: [batch, 4]}]\n"
        "dims: {batch: {min: 1, opt: 4, max: 8}}\n"
    )
    (spec,) = manifest.load(folder)
    return FakeRun(spec, TuneOptions(**{"goal": Goal(), **options}), result)


def scale(configuration: Configuration, plan: float, torch: float) -> float:
    return (torch if configuration["runtime"] == "torch" else plan) * int(
        configuration["instances"]
    )


def test_best_is_chosen_by_repeated_measurements(tmp_path: Path) -> None:
    """Four instances are best in the first measurement; two are best in repeated measurements."""

    def measure_one(configuration: Configuration, time: int) -> tuple[float, float]:
        count = int(configuration["instances"])
        if configuration["runtime"] == "torch":
            return 10.0, 1.0
        return {1: 100.0, 2: 150.0, 4: 200.0 if not time else 120.0}[count], 1.0

    outcome = tuned(tmp_path, measure_one)
    assert outcome.verdict == BETTER and outcome.best == {**DEFAULT, "instances": 2}
    assert (outcome.before, outcome.after, outcome.gain) == (100.0, 150.0, 1.5)
    assert outcome.changes == {"instances": 2} and len(outcome.trials) == 6
    assert outcome.torch_faster is None


@pytest.mark.parametrize(
    "later", [[104.0, 104.0], [99.0, 150.0]], ids=["small", "noisy"]
)
def test_noise_does_not_change_the_manifest(later: list[float], tmp_path: Path) -> None:
    def measure_one(configuration: Configuration, time: int) -> tuple[float, float]:
        if configuration["instances"] == 2 and configuration["runtime"] == "plan":
            return [200.0, *later][time], 1.0
        return 100.0 if configuration == DEFAULT else 50.0, 1.0

    outcome = tuned(tmp_path, measure_one)
    assert outcome.verdict == SAME and outcome.best == DEFAULT and outcome.changes == {}


def test_torch_is_chosen_only_if_allowed(tmp_path: Path) -> None:
    def measure_one(configuration: Configuration, time: int) -> tuple[float, float]:
        return scale(configuration, 100.0, 130.0), 1.0

    refused = tuned(tmp_path, measure_one)
    assert (
        refused.best == {**DEFAULT, "instances": 4} and refused.torch_faster is not None
    )
    assert "torch is 1.30 times as good as the plan" in refused.torch_faster
    allowed = tuned(tmp_path, measure_one, allow_torch=True)
    assert allowed.best == {**DEFAULT, "instances": 4, "runtime": "torch"}
    assert allowed.changes == {"instances": 4, "fallback": {"ops": ["aten::*"]}}


def test_latency_limit_precedes_throughput(tmp_path: Path) -> None:
    def measure_one(configuration: Configuration, time: int) -> tuple[float, float]:
        count = int(configuration["instances"])
        return scale(configuration, 100.0, 1.0), {1: 12.0, 2: 9.0, 4: 30.0}[count]

    outcome = tuned(tmp_path, measure_one, goal=Goal(50.0, 10.0))
    assert outcome.verdict == BETTER and outcome.best["instances"] == 2
    assert outcome.before is None and outcome.after == 200.0 and outcome.gain is None
    four = next(
        t for t in outcome.trials if t.configuration == {**DEFAULT, "instances": 4}
    )
    assert four.score is None and four.problem == "p50 is 30.00 ms at c1"
    none = tuned(tmp_path, measure_one, goal=Goal(50.0, 1.0))
    assert none.verdict == UNMET and none.best == DEFAULT and not none.changes


def test_latency_decides_at_a_fixed_rate(tmp_path: Path) -> None:
    def measure_one(configuration: Configuration, time: int) -> tuple[float, float]:
        count = int(configuration["instances"])
        slower = 5.0 if configuration["runtime"] == "torch" else 0.0
        return 50.0, {1: 8.0, 2: 4.0, 4: 6.0}[count] + slower

    outcome = tuned(tmp_path, measure_one, goal=Goal(50.0, rate=50.0))
    assert outcome.verdict == BETTER and outcome.best["instances"] == 2
    assert (outcome.before, outcome.after, outcome.gain) == (8.0, 4.0, 2.0)


@pytest.mark.parametrize(
    ("default", "verdict"),
    [
        ([8.0, None], SAME),  # an unknown latency is not above the limit
        ([8.0, 30.0], SAME),  # the default met the limit once with a higher rate
        ([30.0, 30.0], BETTER),
    ],
    ids=["unknown", "sometimes", "never"],
)
def test_best_must_beat_the_default_in_each_measurement(
    default: list[float | None], verdict: str, tmp_path: Path
) -> None:
    def measure_one(
        configuration: Configuration, time: int
    ) -> tuple[float, float | None]:
        if configuration == DEFAULT:
            return 300.0, [8.0, *default][time]
        better = configuration == {**DEFAULT, "instances": 2}
        return 150.0, 8.0 if better else 30.0

    outcome = tuned(tmp_path, measure_one, goal=Goal(50.0, 10.0))
    assert outcome.verdict == verdict
    assert outcome.changes == ({"instances": 2} if verdict == BETTER else {})
    never = "does not keep the limit" in _change(outcome)
    assert never == (default == [30.0, 30.0])
    assert never or "in some measurements only" in _change(outcome)


@pytest.mark.parametrize(
    ("speed", "limits"),
    [
        ([2000.0], [1.0]),
        ([800.0, 400.0, 400.0], [1.0, 2.0, 4.0]),  # the first rate was too high
        ([10.0], [1.0]),  # even a minute has too few requests
    ],
)
def test_level_is_extended_until_the_percentile_is_known(
    speed: list[float], limits: list[float], tmp_path: Path
) -> None:
    intervals: list[float] = []

    def measure(load: Load, seconds: float) -> LevelResult:
        rate = speed[len(intervals)]
        intervals.append(seconds)
        count = int(rate * seconds)
        measured_level = replace(level(1, rate, 1.0), requests=count)
        return (
            measured_level if count >= 1000 else replace(measured_level, latency_ms={})
        )

    measured = run(
        tmp_path,
        lambda configuration, time: (1.0, 1.0),
        goal=Goal(99.0, 5.0),
        seconds=1.0,
    )
    level_result = measured._enough(measure, Load(1))
    assert intervals == limits and (level_result.requests >= 1000) == (speed != [10.0])
