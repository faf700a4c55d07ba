"""Only changed models are rebuilt, with the reason, and a crash fails only its own model."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from builder import build_repository, processes
from builder.errors import ModelFileError
from builder.repository import ModelResult, jobs
from builder.repository.build import perform
from builder.store import Hashes
from tests.cli.conftest import (
    MANIFEST,
    PROGRAM,
    ROOT,
    Small,
    environment,
    save,
    save_small,
)

CRASH = """
import os, signal
from dataclasses import replace
from builder.conversion import registry

def crash(ctx, *arguments):
    os.kill(os.getpid(), signal.SIGSEGV)

registry.CONVERTERS["aten::tanh"] = replace(registry.CONVERTERS["aten::tanh"], build=crash)
"""


class Tanh(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return save_small(tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"out": tmp_path / "out", "store": tmp_path / "store"}


def build(models: Path, **settings: Any) -> ModelResult:
    (result,) = build_repository(models, **settings)
    assert result.error is None
    return result


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_unreadable_model_file_fails_its_own_model(
    models: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(hashes: Hashes, path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Hashes, "sha256", denied)
    (result,) = build_repository(models, **settings)
    assert isinstance(result.error, ModelFileError)
    assert "cannot be read: Permission denied" in str(result.error)
    assert result.error.fix == "give this user access to it, or use another path"


def test_second_build_changes_nothing(models: Path, settings: dict[str, Any]) -> None:
    first = build(models, **settings)
    before = contents(settings["out"])
    again = build(models, **settings)
    assert (first.state, first.because) == ("built", "not published before")
    assert (again.state, again.because) == ("unchanged", "")
    assert (again.layers, again.plan_bytes, again.path) == (
        first.layers,
        first.plan_bytes,
        first.path,
    )
    assert contents(settings["out"]) == before


def test_rebuild_reason_names_the_changed_setting(
    models: Path, settings: dict[str, Any]
) -> None:
    build(models, **settings)
    changed = build(models, **settings, precision="fp16")
    assert (changed.state, changed.because) == ("built", "precision fp32 -> fp16")
    back = build(models, **settings)
    assert (back.state, back.because) == ("reused", "precision fp16 -> fp32")
    record = json.loads((settings["out"] / "small" / "trt-build.json").read_text())
    assert record["plans"]["model"]["found"]
    assert record["request"]["precision"] == "fp32"


def test_plan_from_the_store_equals_the_built_plan(
    models: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    build(models, **settings)
    plan = (settings["out"] / "small" / "1" / "model.plan").read_bytes()
    other = build(models, out=tmp_path / "elsewhere", store=settings["store"])
    assert other.state == "reused"
    assert (tmp_path / "elsewhere" / "small" / "1" / "model.plan").read_bytes() == plan


def test_models_are_rebuilt_without_a_store(models: Path, tmp_path: Path) -> None:
    build(models, out=tmp_path / "a")
    assert build(models, out=tmp_path / "b").state == "built"
    assert not (tmp_path / "store").exists()


def test_rebuild_option_builds_unchanged_models(
    models: Path, settings: dict[str, Any]
) -> None:
    build(models, **settings)
    again = build(models, **settings, rebuild=True)
    assert (again.state, again.because) == ("built", "--rebuild")


@pytest.mark.parametrize("where", ["store", "published"])
def test_damaged_plans_are_detected_and_replaced(
    models: Path, settings: dict[str, Any], where: str
) -> None:
    build(models, **settings)
    folder = settings["store"] if where == "store" else settings["out"] / "small"
    for plan in folder.rglob("*.plan"):
        plan.write_bytes(plan.read_bytes()[:-10])
    if where == "store":
        shutil.rmtree(settings["out"])
    result = build(models, **settings)
    assert result.state == ("built" if where == "store" else "reused")
    if where == "published":
        assert result.because == "1/model.plan of the published model is damaged"
    assert build(models, **settings).state == "unchanged"


def test_only_the_reason_of_a_plan_compares_with_builds_elsewhere(
    models: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    build(models, **settings)
    (models / "small.yaml").write_text(MANIFEST.replace("max: 8", "max: 16"))
    result = build(models, out=tmp_path / "elsewhere", store=settings["store"])
    assert result.because == "not published before"
    assert result.path is not None
    plans = json.loads((result.path / "trt-build.json").read_text())["plans"]
    assert "[1, 2, 8] -> [1, 2, 16]" in plans["model"]["because"]


def test_other_model_of_the_same_name_is_not_an_earlier_build(
    models: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    build(models, **settings)
    (tmp_path / "other").mkdir()
    torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 3))).save(
        str(tmp_path / "other" / "small.pt")
    )
    shutil.copy(models / "small.yaml", tmp_path / "other")
    result = build(
        tmp_path / "other", out=tmp_path / "elsewhere", store=settings["store"]
    )
    assert result.path is not None
    plans = json.loads((result.path / "trt-build.json").read_text())["plans"]
    assert plans["model"]["because"] == "no earlier build"


def test_command_line_overrides_build_options_of_the_manifest(
    models: Path, settings: dict[str, Any]
) -> None:
    from builder.engine import BuildOptions

    (models / "small.yaml").write_text(
        MANIFEST + 'build: {optimization_level: 1, compute_capabilities: ["8.6"]}\n'
    )
    build(models, **settings)
    facts = json.loads((settings["out"] / "small" / "1" / "plan.json").read_text())
    assert facts["options"] == {
        "compute_capabilities": [[8, 6]],
        "optimization_level": 1,
    }
    changed = build(models, **settings, options=BuildOptions(optimization_level=2))
    assert changed.because == "options.optimization_level 1 -> 2"


def test_keep_fp32_of_the_manifest_reaches_the_network(
    models: Path, settings: dict[str, Any]
) -> None:
    def network_facts() -> dict[str, Any]:
        plans = json.loads((settings["out"] / "small" / "trt-build.json").read_text())[
            "plans"
        ]
        return {
            "layers": build(models, **settings).layers,
            "network": plans["model"]["parts"]["network"],
        }

    (models / "small.yaml").write_text(MANIFEST + "precision: fp16\n")
    build(models, **settings)
    half = network_facts()
    (models / "small.yaml").write_text(
        MANIFEST + 'precision: fp16\nkeep_fp32: ["*linear*"]\n'
    )
    changed = build(models, **settings)
    assert changed.state == "built"
    assert (
        changed.because
        == 'keep_fp32_auto true -> false, keep_fp32 none -> ["*linear*"]'
    )
    assert network_facts()["network"] != half["network"]
    assert network_facts()["layers"] < half["layers"]  # no casts


def test_unsupported_builder_options_are_usage_errors(
    models: Path, settings: dict[str, Any]
) -> None:
    from builder.engine import BuildOptions
    from builder.errors import UsageError

    (result,) = build_repository(
        models, **settings, options=BuildOptions(hardware_compatible="ampere_plus")
    )
    assert isinstance(result.error, UsageError)
    assert "has no hardware compatibility" in result.error.message


@pytest.mark.slow
def test_converter_crash_fails_one_model_and_is_reproducible(
    models: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    save(Tanh(), models / "crashing.pt")
    save(Small(), models / "zebra.pt")
    plugin = tmp_path / "plugin.py"
    plugin.write_text(CRASH)
    served, *_ = build_repository(
        models, **{**settings, "out": tmp_path / "other"}, plugins=[str(plugin)]
    )
    assert served.ok and any("SIGSEGV" in warning for warning in served.warnings)
    with (models / "crashing.yaml").open("a") as manifest:
        manifest.write("fallback: {require_full: true}\n")
    crashed, small, zebra = build_repository(models, **settings, plugins=[str(plugin)])
    assert (small.ok, zebra.ok) == (True, True)
    assert crashed.name == "crashing"
    assert "SIGSEGV" in str(crashed.error)
    assert "builder/conversion/" in str(crashed.error)
    assert {path.name for path in settings["out"].iterdir()} == {"small", "zebra"}
    assert crashed.error is not None
    words = shlex.split(str(crashed.error.fix).partition("trt-build ")[2])
    reproduced = subprocess.run(
        [*PROGRAM, *words], env=environment(), capture_output=True
    )
    assert reproduced.returncode == -11


def test_failing_plugin_is_a_usage_error(
    models: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text("import nothing_of_that_name")
    (result,) = build_repository(models, **settings, plugins=[str(tmp_path / "bad.py")])
    assert result.error is not None
    assert result.error.exit_code == 2
    assert "nothing_of_that_name" in str(result.error)


def test_build_without_isolation_runs_in_process(
    models: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[object] = []
    run = processes.run

    def count(
        tasks: list[processes.Task[Any]], *rest: Any, **options: Any
    ) -> list[Any]:
        targets.extend(task.call()[0] for task in tasks)
        return run(tasks, *rest, **options)

    monkeypatch.setattr(processes, "run", count)
    assert build(models, **settings, isolate=False).state == "built"
    assert f"{perform.__module__}:perform" not in targets


def test_workers_are_pinned_to_gpus_of_the_same_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from builder.engine import flavor, gpu

    kinds = [("H100", (9, 0)), ("A100", (8, 0)), ("H100", (9, 0))]
    devices = [
        gpu.Device(i, name, capability, 1 << 36, f"GPU-{i}")
        for i, (name, capability) in enumerate(kinds)
    ]
    monkeypatch.setattr(flavor, "chosen", lambda: "tensorrt-rtx")
    assert jobs.environments() == [{}]
    monkeypatch.setattr(flavor, "chosen", lambda: "tensorrt")
    monkeypatch.setattr(gpu, "devices", lambda: devices)
    cache = {"TRT_BUILD_CACHE": os.environ["TRT_BUILD_CACHE"]}
    assert jobs.environments() == [
        {"CUDA_VISIBLE_DEVICES": "GPU-0", **cache},
        {"CUDA_VISIBLE_DEVICES": "GPU-2", **cache},
    ]
    assert jobs.default_jobs() == 4
    monkeypatch.setattr(gpu, "devices", list)
    assert jobs.environments() == [cache]
    monkeypatch.delenv("TRT_BUILD_CACHE")
    assert jobs.environments() == [{}]


@pytest.mark.slow
def test_concurrent_builds_with_one_store_both_publish(
    models: Path, tmp_path: Path
) -> None:
    program = (
        "import sys; from builder import build_repository; "
        "(r,) = build_repository(sys.argv[1], sys.argv[2], store=sys.argv[3]); assert r.ok, r.error"
    )
    command = [sys.executable, "-c", program, str(models)]
    both = [
        subprocess.Popen(
            [*command, str(tmp_path / name), str(tmp_path / "store")], env=environment()
        )
        for name in "ab"
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert build(models, out=tmp_path / "c", store=tmp_path / "store").state == "reused"


def test_build_record_is_published_with_the_model(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record written later could describe a model that another build published in between."""
    from builder.store import staging

    seen: list[dict[str, Any]] = []

    def swap(new: Path, target: Path, old: Path) -> None:
        seen.append(json.loads((new / "trt-build.json").read_text()))
        real(new, target, old)

    real = staging.swap
    monkeypatch.setattr(staging, "swap", swap)
    result = build(models, out=tmp_path / "out", isolate=False)
    assert result.ok and [record["request"]["precision"] for record in seen] == ["fp32"]
    assert json.loads((tmp_path / "out/small/trt-build.json").read_text()) == seen[0]


@pytest.mark.slow
def test_fifty_unchanged_models_take_under_two_seconds(
    tmp_path: Path, models: Path
) -> None:
    """Measures the processor time of a complete `trt-build repo` process."""
    out = tmp_path / "out"
    build(models, out=out)
    for number in range(50):
        _copy(models, out, f"m{number}")
    (models / "small.pt").unlink()
    (models / "small.yaml").unlink()
    program = (
        f"import sys, time, json; from builder.cli import main\nmain(['repo', {str(models)!r},"
        f" '--out', {str(out)!r}, '--no-store', '--json'], standalone_mode=False)\nassert not"
        " {'torch', 'numpy', 'tensorrt', 'tensorrt_rtx', 'google.protobuf'} &"
        " set(sys.modules)\nprint(time.process_time(), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program]
    done = [
        subprocess.run(
            command,
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        for _ in range(2)
    ]
    states = [model["state"] for model in json.loads(done[-1].stdout)["models"]]
    assert states == ["unchanged"] * 50
    assert float(done[-1].stderr.splitlines()[-1]) < 2


def _copy(models: Path, out: Path, name: str) -> None:
    """A model and its publication under another name, as 50 builds would have left them."""
    for suffix in (".pt", ".yaml"):
        shutil.copy(models / f"small{suffix}", models / f"{name}{suffix}")
    shutil.copytree(out / "small", out / name)


def test_build_works_without_a_cache(
    models: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_BUILD_CACHE", "/proc/nowhere")
    assert build(models, **settings).state == "built"
    assert build(models, **settings).state == "unchanged"


def test_long_builds_report_progress(
    monkeypatch: pytest.MonkeyPatch, models: Path, tmp_path: Path
) -> None:
    from builder.pipeline import run as model

    monkeypatch.setattr(model, "REPORT_SECONDS", 0.0)
    record: list[str] = []
    build_repository(
        models,
        tmp_path / "out",
        isolate=False,
        progress=lambda name, phase: record.append(phase),
    )
    assert any(text.startswith("build: ") and " of " in text for text in record)
