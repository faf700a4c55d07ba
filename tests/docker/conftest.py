"""One container for all docker tests: the service that `repo` chose serves the examples."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import builder

ROOT = Path(__file__).parents[2]
READY_SECONDS = 180


@functools.cache
def composes() -> list[list[str]]:
    """The Compose commands of this machine: version 1, version 2, or both."""
    candidates = (["docker-compose"], ["docker", "compose"])
    return [
        command
        for command in candidates
        if shutil.which(command[0]) and _runs([*command, "version"])
    ]


def _runs(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(command: Sequence[str], **environment: str) -> str:
    """The standard output of a command. A failure has its standard error."""
    process = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, (
        f"{' '.join(command)}\n{process.stdout[-4000:]}\n{process.stderr[-4000:]}"
    )
    return process.stdout


@dataclass(frozen=True)
class Container:
    """The server in a container, with its addresses."""

    id: str
    repository: Path
    http_url: str
    grpc_url: str

    def inspect(self) -> dict[str, Any]:
        """`docker inspect`."""
        return json.loads(run(["docker", "inspect", self.id]))[0]

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container as its user."""
        return subprocess.run(
            ["docker", "exec", self.id, *command],
            text=True,
            capture_output=True,
            check=False,
        )


@pytest.fixture(scope="session")
def example_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("examples") / "models"
    run([sys.executable, str(ROOT / "examples" / "export.py"), "--out", str(models)])
    for manifest in (ROOT / "examples" / "models").glob("*.yaml"):
        shutil.copy(manifest, models)
    return models


@pytest.fixture(scope="session")
def repository(example_models: Path) -> Path:
    out = example_models.parent / "model_repository"
    results = builder.build_repository(
        example_models, out, serve_as="python", write_env=True
    )
    assert {result.name: result.error for result in results if not result.ok} == {}
    return out


@pytest.fixture(scope="session")
def container(repository: Path) -> Iterator[Container]:
    """A healthy container, started by `up` and removed after the tests."""
    project = f"trt-build-test-{os.getpid()}"
    env = str(repository.parent / ".env")  # has the profile
    compose = [*composes()[0], "--project-name", project, "--env-file", env]
    http, grpc, metrics = free_ports(3)
    settings = {
        "HTTP_PORT": http,
        "GRPC_PORT": grpc,
        "METRICS_PORT": metrics,
        "MODEL_REPOSITORY": str(repository),
    }
    try:
        run([*compose, "up", "--detach", "--build"], **settings)
        identity = run([*compose, "ps", "--quiet", "triton-cpu"], **settings).strip()
        served = Container(
            identity, repository, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        )
        wait_healthy(served)
        yield served
    finally:
        run([*compose, "down", "--volumes"], **settings)


def wait_healthy(served: Container) -> None:
    """Wait until Docker's health check passes."""
    deadline = time.monotonic() + READY_SECONDS
    while (state := served.inspect()["State"])["Health"]["Status"] != "healthy":
        logs = subprocess.run(
            ["docker", "logs", served.id], text=True, capture_output=True, check=False
        )
        assert state["Running"] and time.monotonic() < deadline, (
            f"{state}\n{logs.stdout}\n{logs.stderr}"
        )
        time.sleep(1)


def free_ports(count: int) -> list[str]:
    """Unused ports of the loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(socket_.getsockname()[1]) for socket_ in sockets]
    for socket_ in sockets:
        socket_.close()
    return ports
