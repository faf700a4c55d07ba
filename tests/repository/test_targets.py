"""Several targets: RTX builds one plan for all; TensorRT builds for the host and lists others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.engine import BuildOptions, flavor, gpu
from builder.errors import UsageError
from builder.pipeline import order as targets
from builder.repository import Settings, build_repository, preflight
from tests.repository.test_rebuild import models  # noqa: F401  (a fixture)

A100, H100 = (8, 0), (9, 0)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two GPUs; the first for CUDA is an H100."""
    devices = [
        gpu.Device(i, f"GPU{i}", cc, 1 << 36, f"GPU-{i}")
        for i, cc in enumerate([H100, A100])
    ]
    monkeypatch.setattr(gpu, "devices", lambda: devices)


def options(*capabilities: tuple[int, int], **more: str) -> BuildOptions:
    return BuildOptions(compute_capabilities=capabilities, **more)  # type: ignore[arg-type]


def test_one_rtx_plan_covers_all_targets(models: Path, tmp_path: Path) -> None:  # noqa: F811
    (result,) = build_repository(
        models, tmp_path / "out", options=options(A100, (8, 9)), isolate=False
    )
    assert result.ok and result.warnings == ()
    facts = json.loads((tmp_path / "out" / "small" / "1" / "plan.json").read_text())
    assert facts["compute_capabilities"] == ["8.0", "8.9"]


@pytest.mark.skipif(
    flavor.resolve() != "tensorrt-rtx",
    reason="Triton's backend loads TensorRT's own plans",
)
def test_rtx_plan_for_the_tensorrt_backend_is_rejected(
    models: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The check precedes the build: Triton cannot load such a plan and does not report why."""
    with pytest.raises(
        UsageError, match="cannot load plans of TensorRT for RTX"
    ) as refused:
        build_repository(
            models, tmp_path / "out", serve_as="tensorrt_plan", isolate=False
        )
    assert "--flavor tensorrt" in str(refused.value.fix)
    assert not (tmp_path / "out").exists()


def test_gpu_unsupported_by_rtx_is_a_usage_error(models: Path, tmp_path: Path) -> None:  # noqa: F811
    (result,) = build_repository(
        models, tmp_path / "out", options=options(A100, H100), isolate=False
    )
    assert isinstance(result.error, UsageError)
    assert "cannot build for sm_90" in str(result.error) and "sm_120" in str(
        result.error.fix
    )


@pytest.mark.usefixtures("host")
def test_tensorrt_builds_for_the_local_gpu_and_lists_the_others() -> None:
    requested = options(A100, H100, (12, 0))
    assert targets.for_this_host(requested, "tensorrt") == BuildOptions()
    message = list(preflight.missing(requested, "tensorrt", "models", "out"))
    assert len(message) == 2
    assert "`trt-build repo models --out sm_80 --target sm_80`" in message[0]
    assert (
        "`trt-build merge out sm_80 --out MERGED`" in message[0]
        and "sm_120" in message[1]
    )
    assert targets.for_this_host(requested, "tensorrt-rtx") == requested and not list(
        preflight.missing(requested, "tensorrt-rtx", "", "")
    )


@pytest.mark.usefixtures("host")
def test_ampere_plus_plan_covers_later_targets() -> None:
    compatible = options(A100, H100, (7, 5), hardware_compatible="ampere_plus")
    assert targets.for_this_host(compatible, "tensorrt") == BuildOptions(
        hardware_compatible="ampere_plus"
    )
    (message,) = preflight.missing(compatible, "tensorrt", "models", "out")
    assert "sm_75" in message


@pytest.mark.usefixtures("host")
def test_target_that_is_not_gpu0_needs_cuda_visible_devices() -> None:
    with pytest.raises(
        UsageError, match=r"GPU0 is sm_90(.|\n)*CUDA_VISIBLE_DEVICES=GPU-1"
    ):
        targets.for_this_host(options(A100), "tensorrt")
    with pytest.raises(UsageError, match=r"trt-build merge"):
        targets.for_this_host(options((7, 5)), "tensorrt")


@pytest.mark.usefixtures("host")
def test_no_targets_give_no_messages() -> None:
    assert targets.for_this_host(BuildOptions(refit=True), "tensorrt") == BuildOptions(
        refit=True
    )
    assert not list(preflight.missing(BuildOptions(), "tensorrt", "models", "out"))


def test_keywords_override_settings_and_unknown_ones_fail(
    models: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = Settings(precision="fp16", only=["small"])
    (result,) = build_repository(
        models, tmp_path / "out", settings, precision="tf32", isolate=False
    )
    facts = json.loads((tmp_path / "out" / "small" / "1" / "plan.json").read_text())
    assert result.ok and facts["precision"] == "tf32"
    with pytest.raises(TypeError, match="precison"):
        build_repository(models, tmp_path / "out", precison="fp16")
