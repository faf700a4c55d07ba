"""Torch steps for Triton's PyTorch backend, which the test servers lack.

Triton's parser and validator check the configs; torch runs the files on every golden.
"""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient.grpc import model_config_pb2 as pb

from builder import engine
from builder.engine.build import plan_facts
from builder.errors import PublishError, UsageError
from builder.lowering import lower
from builder.parity.served import PublishedModel, read
from builder.partition import cost
from builder.pipeline import libtorch
from builder.repository import ModelResult, build_repository
from builder.triton import IO
from tests.conversion import old
from tests.repository import networks
from tests.serving.judge import judging
from tests.triton.artifacts import artifact, tensor

MODELS = ["gated", "crossings", "salient", "watermarked"]
"""Boundary tensors of `gated` are a 0-d bool; those of `crossings` also 0-d float and int64."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    networks.write(folder, MODELS)
    return folder


@pytest.fixture(scope="module")
def built(models: Path) -> dict[str, ModelResult]:
    out = models.parent / f"{models.name}-out"
    results = build_repository(
        models, out, layout="ensemble", torch_steps="pytorch", isolate=False
    )
    return {result.name: result for result in results}


def steps(built: dict[str, ModelResult]) -> list[PublishedModel]:
    folders = {result.path.parent for result in built.values() if result.path}
    return [
        read(path) for folder in folders for path in sorted(folder.glob("*.torch.*"))
    ]


def test_step_tensors_are_named_by_position(
    built: dict[str, ModelResult],
) -> None:
    torch_steps = steps(built)
    assert [networks.base(step.name) for step in torch_steps] == [
        "crossings.1.torch",
        "gated.1.torch",
        "salient.1.torch",
    ]
    for step in torch_steps:
        config = step.config
        assert (config.backend, config.platform, config.default_model_filename) == (
            "pytorch",
            "pytorch_libtorch",
            "model.pt",
        )
        assert [t.name for t in config.input] == [
            f"INPUT__{i}" for i in range(len(config.input))
        ]
        assert [t.name for t in config.output] == [
            f"OUTPUT__{i}" for i in range(len(config.output))
        ]
        whole = read(step.folder.parent / step.name.split(".")[0]).config
        (entry,) = [
            s for s in whole.ensemble_scheduling.step if s.model_name == step.name
        ]
        assert set(entry.input_map) == {t.name for t in config.input}
        assert not any(
            "__" in name
            for name in (*entry.input_map.values(), *entry.output_map.values())
        )


def test_step_files_match_the_goldens(
    built: dict[str, ModelResult],
) -> None:
    for step in steps(built):
        module = torch.jit.load(str(step.folder / "1" / "model.pt"))
        for golden in map(step.wire, step.goldens):
            outputs = module(
                *(torch.from_numpy(np.array(array)) for array in golden.inputs.values())
            )
            for output, (name, expected) in zip(
                outputs, golden.outputs.items(), strict=True
            ):
                assert (tuple(output.shape), output.numpy().dtype) == (
                    expected.shape,
                    expected.dtype,
                ), (step.name, name)
                np.testing.assert_allclose(
                    output.numpy(), expected, rtol=1e-5, atol=1e-6
                )


@pytest.mark.live
def test_triton_accepts_configs_up_to_the_missing_backend(
    built: dict[str, ModelResult],
) -> None:
    with judging() as judge:
        for step in steps(built):
            text = (step.folder / "config.pbtxt").read_text()
            assert judge(text) is None, step.name
            assert (
                "dimension must be integer"
                in str(judge(text.replace("dims: 8", "dims: 0", 1)))
                or "dims: 8" not in text
            )


class FallbackCnn(torch.nn.Module):
    """A CNN after an operator that only torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Conv2d(2, 2, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cnn(torch.special.bessel_j0(x))


@pytest.mark.parametrize("tf32", [False, True])
def test_saved_convolutions_state_whether_tf32_is_allowed(tf32: bool) -> None:
    """The PyTorch backend keeps torch's default for cuDNN, which allows TF32."""
    lowered = lower(torch.jit.script(FallbackCnn().eval()))
    ios = (IO("x", "float32", (1, 1, 8, 8)),), (IO("y", "float32", (1, 2, 4, 4)),)
    graph = torch.jit.load(io.BytesIO(libtorch.saved(lowered, *ios, tf32=tf32))).graph
    assert [
        node.inputsAt(12).toIValue()
        for node in graph.findAllNodes("aten::_convolution")
    ] == [tf32] * 2


@pytest.mark.parametrize(
    ("precision", "reason"),
    [("fp32", "aten::conv2d would round its operands"), ("tf32", None)],
)
def test_steps_with_unrequested_tf32_use_the_python_runtime(
    precision: str, reason: str | None
) -> None:
    """Modules kept in torch are not rewritten, so their convolutions cannot disable TF32."""
    module = FallbackCnn().eval()
    step = artifact(
        module, (tensor("x", "float32", 1, 1, 8, 8),), ("y",), precision=precision
    )
    message = libtorch.why_not(
        step, lower(torch.jit.script(module), fallback_modules=["cnn"])
    )
    assert (message is None) if reason is None else reason in str(message)
    assert libtorch.why_not(step, lower(torch.jit.script(module))) is None


def test_unsupported_step_is_reported_and_auto_uses_python(
    built: dict[str, ModelResult], models: Path, tmp_path: Path
) -> None:
    refused = built["watermarked"]
    assert isinstance(refused.error, UsageError) and "custom operators" in str(
        refused.error
    )
    (result,) = build_repository(
        models, tmp_path / "out", layout="ensemble", only=["watermarked"], isolate=False
    )
    assert (
        result.ok
        and read(networks.step(tmp_path / "out", "watermarked.1.torch")).config.backend
        == "python"
    )


def fake_plan(conversion: Any, options: Any, report: Any) -> engine.Plan:
    """A fake plan whose config looks like one for Triton's TensorRT backend."""
    facts = plan_facts(conversion, options, b"plan", 0.0)
    return engine.Plan(b"plan", {**facts, "flavor": "tensorrt", "tensorrt": "8.6.0"})


@pytest.mark.parametrize("dialect", ["8.6", "newer"])
@pytest.mark.live
def test_scalar_boundary_tensor_has_one_axis_for_tensorrt(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    """The TensorRT backend lacks scalar tensors, and `salient` has one; the plans are fake."""

    monkeypatch.setattr(engine, "build", fake_plan)
    with old.playing() if dialect == "8.6" else nullcontext():
        (result,) = build_repository(
            models, tmp_path / "out", layout="ensemble", only=["salient"], isolate=False
        )
    assert result.ok, result.error
    folders = {networks.base(path.name): path for path in (tmp_path / "out").iterdir()}
    configs = {name: read(path).config for name, path in folders.items()}
    backends = {
        name: config.backend or config.platform for name, config in configs.items()
    }
    assert backends == {
        "salient": "ensemble",
        "salient.0.tensorrt": "tensorrt",
        "salient.1.torch": "pytorch",
        "salient.2.tensorrt": "tensorrt",
    }
    (number,) = (t for t in configs["salient.2.tensorrt"].input if len(t.dims) == 1)
    assert list(number.dims) == list(configs["salient.1.torch"].output[0].dims) == [1]
    last = read(folders["salient.2.tensorrt"])
    assert {golden.inputs[number.name].shape for golden in last.goldens} == {(1,)}
    with judging() as judge:
        for name in set(configs) - {"salient"}:
            assert judge((folders[name] / "config.pbtxt").read_text()) is None, name


INTEGERS = ["gated", "decoder"]
"""Ensembles whose torch steps read or create int64, which TensorRT 8.6 lacks."""


@pytest.mark.parametrize(
    "steps", ["pytorch", pytest.param("python", marks=pytest.mark.slow)]
)
def test_torch_steps_use_the_integer_types_of_adjacent_engines(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    """Triton requires the same element type on both sides of a boundary tensor."""
    monkeypatch.setattr(engine, "build", fake_plan)
    (tmp_path / "models").mkdir()
    networks.write(tmp_path / "models", INTEGERS)
    with old.playing():
        results = build_repository(
            tmp_path / "models",
            tmp_path / "out",
            layout="ensemble",
            torch_steps=steps,
            isolate=False,
        )
    for result in results:
        assert result.ok, result.error
    folders = sorted((tmp_path / "out").glob("*.torch*"))
    narrowed = 0
    for step in map(read, folders):
        declared = {
            t.name: t.data_type for t in (*step.config.input, *step.config.output)
        }
        narrowed += pb.TYPE_INT32 in declared.values()
        module = torch.jit.load(str(next((step.folder / "1").glob("*.pt"))))
        assert step.goldens
        for golden in map(step.wire, step.goldens):
            outputs = module(
                *(torch.from_numpy(np.array(a)) for a in golden.inputs.values())
            )
            for output, expected in zip(outputs, golden.outputs.values(), strict=True):
                assert output.numpy().dtype == expected.dtype, step.name
                np.testing.assert_allclose(
                    output.numpy(), expected, rtol=1e-5, atol=1e-6
                )
    assert narrowed


def test_invalid_ensemble_is_fused_unless_requested(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without casts at the graph breaks, the ids of `gated` have different element types."""
    monkeypatch.setattr(engine, "build", fake_plan)
    monkeypatch.setattr(cost, "STEP_SHARE", float("inf"))
    monkeypatch.setattr("builder.pipeline.narrowed.at_boundaries", lambda model: model)
    settings = {"only": ["gated"], "isolate": False}
    with old.playing():
        (auto,) = build_repository(models, tmp_path / "auto", **settings)
        (requested,) = build_repository(
            models, tmp_path / "requested", layout="ensemble", **settings
        )
    assert (auto.ok, auto.layout) == (
        True,
        "fused",
    ) and "inconsistent data type" in str(auto.layout_reason)
    assert isinstance(
        requested.error, PublishError
    ) and "inconsistent data type" in str(requested.error)


@pytest.mark.parametrize("has_backend", [True, False])
def test_auto_looks_for_the_pytorch_backend_of_the_server(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_backend: bool
) -> None:
    server = tmp_path / "server" / "tritonserver"
    backends = ("python", "tensorrt", *(["pytorch"] if has_backend else []))
    for name in backends:
        (server.parent / "backends" / name).mkdir(parents=True)
    server.touch()
    monkeypatch.setenv("TRT_BUILD_TRITONSERVER", str(server))
    monkeypatch.setattr(engine, "build", fake_plan)
    (result,) = build_repository(
        models, tmp_path / "out", layout="ensemble", only=["salient"], isolate=False
    )
    assert result.ok, result.error
    config = read(networks.step(tmp_path / "out", "salient.1.torch")).config
    assert config.backend == ("pytorch" if has_backend else "python")
    assert ("has no PyTorch backend" in str(result.layout_reason)) is not has_backend
