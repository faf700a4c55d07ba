"""Versions in a real server: two versions at once, an unknown version, and a rollback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from builder.manifest.spec import Versions
from builder.parity import verify
from builder.serving import FREE_PORTS, Server, serve
from builder.triton import history, publish
from builder.triton.artifact import ModelArtifact
from tests.parity.asserting import assert_passed
from tests.triton.artifacts import Raise, artifact, tensor

pytestmark = [pytest.mark.live, pytest.mark.slow]

Send = Callable[..., Any]


def net(offset: int, serve_versions: int) -> ModelArtifact:
    """A model that adds a number, so that an output shows the version."""
    versions = Versions(keep=3, serve=serve_versions)
    inputs = (tensor("x", "float32", "batch", 2),)
    model_artifact = artifact(
        Raise(offset), inputs, ("y",), name="net", serve_as="python"
    )
    return replace(model_artifact, spec=replace(model_artifact.spec, versions=versions))


@contextmanager
def connected(server: Server) -> Iterator[Send]:
    with closing(triton_http.InferenceServerClient(server.http_url)) as client:

        def send(version: int | str = "") -> float:
            tensor = triton_http.InferInput("x", [1, 2], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 2), "float32"))
            response = client.infer("net", [tensor], model_version=str(version))
            return float(response.as_numpy("y")[0, 0])

        send.load = client.load_model  # type: ignore[attr-defined]
        yield send


def test_served_versions_respond_and_others_are_refused(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "repository"
    for offset in (10, 20, 30):
        folder = publish(net(offset, 2), repository)
    (folder / "3").rename(folder / "9")  # a user may copy a version folder
    (folder / "3").symlink_to(folder / "9")
    with serve(repository, **FREE_PORTS) as server, connected(server) as send:
        assert (send(), send(3), send(2)) == (30, 30, 20)
        for missing in (1, 9):
            with pytest.raises(InferenceServerException):
                send(missing)


def test_damaged_earlier_version_is_not_loaded(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for offset in (10, 20):
        folder = publish(net(offset, 2), repository)
    file = folder / "1" / "lowered.pt"
    file.unlink()
    file.write_bytes((folder / "2" / "lowered.pt").read_bytes())
    refused = pytest.raises(
        InferenceServerException, match=r"1/lowered\.pt is not as it was published"
    )
    with (
        serve(repository, explicit=True, **FREE_PORTS) as server,
        connected(server) as send,
        refused,
    ):
        send.load("net")  # type: ignore[attr-defined]


def test_running_server_serves_the_version_after_a_rollback(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for offset in (10, 20):
        folder = publish(net(offset, 1), repository)
    running = serve(repository, explicit=True, models=["net"], **FREE_PORTS)
    with running as server, connected(server) as send:
        assert send() == 20
        history.rollback(folder, None)
        send.load("net")  # type: ignore[attr-defined]
        assert send() == 10
        (parity,) = verify(repository, server.http_url, server.grpc_url, repeat=0)
        assert_passed(parity)
        history.rollback(folder, 2)
        send.load("net")  # type: ignore[attr-defined]
        assert send() == 20
