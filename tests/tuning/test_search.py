"""The search space of tune, its first trials, and the number of trials to the optimum."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from builder import manifest
from builder.manifest import editing
from builder.tuning import Trial, Values, queueing
from builder.tuning.search import search
from builder.tuning.space import (
    Configuration,
    Dimension,
    Facts,
    Space,
    changes,
    key,
    space,
)

MANIFEST = """\
# a model
inputs: [{name: x, dtype: float32, shape: [batch, 4]}]
dims:
  batch: {min: 1, opt: 8, max: 16}  # rows
batching: {max_queue_delay_us: 100}
"""
PLAN = Facts(16, True, 3, True, True)
CPU = Facts(16, True, 1, False, False)
MEASURED = Path(__file__).with_name("measured.json")
"""Written by `python -m tests.tuning`: every configuration of two models, under load."""


@pytest.fixture
def spec(tmp_path: Path) -> manifest.ModelSpec:
    (tmp_path / "net.pt").touch()
    (tmp_path / "net.yaml").write_text(MANIFEST)
    (loaded,) = manifest.load(tmp_path)
    return loaded


def values(found: Space) -> dict[str, tuple[Any, ...]]:
    return {dimension.name: dimension.values for dimension in found.dimensions}


def test_search_space_depends_on_model_and_host(spec: manifest.ModelSpec) -> None:
    cpu = space(spec, CPU, Values(), cores=2, limit_ms=5.0)
    assert values(cpu) == {
        "instances": (1, 2),
        "queue_delay_us": (0, 100, 200, 1000),
        "preferred": ("none", "half"),
    }
    assert set(cpu.fixed) == {"max_batch", "profiles", "graphs", "layout", "runtime"}
    assert len(cpu) == 2 * (1 + 3 * 2), (
        "without a delay, preferred sizes change nothing"
    )
    gpu = space(spec, PLAN, Values(max_batch=(4, 32)), cores=16, limit_ms=None)
    assert values(gpu)["max_batch"] == (4, 16, 32)
    assert {"profiles", "graphs", "layout", "runtime"} <= set(values(gpu))
    refused = replace(PLAN, no_graphs="they give wrong numbers")
    without = space(spec, refused, Values(graphs=("full",)), cores=16, limit_ms=None)
    assert (
        "graphs" not in values(without) and "wrong numbers" in without.fixed["graphs"]
    )
    alone = space(spec, replace(CPU, dynamic=False), Values(), cores=2, limit_ms=None)
    assert set(values(alone)) == {"instances"}
    pinned = replace(spec, triton={"instance_group": [{"count": 2}]})
    assert "instances" not in values(
        space(pinned, CPU, Values(), cores=2, limit_ms=None)
    )


@pytest.mark.parametrize(
    ("chosen", "field", "expected"),
    [
        ({"instances": 3}, "instances", 3),
        ({"max_batch": 4}, "profiles", ({"batch": (1, 4, 4)},)),
        ({"max_batch": 32}, "profiles", ({"batch": (1, 8, 32)},)),
        ({"queue_delay_us": 0}, "batching.max_queue_delay_us", 0),
        ({"preferred": "half"}, "batching.preferred", (8,)),
        ({"preferred": "half", "max_batch": 4}, "batching.preferred", (2,)),
        ({"graphs": "full"}, "batching.graphs", (16,)),
        ({"profiles": "static"}, "batch_sizes", (1, 8, 16)),
        ({"layout": "fused"}, "layout", "fused"),
        ({"runtime": "torch"}, "fallback.ops", ("aten::*",)),
    ],
    ids=str,
)
def test_configurations_become_manifest_edits(
    spec: manifest.ModelSpec, chosen: dict[str, Any], field: str, expected: Any
) -> None:
    """The measured variant equals the edited manifest, and comments can be replaced."""
    search_space = space(spec, PLAN, Values(), cores=2, limit_ms=None)
    configuration = {**search_space.default, **chosen}
    edits = changes(spec, search_space.default, configuration)
    changed = manifest.variant(spec, edits)
    assert attrgetter(field)(changed) == expected
    assert spec.manifest is not None and spec.manifest.read_text() == MANIFEST
    assert editing.edit(spec.manifest, edits, ["a", "b"])
    (written,) = manifest.load(spec.manifest.parent)
    assert written == changed
    text = spec.manifest.read_text()
    assert (
        text.endswith("# tune: a\n# tune: b\n")
        and "# a model" in text
        and "# rows" in text
    )
    editing.edit(spec.manifest, {}, ["c"])
    assert spec.manifest.read_text().count("# tune: ") == 1


def test_default_configuration_needs_no_edits(spec: manifest.ModelSpec) -> None:
    search_space = space(spec, PLAN, Values(), cores=2, limit_ms=None)
    assert changes(spec, search_space.default, search_space.default) == {}
    assert key(search_space.default) in {key(one) for one in search_space}


def test_queueing_model_matches_known_formulas() -> None:
    """M/D/1: half the wait of M/M/1, which is load / (1 - load) service times."""
    service = queueing.Service(0.0, 0.01, slots=4)
    one = {"instances": 1, "max_batch": 1, "queue_delay_us": 0}
    for load in (0.1, 0.5, 0.9):
        expected = 0.01 * (1 + load / (1 - load) / 2)
        assert queueing.latency(service, one, load / 0.01) == pytest.approx(expected)
    assert queueing.latency(service, one, 101.0) == math.inf
    assert queueing.erlang_c(1, 0.5) == pytest.approx(0.5)
    assert queueing.erlang_c(2, 1.0) == pytest.approx(1 / 3), "a textbook value"
    assert queueing.capacity(service, one, None) == pytest.approx(100.0, rel=1e-3)
    assert queueing.capacity(service, {**one, "instances": 4}, None) == pytest.approx(
        400, rel=1e-3
    )
    assert queueing.capacity(service, {**one, "instances": 9}, None) == pytest.approx(
        400, rel=1e-3
    )


def test_queueing_model_fits_batches() -> None:
    points = [(rows, 0.002 + 0.001 * rows, 10) for rows in (1, 4, 16)]
    service = queueing.fitted(points, slots=2)
    assert (service.fixed, service.row) == pytest.approx((0.002, 0.001))
    large, small = (
        {"instances": 1, "max_batch": most, "queue_delay_us": 0} for most in (16, 1)
    )
    assert queueing.capacity(service, large, None) == pytest.approx(
        16 / 0.018, rel=1e-3
    )
    assert queueing.capacity(service, small, None) == pytest.approx(1 / 0.003, rel=1e-3)
    assert queueing.capacity(service, large, 0.006) < queueing.capacity(
        service, large, None
    )
    single = queueing.fitted([(4, 0.02, 3)], slots=2)
    assert single.seconds(8) == pytest.approx(0.04)


def measure_from_table(
    table: dict[Any, float | None],
) -> tuple[Any, list[Configuration]]:
    measured: list[Configuration] = []

    def measure(configuration: Configuration, proposed_by: str) -> Trial:
        measured.append(configuration)
        score = table[key(configuration)]
        return Trial(configuration, proposed_by, score, None if score else "too slow")

    return measure, measured


def test_configurations_are_measured_once(spec: manifest.ModelSpec) -> None:
    search_space = space(spec, CPU, Values(), cores=2, limit_ms=5.0)
    table = {key(one): float(number) for number, one in enumerate(search_space)}
    measure, measured = measure_from_table({**table, key(search_space.default): None})
    trials = search(
        search_space, measure, trials=1000, first=lambda default: [search_space.default]
    )
    assert (
        len(measured)
        == len(trials)
        == len(search_space)
        == len(set(map(key, measured)))
    )
    assert measured[0] == search_space.default and trials[0].problem == "too slow"
    few, measured = measure_from_table(table)
    assert len(search(search_space, few, trials=5)) == len(measured) == 5


def test_search_finds_95_percent_of_the_optimum() -> None:
    """The search has a fifth of the trials, recorded measurements and ten seeds."""
    for model in json.loads(MEASURED.read_text())["models"]:
        names = [
            Dimension(name, tuple(values))
            for name, values in model["dimensions"].items()
        ]
        search_space = Space(model["default"], tuple(names))
        table = {
            key(one["configuration"]): one["score"] for one in model["configurations"]
        }
        assert len(table) == len(search_space)
        best = max(filter(None, table.values()))
        for seed in range(10):
            measure, _ = measure_from_table(table)
            trials = search(
                search_space,
                measure,
                trials=len(search_space) // 5,
                first=lambda default, proposed=model["proposed"]: proposed,
                seed=seed,
            )
            reached = max(trial.score or 0.0 for trial in trials)
            assert reached >= 0.95 * best, (model["name"], seed)
