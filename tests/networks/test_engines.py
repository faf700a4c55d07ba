"""The program that runs the networks on engines, tested with the reference, and its page."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import records
from builder.engine import capabilities
from tests.networks import engines, judging, page, rivals
from tests.networks.small import NETWORKS

HERE = {"by": "reference", "torch": "2", "tensorrt": "1"}


def run_jobs(
    tmp_path: Path, *jobs: engines.Job, budget: float = 100, limit: float = 100
) -> list[records.Row]:
    engines.run(jobs, HERE, tmp_path / "rows.jsonl", 2, budget, limit)
    return records.read(tmp_path / "rows.jsonl")


def test_each_network_and_precision_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUT", raising=False)
    jobs = [
        ("GRU (small)", "traced", "fp32"),
        ("Recommender (small)", "scripted", "fp16"),
        ("no such", "traced", "fp32"),
    ]
    rows = {row["network"]: row for row in run_jobs(tmp_path, *jobs)}
    assert [rows[job[0]]["result"] for job in jobs] == ["passed", "passed", "failed"]
    assert (
        0 < rows["GRU (small)"]["share"] < 1 and 0 < rows["GRU (small)"]["noise"] < 1e-5
    )
    assert (
        rows["Recommender (small)"]["noise"] > 1e-5
        and rows["Recommender (small)"]["mode"] == "scripted"
    )
    assert "KeyError" in rows["no such"]["problem"]


def test_hanging_job_fails_and_late_jobs_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUT", raising=False)
    monkeypatch.setattr(engines, "measure", hang)
    (row,) = run_jobs(tmp_path, ("GRU (small)", "traced", "fp32"))
    assert (row["result"], row["problem"]) == ("failed", "not done in time")
    monkeypatch.undo()
    monkeypatch.delenv("OUT", raising=False)
    left = engines.run(
        [("GRU (small)", "traced", "fp32")], HERE, tmp_path / "none.jsonl", 1, 0, 100
    )
    monkeypatch.setattr(engines, "measure", cut)
    left += engines.run(
        [("BERT (small)", "traced", "fp32")], HERE, tmp_path / "none.jsonl", 1, 50, 100
    )
    assert left == [
        (f"{name} (small)", "traced", "fp32") for name in ("GRU", "BERT")
    ] and not records.read(tmp_path / "none.jsonl")


def test_crash_of_one_precision_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUT", raising=False)
    monkeypatch.setattr(engines, "measure", crash)
    jobs = [
        ("GRU (small)", "traced", precision) for precision in ("fp32", "tf32", "fp16")
    ]
    assert engines.run(jobs, HERE, tmp_path / "rows.jsonl", 1, 100, 100) == []
    rows = {
        row["precision"]: row["result"] for row in records.read(tmp_path / "rows.jsonl")
    }
    assert rows == {"fp32": "passed", "tf32": "failed", "fp16": "passed"}


def crash(jobs: Any, where: Any, out: str, *rest: Any) -> list[Any]:
    """Replaces measure(); TensorRT aborts for tf32."""
    import os

    for job in jobs:
        rest[-1]((job, False))
        if job[2] == "tf32":
            os.abort()
        records.append(Path(out), [{**engines.head(job, where), "result": "passed"}])
    return []


def hang(*_: Any) -> None:
    """Replaces measure() at its time limit."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGALRM)


def cut(*arguments: Any) -> None:
    """Replaces measure() when the time limit of the run comes first."""
    arguments[-1]((arguments[0][0], True))
    hang()


def test_small_networks_run_first_and_passed_rows_are_kept() -> None:
    jobs = engines.in_order(
        ["ResNet-18", "BERT-base", "GRU (small)"], "scripted", ["fp32", "fp16"]
    )
    assert [job[0] for job in jobs[::2]] == ["GRU (small)", "BERT-base", "ResNet-18"]
    assert {job[0]: job[1] for job in jobs} == {
        "GRU (small)": "scripted",
        "BERT-base": "traced",
        "ResNet-18": "scripted",
    }
    assert engines._is_pending(None, "none") and not engines._is_pending(
        {"result": "failed"}, "none"
    )
    assert engines._is_pending(
        {"result": "failed"}, "failed"
    ) and not engines._is_pending({"result": "passed"}, "failed")


@pytest.mark.skipif(
    not capabilities.current().strongly_typed,
    reason="the reference rounds as the network's dtypes say",
)
@pytest.mark.parametrize(
    ("noise", "verdict"),
    [
        (0.0, "fp16 itself"),
        (math.nan, "another answer"),
        pytest.param(3.0, "another answer", marks=pytest.mark.slow),
    ],
)
def test_rounding_effects_differ_from_wrong_outputs(
    noise: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detections of random weights are nearly equal. Their order differs in half precision,
    also in torch.
    """
    own = judging._answers

    def worse(*arguments: Any) -> list[list[torch.Tensor]]:
        return [
            [t + noise if t.is_floating_point() else t for t in output]
            for output in own(*arguments)
        ]

    monkeypatch.setattr(judging, "_answers", worse)
    row = judging.judge(NETWORKS["YOLO"], "traced", "fp16", "reference")
    assert row["result"] == verdict and "elements differ too much" in row["problem"]
    assert row["share"] is row["own_share"] is None, (
        "no tolerance allows a different integer"
    )
    assert row["own_noise"] is not None and row["own"].startswith("torch")


def test_precision_variants_of_torch_keep_the_module() -> None:
    module, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    with torch.no_grad():
        expected = module(x)
    for precision in engines.PRECISIONS:
        _, variants = rivals.variants(module, [(x,)], precision)
        errors = [
            float((outputs[0][0] - expected).detach().abs().max())
            for outputs in variants
        ]
        assert all(error <= 20 * rivals.UNITS[precision] for error in errors) and any(
            errors
        ), precision
    assert torch.get_default_dtype() == module.weight.dtype == torch.float32


def test_row_has_errors_of_engine_and_torch() -> None:
    row = {
        "network": "N",
        "mode": "traced",
        "precision": "fp16",
        "layers": 3,
        "share": 0.034,
        "noise": 2e-7,
    }
    beyond = {
        **row,
        "share": 3.0,
        "result": "fp16 itself",
        "own_share": None,
        "own_noise": 0.1,
    }
    assert page._cell({**row, "result": "passed", "level": 0}) == "3.4 %, 2.0e-07"
    assert (
        page._cell({**row, "result": "passed", "level": 3})
        == "3.4 %, 2.0e-07 (level 3)"
    )
    assert page._cell(beyond) == "itself: 300 %, 2.0e-07 (torch any, 1.0e-01)"
    lines = list(
        page._machine(
            ("G", "8.6.0"),
            [
                {
                    **beyond,
                    "result": "another answer",
                    "problem": "why",
                    "date": "d",
                    "torch": "t",
                    "driver": "v",
                }
            ],
        )
    )
    assert (
        "| fp16 | 1 | 0 | 0 | 0 | 1 | 0 |" in lines
        and lines[-2] == "- N, traced, fp16: why"
    )


def test_stated_tolerance_is_exact() -> None:
    row = {
        "network": "ViT-base",
        "mode": "traced",
        "precision": "fp16",
        "result": "another answer",
        "share": 1.9,
    }
    assert page.verdict(row) == "stated"
    assert (
        page.verdict({**row, "share": 2.1})
        == page.verdict({**row, "share": None})
        == "another answer"
    )
    assert page.verdict({**row, "precision": "fp32"}) == "another answer"
    assert page.verdict({**row, "share": 0.9, "result": "passed"}) == "passed"


def test_page_is_current() -> None:
    path = Path(__file__).resolve().parents[2] / "docs/generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.NETWORKS.read_text() == generate.networks(), (
        "run: python docs/generate.py networks-gpu"
    )
