"""The Python runtime on a GPU: plans run in each profile, and torch replaces an unusable plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.engine import capabilities, flavor
from builder.engine.flavor import trt
from builder.lowering import lower
from builder.parity import verify
from builder.serving import FREE_PORTS, Server, serve
from builder.triton import ModelArtifact, publish
from tests.parity.asserting import TWO_PROFILES, assert_passed
from tests.serving import fakes
from tests.triton.artifacts import artifact, tensor

pytestmark = [pytest.mark.gpu, pytest.mark.live]

PROFILES = ({"batch": (1, 1, 1)}, {"batch": (2, 4, 8)})


class Squares(torch.nn.Module):
    """A module with int64 outputs, which TensorRT 8.6 computes as int32 and the endpoint widens."""

    def forward(
        self, x: torch.Tensor, n: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x * x + x, n + n, x.sum(1)


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


def squares(**more: Any) -> ModelArtifact:
    inputs = (tensor("x", "float32", "batch", 3), tensor("n", "int64", "batch", 2))
    return artifact(
        Squares(),
        inputs,
        ("y", "twice", "sum"),
        serve_as="python",
        profiles=PROFILES,
        **more,
    )


def plan_of_squares() -> bytes:
    """The plan of `Squares`, built with TensorRT's API."""
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(1 << int(explicit) if explicit is not None else 0)
    x = network.add_input("x", trt.float32, (-1, 3))
    n = network.add_input(
        "n", trt.int64 if capabilities.current().has_int64 else trt.int32, (-1, 2)
    )
    square = network.add_elementwise(x, x, trt.ElementWiseOperation.PROD).get_output(0)
    outputs = {
        "y": network.add_elementwise(
            square, x, trt.ElementWiseOperation.SUM
        ).get_output(0),
        "twice": network.add_elementwise(n, n, trt.ElementWiseOperation.SUM).get_output(
            0
        ),
        "sum": network.add_reduce(x, trt.ReduceOperation.SUM, 1 << 1, False).get_output(
            0
        ),
    }
    for name, output in outputs.items():
        output.name = name
        network.mark_output(output)
    config = builder.create_builder_config()
    for profile in PROFILES:
        shapes = builder.create_optimization_profile()
        for name, width in (("x", 3), ("n", 2)):
            shapes.set_shape(name, *((size, width) for size in profile["batch"]))
        config.add_optimization_profile(shapes)
    return bytes(builder.build_serialized_network(network, config))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("gpu") / "repository"
    facts = {"flavor": flavor.name(), "tensorrt": trt.__version__}
    publish(squares(name="squares", plan=plan_of_squares(), facts=facts), repository)
    publish(squares(name="garbage", plan=b"not a plan", facts=facts), repository)
    publish(squares(name="unbuilt", facts=facts), repository)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serve(repository, **FREE_PORTS) as running:
        yield running


def test_plan_runs_in_every_profile_over_both_protocols(
    repository: Path, server: Server
) -> None:
    (parity,) = verify(repository, server.http_url, server.grpc_url, ["squares"])
    assert_passed(parity)
    assert (parity.answered_by, parity.device) == ("plan", "cuda:0"), parity.why
    assert {r.golden for r in parity.results} >= TWO_PROFILES
    assert any(r.protocol == "grpc x16" for r in parity.results)


@pytest.mark.parametrize(
    ("name", "why"), [("garbage", "refused the plan"), ("unbuilt", "no plan was built")]
)
def test_torch_runs_the_model_without_a_usable_plan(
    repository: Path, server: Server, name: str, why: str
) -> None:
    (parity,) = verify(repository, server.http_url, server.grpc_url, [name])
    assert parity.passed and (parity.answered_by, parity.device) == ("torch", "cpu")
    assert why in (parity.why or "")


def test_instance_of_kind_cpu_runs_in_torch(repository: Path, tmp_path: Path) -> None:
    facts = {"flavor": flavor.name(), "tensorrt": trt.__version__}
    model = squares(name="squares", plan=plan_of_squares(), facts=facts)
    section = {"instance_group": [{"kind": "KIND_CPU", "count": 1}]}
    model = replace(model, spec=replace(model.spec, triton=section))
    publish(model, tmp_path / "repository")
    with serve(tmp_path / "repository", **FREE_PORTS) as server:
        (parity,) = verify(tmp_path / "repository", server.http_url, None)
    assert (
        parity.passed
        and parity.answered_by == "torch"
        and "KIND_CPU" in (parity.why or "")
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_torch_on_the_gpu_uses_tf32_only_if_requested(
    tmp_path: Path, precision: str
) -> None:
    """The relative error of float32 is 1e-7, that of TF32 is 3e-4."""
    _, modules = fakes.runtime()
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64 * 36, 64)
    ).eval()
    lower(torch.jit.script(module)).save(tmp_path / "segment_0.pt")
    x = torch.randn(32, 64, 8, 8)
    exact = module.double()(x.double()).detach()
    matmul, cudnn = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )
    try:
        tf32 = modules["options"].tf32({"precision": precision})
        executor = modules["by_torch"].TorchExecutor(
            tmp_path / "segment_0.pt", "", "cuda:0", tf32
        )
        (response,) = executor.run([x.cuda()])
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = (
            matmul,
            cudnn,
        )
    noise = ((response.cpu().double() - exact).norm() / exact.norm()).item()
    assert noise < 1e-5 if precision == "fp32" else 1e-5 < noise < 2e-3, noise


def test_operator_without_a_cuda_kernel_runs_on_the_cpu(tmp_path: Path) -> None:
    """CUDA has no product of matrices of bytes."""
    _, modules = fakes.runtime()
    lower(torch.jit.script(Product())).save(tmp_path / "step.pt")
    executor = modules["by_torch"].TorchExecutor(tmp_path / "step.pt", "", "cuda:0")
    x = torch.randint(0, 5, (4, 4), dtype=torch.uint8)
    for _ in range(2):
        (response,) = executor.run([x.cuda()])
        assert response.is_cuda
        assert torch.equal(response.cpu(), x @ x)


def test_outputs_are_correct_when_buffers_are_reused(server: Server) -> None:
    from builder.parity.clients import GrpcClient

    client = GrpcClient(server.grpc_url, 30)
    sizes = (8, 1, 5, 2, 8, 3)
    inputs = [
        {
            "x": np.full((size, 3), number, np.float32),
            "n": np.full((size, 2), number, np.int64),
        }
        for number, size in enumerate(sizes, 1)
    ]
    outputs = [client.infer("squares", one).outputs for one in inputs]
    client.close()
    for number, response in enumerate(outputs, 1):
        assert (response["y"] == number * number + number).all() and (
            response["twice"] == 2 * number
        ).all()
        assert response["twice"].dtype == np.int64
