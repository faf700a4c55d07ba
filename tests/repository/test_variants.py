"""A variant with other serving settings equals a full build, without another build or check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from builder import build_repository, manifest
from builder.pipeline import run
from builder.repository import KeptArtifacts, ModelResult, Settings, build_variant

SERVING_OPTIONS = {
    "instances": 3,
    "batching": {"max_queue_delay_us": 700, "preferred": [2]},
}
MANIFEST = "inputs: [{name: x, dtype: float32, shape: [batch, 16]}]\noutputs: [y]\n"
DIMS = "dims: {batch: {min: 1, opt: 2, max: 4}}\n"
PARTITIONED = 'fallback: {ops: ["aten::floor"], min_block_size: 1}\n'
LAYOUTS = {
    "single": "precision: fp16\n",
    "fused": f"{PARTITIONED}layout: fused\n",
    "ensemble": f"{PARTITIONED}layout: ensemble\n",
}
VARYING_FIELDS = ("seconds", "because", "state")
"""Fields of a build record that differ between equal builds."""
Spec = manifest.ModelSpec


class Rounded(torch.nn.Module):
    """Two layers with a `floor` between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(torch.floor(torch.relu(self.first(x)) * 8)))


def spec_of(folder: Path, section: str) -> Spec:
    """A model of two linear layers with a `floor` between them."""
    torch.manual_seed(0)
    torch.jit.script(Rounded().eval()).save(str(folder / "net.pt"))
    (folder / "net.yaml").write_text(MANIFEST + DIMS + section)
    (spec,) = manifest.load(folder)
    return spec


def files(repository: Path) -> dict[str, bytes | dict[str, Any]]:
    """The content of every file by its path, records without the fields that differ."""
    return {
        path.relative_to(repository).as_posix(): _record(path)
        if path.name == "trt-build.json"
        else path.read_bytes()
        for path in sorted(repository.rglob("*"))
        if path.is_file() and not path.relative_to(repository).parts[0].startswith(".")
    }


def _record(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    record["result"] = {
        k: v for k, v in record.get("result", {}).items() if k not in VARYING_FIELDS
    }
    for one in record["result"].get("lowering", ()):
        one.pop("seconds")
    for plan in record.get("plans", {}).values():
        plan.pop("found")
        plan.pop("because")
    for key in ("seal", "seals", "retired", "published_at"):
        record.pop(key, None)
    return record


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the models that were built and checked in this process."""
    seen: list[str] = []
    check = run.check_recorded

    def counted(recorded: Any, order: Any, *rest: Any) -> Any:
        seen.append(order.spec.name)
        return check(recorded, order, *rest)

    monkeypatch.setattr(run, "check_recorded", counted)
    yield seen


def variant(
    spec: Spec, out: Path, kept: KeptArtifacts | None, settings: Settings, **values: Any
) -> ModelResult:
    changed = manifest.variant(spec, values) if values else spec
    result = build_variant(changed, out, settings, isolate=False, kept_artifacts=kept)
    assert result.ok, result.error
    return result


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "fused" else name
        for name in LAYOUTS
    ],
)
def test_kept_variant_equals_a_full_build(
    layout: str, tmp_path: Path, built: list[str]
) -> None:
    spec = spec_of(tmp_path, LAYOUTS[layout])
    settings = Settings(store=tmp_path / "store", edits="overwrite")
    variant(spec, tmp_path / "first", None, settings)  # fills the store with the plans
    built.clear()
    artifacts = KeptArtifacts(tmp_path / "kept")
    first = variant(spec, tmp_path / "kept-repository", artifacts, settings)
    assert first.layout == layout and len(built) == 1
    again = variant(
        spec, tmp_path / "kept-repository", artifacts, settings, **SERVING_OPTIONS
    )
    assert len(built) == 1, "nothing is built or checked again"
    variant(spec, tmp_path / "built-repository", None, settings, **SERVING_OPTIONS)
    assert len(built) == 2
    one, other = (files(tmp_path / f"{kind}-repository") for kind in ("kept", "built"))
    steps = [
        name for name in one if name not in other and name.split("/")[0].count(".")
    ]
    one = {name: content for name, content in one.items() if name not in steps}
    assert one.keys() == other.keys()
    for name, content in one.items():
        assert content == other[name], name
    assert (again.layers, again.parity) == (first.layers, first.parity)
    config = (tmp_path / "kept-repository" / "net" / "config.pbtxt").read_text()
    assert layout == "ensemble" or ("count: 3" in config and "700" in config)


@pytest.mark.parametrize(
    "changed",
    [
        {"precision": "fp32"},
        {"dims": {"batch": {"min": 1, "opt": 2, "max": 8}}},
        {"batch_sizes": "auto"},
        {"fallback": {"ops": ["aten::*"]}},
        {"batching": {"enabled": False}},
    ],
    ids=["precision", "maximum", "profiles", "runtime", "no batching"],
)
def test_changed_network_or_plan_is_built_and_checked(
    changed: dict[str, Any], tmp_path: Path, built: list[str]
) -> None:
    spec = spec_of(tmp_path, LAYOUTS["single"])
    settings = Settings(edits="overwrite", accept_incompatible=True)
    artifacts = KeptArtifacts(tmp_path / "kept")
    variant(spec, tmp_path / "repository", artifacts, settings)
    variant(spec, tmp_path / "repository", artifacts, settings, **changed)
    assert len(built) == 2
    variant(spec, tmp_path / "repository", artifacts, settings, **changed, instances=2)
    variant(spec, tmp_path / "repository", artifacts, settings, instances=2)
    assert len(built) == 2, "both are kept"


def test_changed_file_causes_a_rebuild(tmp_path: Path, built: list[str]) -> None:
    """A model file or a kept file is not reused after its bytes changed."""
    spec = spec_of(tmp_path, LAYOUTS["single"])
    settings, kept = Settings(edits="overwrite"), KeptArtifacts(tmp_path / "kept")
    variant(spec, tmp_path / "repository", kept, settings)
    (file,) = kept.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    variant(spec, tmp_path / "repository", kept, settings, instances=2)
    assert len(built) == 2
    torch.manual_seed(1)
    torch.jit.script(Rounded().eval()).save(str(spec.path))
    variant(spec, tmp_path / "repository", kept, settings, instances=3)
    assert len(built) == 3


def test_second_variant_in_a_worker_is_only_published(tmp_path: Path) -> None:
    """In worker processes, as in `tune`, the second build has only the publication phase."""
    spec, kept = spec_of(tmp_path, LAYOUTS["single"]), KeptArtifacts(tmp_path / "kept")
    settings = Settings(edits="overwrite")
    first = build_variant(spec, tmp_path / "repository", settings, kept_artifacts=kept)
    assert first.ok and "goldens" in first.seconds
    changed = manifest.variant(spec, SERVING_OPTIONS)
    again = build_variant(
        changed, tmp_path / "repository", settings, kept_artifacts=kept
    )
    assert again.ok and set(again.seconds) == {"publish"} and again.state == "reused"
    models = build_repository(tmp_path, tmp_path / "repository", settings)
    assert models[0].state == "built", "`repo` does not use kept builds"
