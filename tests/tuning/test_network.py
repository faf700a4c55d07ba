"""`python -m tests.tuning network`: its search space, and that trials are written immediately."""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import builder
from benchmarks.networks import NETWORKS, Network
from builder import manifest, repository
from builder.repository import ModelResult
from builder.tuning import Trial, Tuned
from tests.tuning import network

TINY = Network(
    lambda: torch.nn.Linear(8, 8),
    builder.TensorSpec("float32", ("batch", 8), dims={"batch": (1, 2, 4)}, name="x"),
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "tiny", TINY)


@pytest.mark.parametrize("name", ["resnet50", "bert_base_128"])
def test_default_options_need_one_plan(name: str) -> None:
    args = network.parsed([name, "--out", "found.json"])
    options = network.options(args)
    assert (args.precision, options.trials, options.confirmations) == ("fp16", 8, 2)
    assert options.values.profiles == ("one",) and options.values.runtime == ("plan",)
    assert options.goldens == ("p0-min",), "one row"


def test_manifest_has_the_spec_of_the_network(tmp_path: Path) -> None:
    spec = network.write("tiny", TINY, tmp_path, "fp16")
    assert spec.precision == "fp16" and spec.inputs == (replace(TINY.spec, name="x"),)
    assert spec.profiles == ({"batch": (1, 2, 4)},) and manifest.load(tmp_path) == [
        spec
    ]


def test_trials_are_written_immediately(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends at a time limit keeps its measurements."""
    file = tmp_path / "new" / "found.json"
    trial = Trial(
        {"instances": 2}, "default", 100.0, None, {}, {"prepare": 1.5, "load": 0.5}
    )

    def ended(*given: Any, on_trial: Any) -> Tuned:
        on_trial(trial)
        raise KeyboardInterrupt

    monkeypatch.setattr(network, "tune", ended)
    with pytest.raises(KeyboardInterrupt):
        network.main(["tiny", "--out", str(file)])
    record = json.loads(file.read_text())
    assert (
        not record["finished"]
        and record["network"] == "tiny"
        and record["precision"] == "fp16"
    )
    assert [one["seconds"] for one in record["trials"]] == [
        {"prepare": 1.5, "load": 0.5}
    ]


def test_final_results_are_recorded(tmp_path: Path) -> None:
    args = argparse.Namespace(
        out=tmp_path / "found.json",
        network="tiny",
        precision="fp16",
        seconds=1.0,
        concurrency=(1,),
    )
    one = {"instances": 1}
    tuned = Tuned(
        "tiny",
        "highest throughput",
        4,
        "no difference",
        one,
        one,
        {},
        10.0,
        11.0,
        1.1,
        (),
        (),
        {},
    )
    network.Record(args).finish(tuned)
    record = json.loads(args.out.read_text())
    assert (
        record["finished"]
        and record["verdict"] == "no difference"
        and record["default"] == one
    )
    assert (record["before"], record["after"]) == (10.0, 11.0) and record[
        "seconds"
    ] < 60


@pytest.mark.live
@pytest.mark.slow
def test_network_is_tuned_on_this_host(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first variant is built. The others use its artifact."""
    few = ("--trials", "3", "--confirmations", "1")
    brief = ("--seconds", "0.5", "--concurrency", "1,4")
    built = []

    def build_variant(*args: Any, **kwargs: Any) -> ModelResult:
        result = repository.build_variant(*args, **kwargs)
        built.append(bool(result.kept))
        return result

    module = importlib.import_module("builder.tuning.tune")
    monkeypatch.setattr(module, "build_variant", build_variant)
    file = tmp_path / "found.json"
    network.main(["tiny", "--out", str(file), *few, *brief])
    record = json.loads(file.read_text())
    assert record["finished"] and len(record["trials"]) == 3 and record["confirmed"]
    assert set(record["trials"][0]["seconds"]) == {"prepare", "load", "measure"}
    measured = len(record["trials"]) + len(record["confirmed"])
    assert built == [True, *[False] * measured]
