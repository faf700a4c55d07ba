"""`default` of an input in the manifest: requests without the input get the outputs for the default
value, alone and in one batch with other requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from builder.bench import job
from builder.errors import ManifestError, PublishError, UsageError
from builder.manifest import load
from builder.parity import verify
from builder.parity.served import read as served_model
from builder.repository import build_repository
from builder.serving import Server
from builder.triton import check, config, goldens, read_config
from tests.repository import test_padding
from tests.repository.conftest import Built
from tests.repository.test_padding import served
from tests.serving import fakes
from tests.triton.artifacts import artifact, tensor

MASKED = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, length]}
  - {name: mask, dtype: bool, shape: [batch, length], default: true}
  - {name: gain, dtype: float32, shape: [batch, 2], default: [1.5, -2]}
dims:
  batch: {min: 1, opt: 4, max: 16}
  length: {min: 1, opt: 6, max: 12}
batching: {max_queue_delay_us: 200000}
"""
SCALED = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 3]}
  - {name: scale, dtype: float32, shape: [], default: VALUE}
dims: {batch: {min: 1, opt: 4, max: 16}}
"""
BIASED = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 3]}
  - {name: bias, dtype: float32, shape: [batch, 3], default: VALUE}
dims: {batch: {min: 1, opt: 4, max: 16}}
"""


class Masked(nn.Module):
    """The masked sum of each row times two gains."""

    def forward(self, x: Tensor, mask: Tensor, gain: Tensor) -> Tensor:
        return (x * mask.to(x.dtype)).sum(1, keepdim=True) * gain


class Scaled(nn.Module):
    """A model with a number as argument, which has a default."""

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return x * scale + 1


class Biased(nn.Module):
    """A model whose output without the optional argument differs from that for zeros."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            return x.abs()
        return x + bias


class Salient(nn.Module):
    """A model that TensorRT runs only in part."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(3, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = torch.relu(self.before(x)) + 0.1
        distinct = torch.unique(torch.masked_select(y, y > 0.2))
        y = self.after(y + distinct.sum() / 100)
        return y if bias is None else y + bias.sum()


MODELS: Mapping[str, tuple[type[nn.Module], str]] = {
    "masked": (Masked, MASKED),
    "scaled": (Scaled, SCALED.replace("VALUE", "2.0")),
    "other": (Scaled, SCALED.replace("VALUE", "0.5")),
    "biased": (Biased, BIASED.replace("VALUE", "0")),
    "salient": (Salient, BIASED.replace("VALUE", "[0.5, 1, 2]")),
    "half": (Masked, MASKED + "io: fp16\n"),
    "half_scaled": (Scaled, SCALED.replace("VALUE", "2.0") + "io: fp16\n"),
}


def write(folder: Path) -> Path:
    torch.manual_seed(0)
    folder.mkdir()
    for name, (made, manifest) in MODELS.items():
        torch.jit.script(made().eval()).save(str(folder / f"{name}.pt"))
        (folder / f"{name}.yaml").write_text(manifest)
    return folder


def test_config_marks_optional_inputs(built: Built) -> None:
    repository, results = built
    assert all(result.ok for result in results.values())
    for name in results:
        file = repository / name / "config.pbtxt"
        config = read_config(file)
        required, *optional = config.input
        assert config.backend == "python"
        assert not required.optional
        assert all(tensor.optional for tensor in optional)
    record = json.loads((repository / "masked/trt-build.json").read_text())
    stated = {one["name"]: one.get("default") for one in record["inputs"]}
    assert stated == {"x": None, "mask": True, "gain": [1.5, -2]}


def test_goldens_omit_each_optional_input(built: Built) -> None:
    recorded = {one.name: one for one in goldens.load(built[0] / "masked/goldens")}
    omitted = {name: one.omitted for name, one in recorded.items() if one.omitted}
    assert omitted == {
        "p0-without-mask": ("mask",),
        "p0-without-gain": ("gain",),
        "p0-defaults": ("mask", "gain"),
    }
    module = torch.jit.load(str(built[0].parent / "models/masked.pt"))
    golden = recorded["p0-defaults"]
    x = torch.from_numpy(golden.inputs["x"])
    expected = module(
        x, torch.ones(x.shape, dtype=torch.bool), torch.tensor([1.5, -2.0])
    )
    np.testing.assert_array_equal(golden.outputs["output"], expected.numpy())


def test_default_that_differs_from_forward_is_a_warning(built: Built) -> None:
    warned = {
        name: [text for text in result.warnings if "forward's own" in text]
        for name, result in built[1].items()
    }
    assert not warned["scaled"] and not warned["half_scaled"]
    assert "0.5" in warned["other"][0]
    assert "2.0" in warned["other"][0]
    assert "None" in warned["biased"][0]


def test_requests_with_and_without_the_input_are_one_batch(built: Built) -> None:
    repository, _ = built
    runtime, runs = served(repository / "masked", 16)
    module = torch.jit.load(str(repository.parent / "models/masked.pt"))
    x = torch.randn(6, 5)
    mask, gain = torch.rand(2, 5) > 0.5, torch.randn(1, 2)
    sent = [{"x": x[:2], "mask": mask}, {"x": x[2:3], "gain": gain}, {"x": x[3:]}]
    refused = {"mask": mask}
    *found, error = runtime.execute(
        [fakes.Request(["output"], **one) for one in [*sent, refused]]
    )
    assert runs == [(6, 5)]
    every = torch.ones(6, 5, dtype=torch.bool)
    default_gain = torch.tensor([1.5, -2.0]).expand(6, 2)
    expected = [
        module(x[:2], mask, default_gain[:2]),
        module(x[2:3], every[:1], gain),
        module(x[3:], every[:3], default_gain[:3]),
    ]
    for response, expected_output in zip(found, expected, strict=True):
        torch.testing.assert_close(response.tensors["output"], expected_output)
    assert "input 'x' is missing" in error.error


@pytest.mark.slow
def test_default_inputs_are_padded_like_sent_inputs(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    torch.manual_seed(0)
    torch.jit.script(test_padding.Encoder().eval()).save(str(models / "net.pt"))
    text = test_padding.MANIFEST.replace(
        "bool, shape: [batch, length]", "bool, shape: [batch, length], default: true"
    )
    (models / "net.yaml").write_text(text)
    (result,) = build_repository(models, tmp_path / "repository")
    assert result.ok and not any("`pad`" in text for text in result.warnings)
    runtime, runs = served(tmp_path / "repository/net", 16)
    module = torch.jit.load(str(models / "net.pt"))
    outputs = ["output_0", "output_1"]
    sent = [torch.randint(1, 40, (rows, length)) for rows, length in ((2, 3), (1, 9))]
    responses = runtime.execute([fakes.Request(outputs, ids=ids) for ids in sent])
    assert runs == [(3, 9)]
    for ids, response in zip(sent, responses, strict=True):
        expected = module(ids, torch.ones(ids.shape, dtype=torch.bool))
        for name, expected_output in zip(outputs, expected, strict=True):
            torch.testing.assert_close(
                response.tensors[name], expected_output, rtol=1e-4, atol=1e-5
            )


def test_exported_program_may_have_an_optional_input(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    batch = torch.export.Dim("batch", min=1, max=16)
    example = (torch.randn(4, 3), torch.randn(4, 3))
    program = torch.export.export(
        Biased(), example, dynamic_shapes=({0: batch}, {0: batch})
    )
    torch.export.save(program, models / "net.pt2")
    (models / "net.yaml").write_text(BIASED.replace("VALUE", "[1, 2, 3]"))
    (result,) = build_repository(models, tmp_path / "repository")
    assert result.ok
    by_name = {
        one.name: one for one in goldens.load(tmp_path / "repository/net/goldens")
    }
    golden = by_name["p0-without-bias"]
    np.testing.assert_array_equal(
        golden.outputs["output"], golden.inputs["x"] + np.array([1, 2, 3], "float32")
    )


def test_defaults_need_the_python_runtime(built: Built, tmp_path: Path) -> None:
    models = built[0].parent / "models"
    inputs = (tensor("x", "float32", "batch", 2), tensor("bias", "float32", "batch", 2))
    plan = artifact(
        Biased(), inputs, ("z",), serve_as="tensorrt_plan", defaults={"bias": 1}
    )
    with pytest.raises(
        PublishError, match="only the Python runtime fills in missing inputs"
    ):
        config(plan)
    assert built[1]["salient"].layout == "fused"
    (partitioned,) = build_repository(
        models, tmp_path, only=["salient"], layout="ensemble"
    )
    assert "`default` needs one process" in str(partitioned.error)


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        (
            "default: true",
            "default: 1",
            3,
            r"inputs\[1\].default: 1 is not true or false",
        ),
        ("[1.5, -2]", "[1.5, true]", 4, "true is not a number"),
        ("[1.5, -2]", "[1.5]", 4, "has 1 elements, and the input has 2 elements"),
        ("[1.5, -2]", "1e39", 4, "beyond the range of float32"),
        ("[1.5, -2]", "[]", 4, "is empty"),
        ("[1.5, -2]", "fast", 4, "must be a number or true or false or a list"),
        (
            "[batch, 2], default: [1.5, -2]",
            "[batch, n], default: 1",
            4,
            "axis 'n' of an optional",
        ),
        (
            "[batch, length]}",
            "[batch, length], default: 0}",
            2,
            "every input has a default",
        ),
        ("dims:", "io: fp16\ndims:", 4, "70000 is beyond the range of float16"),
        (
            "dims:",
            "state: [{input: gain, output: y}]\ndims:",
            3,
            "a model without state",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_default_is_reported(
    tmp_path: Path, before: str, after: str, line: int, message: str
) -> None:
    text = MASKED.replace(before, after, 1)
    if "fp16" in after:
        text = text.replace("[1.5, -2]", "7e4")
        message = message.replace("70000", "70000.0")
    if "[batch, n]" in after:
        text = text.replace("dims:\n", "dims:\n  n: {min: 1, opt: 2, max: 3}\n")
    (tmp_path / "net.pt").touch()
    (tmp_path / "net.yaml").write_text(text)
    with pytest.raises(ManifestError, match=message) as caught:
        load(tmp_path)
    assert line in [mistake.line for mistake in caught.value.mistakes]


def test_user_goldens_may_omit_an_optional_input(tmp_path: Path) -> None:
    models, x = tmp_path / "models", np.array([[1, -2, 3]], "float32")
    models.mkdir()
    torch.jit.script(Scaled()).save(str(models / "net.pt"))
    (models / "net.yaml").write_text(
        SCALED.replace("VALUE", "0.5") + "goldens: own.npz\n"
    )
    np.savez(models / "own.npz", **{"0/x": x, "1/x": x, "1/scale": np.float32(4)})
    (result,) = build_repository(models, tmp_path / "repository")
    assert result.ok
    by_name = {
        one.name: one for one in goldens.load(tmp_path / "repository/net/goldens")
    }
    assert by_name["user-0"].omitted == ("scale",)
    assert not by_name["user-1"].omitted
    np.testing.assert_array_equal(by_name["user-0"].outputs["output"], x / 2 + 1)


def test_bench_accepts_requests_without_the_input(built: Built, tmp_path: Path) -> None:
    model, file = served_model(built[0] / "masked"), tmp_path / "requests.npz"
    x = np.zeros((2, 5), "float32")
    np.savez(file, **{"0/x": x, "1/x": x, "1/mask": x > 0})
    assert [list(one.inputs) for (one,) in job.requests(model, file)] == [
        ["x"],
        ["x", "mask"],
    ]
    np.savez(file, mask=x > 0)
    with pytest.raises(
        UsageError, match="the file has other arrays than the model's inputs: mask"
    ):
        job.requests(model, file)


def test_optional_input_needs_a_default() -> None:
    inputs = (tensor("x", "float32", "batch", 2), tensor("bias", "float32", "batch", 2))
    model_artifact = artifact(
        Biased(), inputs, ("z",), serve_as="python", defaults={"bias": 1}
    )
    message = config(model_artifact)
    assert [one.optional for one in message.input] == [False, True]
    message.input[0].optional = True
    with pytest.raises(
        PublishError, match="input 'x' is optional, and the manifest has no default"
    ):
        check.validate(message, model_artifact)


@pytest.mark.live
@pytest.mark.slow
def test_verify_sends_requests_without_the_input(built: Built, server: Server) -> None:
    results = verify(built[0], server.http_url, server.grpc_url, repeat=0)
    assert {model.name: model.passed for model in results} == dict.fromkeys(
        MODELS, True
    )
    sent = {
        (result.golden, result.protocol)
        for model in results
        for result in model.results
    }
    assert {("p0-without-mask", "http"), ("p0-without-mask", "grpc")} <= sent


@pytest.mark.live
@pytest.mark.slow
def test_server_accepts_requests_with_and_without_the_input(
    built: Built, server: Server
) -> None:
    module = torch.jit.load(str(built[0].parent / "models/masked.pt"))

    def check_response(number: int) -> None:
        random = np.random.default_rng(number)
        x = random.standard_normal((1 + number % 3, 5)).astype("float32")
        mask = random.random(x.shape) > 0.5
        default_gain = torch.tensor([1.5, -2.0]).expand(len(x), 2)
        inputs = [grpc.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x)]
        if number % 2:
            inputs.append(
                grpc.InferInput("mask", list(x.shape), "BOOL").set_data_from_numpy(mask)
            )
        sent = torch.from_numpy(mask if number % 2 else np.ones_like(mask))
        with grpc.InferenceServerClient(server.grpc_url) as client:
            output = client.infer("masked", inputs).as_numpy("output")
        expected = module(torch.from_numpy(x), sent, default_gain).numpy()
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(check_response, range(64)))
    gain = http.InferInput("gain", [1, 2], "FP32").set_data_from_numpy(
        np.ones((1, 2), "float32")
    )
    with (
        http.InferenceServerClient(server.http_url) as client,
        pytest.raises(InferenceServerException, match=r"input 'x'|expected .* inputs"),
    ):
        client.infer("masked", [gain])
