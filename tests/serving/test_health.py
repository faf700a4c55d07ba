"""`trt-build health` against real servers: healthy models, dead processes, wrong outputs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from builder.cli import main
from builder.serving import FREE_PORTS, Server, serve
from builder.serving.stubs import Stubs
from builder.store import published
from builder.triton import publish
from tests.triton.artifacts import pair, scorer

pytestmark = [pytest.mark.live, pytest.mark.slow]


def health(repository: Path, server: Server, *more: object) -> Result:
    words = [
        "health",
        repository,
        "--url",
        server.http_url,
        "--grpc-url",
        server.grpc_url,
        *more,
    ]
    return CliRunner().invoke(
        main, [str(word) for word in words], catch_exceptions=False
    )


def test_dead_process_is_reported_with_its_model(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish(scorer(), repository)
    publish(scorer(name="other"), repository)
    publish(pair(1), repository)
    with serve(repository, **FREE_PORTS) as server:
        healthy = health(repository, server)
        assert healthy.exit_code == 0 and "3 of 3 models are healthy" in healthy.output
        stubs = Stubs(server.process.pid)
        stubs.dead()
        dead = next(pid for pid, model in stubs.models.items() if model == "other")
        os.kill(dead, signal.SIGKILL)
        unhealthy = health(repository, server, "--timeout", 20)
        assert server.ready(), "Triton reports no problem"
        assert (
            unhealthy.exit_code == 4 and "UNHEALTHY other, http: " in unhealthy.output
        )
        assert (
            "UNHEALTHY other, grpc: " in unhealthy.output
            and "2 of 3 models" in unhealthy.output
        )
        assert health(repository, server, "--only", "scorer").exit_code == 0
        unknown = health(repository, server, "--only", "othr")
        assert (
            unknown.exit_code == 2
            and "fix:   use one of other, pair, scorer\n" in unknown.output
        )
    stopped = health(repository, server)
    assert stopped.exit_code == 4 and "no Triton server responds" in stopped.output


def test_wrong_output_exits_with_3(valid_repository: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(valid_repository, repository)
    for file in (repository / "scorer" / "goldens").iterdir():
        with np.load(file) as arrays:
            changed = {
                key: array + 1 if key.startswith("output") else array
                for key, array in arrays.items()
            }
        np.savez(file.with_suffix(""), **changed)
    with serve(valid_repository, **FREE_PORTS) as server:
        wrong = health(repository, server, "--json")
        record = json.loads(wrong.stdout)
        assert wrong.exit_code == 3 and not record["healthy"]
        assert [one["wrong"] for one in record["models"]] == [True, True]


def test_damaged_files_are_not_a_defect(valid_repository: Path, tmp_path: Path) -> None:
    """Found by `python -m tests.hostile`: scalars as goldens, deep JSON, a tolerance of lists."""
    scalars, deep, lists = (tmp_path / name for name in ("scalars", "deep", "lists"))
    for repository in (scalars, deep, lists):
        shutil.copytree(valid_repository, repository)
    for file in (scalars / "scorer" / "goldens").iterdir():
        with np.load(file) as arrays:
            np.savez(file.with_suffix(""), **{key: np.float32(0) for key in arrays})
    (deep / "scorer" / published.SIDECAR).write_text("[" * 100_000)
    record = published.read(lists / "scorer" / published.SIDECAR)
    record["tolerance"] = {"atol": []}
    (lists / "scorer" / published.SIDECAR).write_text(json.dumps(record))
    with serve(valid_repository, **FREE_PORTS) as server:
        for repository in (scalars, deep):
            assert health(repository, server).exit_code == 0, "the model is ready"
        result = health(lists, server)
    assert result.exit_code == 3 and "the response cannot be compared" in result.output


def test_model_missing_in_the_server_is_unhealthy(
    valid_repository: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(valid_repository, repository)
    with serve(repository, **FREE_PORTS) as server:
        publish(scorer(name="later"), repository)
        missing = health(repository, server)
        assert missing.exit_code == 4 and "UNHEALTHY later, http: " in missing.output
        assert published.versions(repository / "later")


def test_missing_address_is_a_usage_error(valid_repository: Path) -> None:
    result = CliRunner().invoke(main, ["health", str(valid_repository)])
    assert result.exit_code == 2 and "--url HOST:PORT" in result.output
