"""Engines of both formats side by side: the plans are real, the GPU and its clock are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import builder
from benchmarks import fleet, frontends, pipelines, records, timed
from benchmarks.networks import NETWORKS, Chain, Network

SPEC = builder.TensorSpec(
    "float32", ("batch", 8, 8, 8), dims={"batch": (1, 8, 32)}, name="x"
)
SMALL = Network(lambda: Chain(2), SPEC)


class _Engine:
    """Replaces timed.Engine without a GPU; its time is the size of the plan."""

    def __init__(self, plan: bytes) -> None:
        self.plan = plan
        self.engine = SimpleNamespace(num_layers=3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def bound(self, x: torch.Tensor) -> timed.Call:
        return lambda: float(len(self.plan))

    def graph(self, x: torch.Tensor) -> timed.Call:
        raise RuntimeError("no capture")


def _medians(
    contenders: dict[str, timed.Make], inputs: Sequence[torch.Tensor]
) -> tuple[dict[str, float], dict[str, str]]:
    found, failed = {}, {}
    for name, make in contenders.items():
        try:
            found[name] = make(inputs[0])()
        except RuntimeError as refusal:
            failed[name] = str(refusal)
    return found, failed


@pytest.fixture
def without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OUT", raising=False)
    monkeypatch.setattr(frontends, "RESULTS", tmp_path / "frontends.jsonl")
    monkeypatch.setattr(timed, "Engine", _Engine)
    monkeypatch.setattr(timed, "medians", _medians)
    monkeypatch.setattr(pipelines, "warm_up", lambda: None)
    monkeypatch.setattr(records, "host", lambda: {"gpu": "none"})
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setitem(NETWORKS, "lstm", SMALL)
    return tmp_path / "frontends.jsonl"


def test_engines_of_both_formats_have_a_row_per_batch(
    without_gpu: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build, caches = frontends.plan, []

    def without_cache(*given: Any) -> Any:
        caches.append(given[-1])
        return build(*given[:-1], None)  # TensorRT for RTX has no timing cache

    monkeypatch.setattr(frontends, "plan", without_cache)
    assert (
        frontends.main(["--networks", "lstm", "--precision", "fp32", "--rebuild"]) == 0
    )
    rows = records.read(without_gpu)
    assert len(caches) == 3 and len(set(caches)) == 1
    shown = capsys.readouterr().out
    assert all(json.dumps(row) in shown for row in rows)
    assert [(row["network"], row["batch"]) for row in rows] == [
        ("lstm", 8),
        ("lstm", 32),
    ]
    for row in rows:
        facts = row["facts"]
        assert set(facts) == {"script", "export", "rebuilt"}
        assert facts["script"]["layers"] == facts["export"]["layers"] > 2
        assert row["ratio"] == row["ours_export_ms"] / row["ours_script_ms"]
        assert row["repeat_ratio"] == 1 and row["difference"] == 0
        assert (
            row["failed"]["script_graph"] == "no capture" and "ratio_graph" not in row
        )


def test_failing_network_loses_only_its_rows(
    without_gpu: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: Callable[..., Any] = frontends.rows

    def refuses(name: str, *more: Any) -> Any:
        return found("no such", *more) if name == "unet" else [{"network": name}]

    monkeypatch.setattr(frontends, "rows", refuses)
    assert frontends.main(["--networks", "unet", "lstm"]) == fleet.FAILED
    assert records.read(without_gpu) == [{"network": "lstm"}]
    assert "unet fp16 failed" in capsys.readouterr().out
    without_gpu.unlink()
    assert frontends.main(["--budget", "-1"]) == 0
    assert records.read(without_gpu) == []


def test_default_networks_have_a_dynamic_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = frontends.parse([])
    assert args.networks == list(frontends.DEFAULT) and len(args.networks) == 5
    for name in args.networks:
        assert max(frontends.BATCHES) <= NETWORKS[name].spec.dims["batch"][2]
    with pytest.raises(SystemExit):
        frontends.parse(["--networks", "no_such"])
    assert "--networks" in capsys.readouterr().err
