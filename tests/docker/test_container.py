"""The server in a container has the outputs of the original modules, and is confined as specified
in docker-compose.yml.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.http

from .conftest import Container, composes, run

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1200)]

MODELS = ("residual_cnn", "silero_vad", "transformer_encoder", "two_tower")


def test_all_goldens_pass_over_both_protocols(container: Container) -> None:
    urls = ["--url", container.http_url, "--grpc-url", container.grpc_url]
    program = [
        Path(sys.executable).with_name("trt-build"),
        "verify",
        container.repository,
        *urls,
        "--json",
    ]
    process = subprocess.run(program, text=True, capture_output=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    models = {model["name"]: model for model in json.loads(process.stdout)["models"]}
    assert sorted(models) == sorted(MODELS)
    for model in models.values():
        assert model["answered_by"] == "torch"
        assert {"http", "grpc"} <= {result["protocol"] for result in model["results"]}


@pytest.mark.parametrize(
    "client", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"]
)
@pytest.mark.parametrize(("batch", "height", "width"), [(3, 61, 83), (7, 33, 160)])
def test_sizes_not_in_goldens_match_torch(
    container: Container,
    example_models: Path,
    client: object,
    batch: int,
    height: int,
    width: int,
) -> None:
    image = torch.randn(
        batch, 3, height, width, generator=torch.Generator().manual_seed(batch)
    )
    with torch.no_grad():
        expected = torch.jit.load(example_models / "residual_cnn.pt")(image).numpy()
    response = infer(client, container, image.numpy())
    np.testing.assert_allclose(response, expected, rtol=1e-4, atol=1e-5)


def infer(client: object, container: Container, image: np.ndarray) -> np.ndarray:
    url = container.http_url if client is tritonclient.http else container.grpc_url
    request = client.InferInput("image", list(image.shape), "FP32")
    request.set_data_from_numpy(image)
    connection = client.InferenceServerClient(url)
    try:
        return connection.infer("residual_cnn", [request]).as_numpy("logits")
    finally:
        connection.close()


def test_user_is_not_root_and_repository_is_read_only(container: Container) -> None:
    assert container.execute("id", "--user").stdout.strip() == "1000"
    assert "Read-only file system" in container.execute("touch", "/models/x").stderr


def test_only_tmp_is_writable_and_processes_are_limited(container: Container) -> None:
    for folder in ("/", "/home/triton", "/opt/trt-build"):
        assert container.execute("touch", f"{folder}/x").returncode != 0
    assert container.execute("touch", "/tmp/x").returncode == 0
    limits = container.inspect()["HostConfig"]
    assert limits["ReadonlyRootfs"] is True
    assert limits["PidsLimit"] == 4096


def test_ports_are_bound_to_loopback(container: Container) -> None:
    bindings = container.inspect()["NetworkSettings"]["Ports"]
    published = [binding for port in bindings.values() for binding in port or []]
    assert len(published) == 3
    assert {binding["HostIp"] for binding in published} == {"127.0.0.1"}


def test_build_mounts_are_not_in_the_image(container: Container) -> None:
    assert container.execute("ls", "/local").returncode != 0


def test_container_stops_cleanly(container: Container) -> None:
    """Docker's signal stops the container before the grace period ends.

    This must be the last test of the file.
    """
    run(["docker", "stop", container.id])
    state = container.inspect()["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)


@pytest.mark.parametrize("compose", composes(), ids=" ".join)
def test_gpu_profile_uses_triton_image_variable(compose: list[str]) -> None:
    config = run(
        [*compose, "--profile", "gpu", "config"],
        TRITON_IMAGE="nvcr.io/nvidia/tritonserver:24.10-py3",
    )
    assert "image: nvcr.io/nvidia/tritonserver:24.10-py3" in config
    assert "driver: nvidia" in config
    assert "/v2/health/ready" in config
