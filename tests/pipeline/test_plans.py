"""Every plan is run before it is published if there is a GPU; the plans here are fake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.engine import Plan
from builder.parity import plan_check
from builder.pipeline import warmup
from builder.repository import ModelResult, build_repository
from tests.pipeline import models


class Gpu:
    """Returns 2 relu(x); the first `wrong` plans return one more."""

    def __init__(self, wrong: int) -> None:
        self.wrong, self.ran = wrong, 0

    @contextmanager
    def open(self, plan: Plan) -> Iterator[Any]:
        self.ran += 1
        error = float(self.ran <= self.wrong)
        yield lambda inputs: [{"output": torch.relu(inputs["x"]) * 2 + error}]

    def build(self, conversion: Any, options: Any) -> Plan:
        return Plan(
            b"another", {"layers": 1, "flavor": "tensorrt", "tensorrt": "10.9.0"}
        )

    @property
    def tools(self) -> plan_check.Tools:
        return plan_check.Tools(self.open, self.build, lambda *_: 1 / 0, ("CUBLAS",))


def build(
    folder: Path, patch: pytest.MonkeyPatch, gpu: Gpu, more: str = ""
) -> tuple[ModelResult, bytes]:
    patch.setattr(plan_check, "possible", lambda: True)
    patch.setattr(plan_check, "on_gpu", lambda: gpu.tools)
    # no engine can run the warm-up requests, because the GPU is fake
    confirm = warmup.confirm
    patch.setattr(
        warmup,
        "confirm",
        lambda artifact, files, *, engines: confirm(artifact, files, engines=False),
    )
    source = models.save(folder / "models", models.Whole(), more)
    (result,) = build_repository(source, folder / "out", isolate=False)
    found = list((folder / "out" / "m" / "1").glob("*.plan"))
    return result, found[0].read_bytes() if found else b""


def test_correct_plan_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(wrong=0)
    result, plan = build(tmp_path, monkeypatch, gpu)
    assert result.ok and gpu.ran == 1, result.error
    assert plan not in (b"", b"another")
    assert "run plans" in result.seconds


def test_replacement_of_a_wrong_plan_is_published_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, plan = build(tmp_path, monkeypatch, Gpu(wrong=1))
    assert result.ok and plan == b"another", result.error
    assert [text.partition(": golden")[0] for text in result.warnings] == [
        "model: the plan is wrong",
        "model: rebuilt without CUBLAS: right",
    ]


def test_torch_runs_a_network_without_a_correct_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, plan = build(tmp_path, monkeypatch, Gpu(wrong=9))
    assert result.ok and (result.segments, plan) == (("torch",), b""), result.error
    assert any(
        "TensorRT builds no correct plan of the network" in text
        for text in result.warnings
    )


def test_require_full_publishes_no_model_without_a_correct_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "fallback: {require_full: true}\n"
    result, _ = build(tmp_path, monkeypatch, Gpu(wrong=9), full)
    assert not result.ok and "no correct plan" in str(result.error)
    assert not (tmp_path / "out" / "m").exists()
