"""A mixed model is published in fp16 if its plan is not faster; the times are fake."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builder.engine import Plan
from builder.errors import EngineError
from builder.parity import plan_check
from builder.pipeline import faster, stages
from builder.repository import ModelResult, build_repository
from builder.triton import Golden


def checked(layout: str = "single", name: str = "mixed") -> Any:
    goldens = [Golden(f"p0-{size}", {}, {}) for size in ("min", "opt", "max")]
    prepared = SimpleNamespace(goldens=tuple(goldens))
    built = stages.Built(SimpleNamespace(prepared=prepared), {(): Plan(name.encode())})  # type: ignore[arg-type]
    return stages.Checked(built, None, layout, "", ())  # type: ignore[arg-type]


@dataclass
class Times:
    """Milliseconds of the mixed and the fp16 plan; `timed_goldens` names the timed goldens."""

    mixed: float
    half: float
    timed_goldens: tuple[str, ...] = ()

    def __call__(self, plans: Sequence[Plan], golden: Golden) -> Sequence[float]:
        self.timed_goldens += (golden.name,)
        assert [plan.data for plan in plans] == [b"mixed", b"half"]
        return self.mixed, self.half


@pytest.mark.parametrize(
    ("mixed", "half", "published"),
    [(1.0, 2.0, "mixed"), (2.0, 1.0, "half"), (0.99, 1.0, "half")],
)
def test_mixed_is_published_only_if_it_is_faster(
    mixed: float, half: float, published: str
) -> None:
    times = Times(mixed, half)
    chosen = faster.choose(checked(), lambda: checked(name="half"), times)
    (plan,) = chosen.built.plans.values()
    assert plan.data == published.encode()
    assert times.timed_goldens == ("p0-opt", "p0-max")
    assert f"{mixed / half:.2f} of the time of fp16" in chosen.warnings[0]
    assert ("published in fp16" in chosen.warnings[0]) == (published == "half")


def test_mixed_is_kept_if_fp16_fails_or_has_segments() -> None:
    def refused() -> Any:
        raise EngineError("no plan")

    mixed = checked()
    assert faster.choose(mixed, refused, Times(2, 1)) is mixed
    assert faster.choose(mixed, lambda: checked("fused", "half"), Times(2, 1)) is mixed
    segments = checked("fused")
    assert faster.choose(segments, refused, Times(2, 1)) is segments


def repo(
    folder: Path, patch: pytest.MonkeyPatch, ratio: float
) -> tuple[ModelResult, Any]:
    """Build a linear layer in mixed precision on a fake GPU; the result and the record
    of its plan. `ratio` is the time of the mixed plan by that of fp16.
    """
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 4).eval()

    @contextmanager
    def right(plan: Plan) -> Iterator[Any]:
        yield lambda inputs: [{"output": module(inputs["x"]).detach()}]

    tools = plan_check.Tools(right, lambda *_: 1 / 0, lambda *_: 1 / 0, ())
    patch.setattr(plan_check, "possible", lambda: True)
    patch.setattr(plan_check, "on_gpu", lambda: tools)
    patch.setattr(faster, "_on_gpu", lambda plans, golden: (ratio, 1.0))
    manifest = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 4]}
dims:
  batch: {min: 1, opt: 2, max: 4}
precision: mixed
calibration: {data: [goldens]}
"""
    source = folder / "models"
    source.mkdir()
    torch.jit.script(module).save(str(source / "m.pt"))
    (source / "m.yaml").write_text(manifest)
    (result,) = build_repository(source, folder / "out", isolate=False)
    assert result.ok, result.error
    record = json.loads((folder / "out" / "m" / "trt-build.json").read_text())
    return result, record["plans"]["model"]


def test_repo_publishes_and_records_the_faster_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = {}
    for name, ratio in (("mixed", 0.5), ("fp16", 1.5)):
        home = tmp_path / name
        home.mkdir()
        result, published[name] = repo(home, monkeypatch, ratio)
        assert result.precision == name
        assert (result.quantized is not None) == (name == "mixed")
        assert sum("of the time of fp16" in text for text in result.warnings) == 1
    assert published["mixed"]["key"] != published["fp16"]["key"]
