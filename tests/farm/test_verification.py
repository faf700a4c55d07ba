"""Built models are verified by a server on the same machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from builder import serving
from builder.engine import flavor
from builder.errors import EnvironmentProblem, ServerError
from builder.farm import remote, verification
from builder.farm.job import Job
from builder.farm.task import VERIFIED, perform
from builder.parity import GoldenResult, ModelParity
from builder.serving import Installation
from tests.farm.test_remote import job_of

HERE = Installation(Path("/bin/tritonserver"), "path")


def ended(job: Job) -> dict[str, Any]:
    return perform(job, lambda event: None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tritonserver that reports the errors in `problems`, initially none."""
    problems: list[str] = []

    def fake_results(repository: Path, **settings: Any) -> list[ModelParity]:
        result = GoldenResult(
            "p0-opt", "http", None, error=problems[0] if problems else None
        )
        model = ModelParity("net", "plan", "plan", "gpu", None, (result,))
        if not problems:
            monkeypatch.setattr(ModelParity, "passed", True)
        return [model]

    monkeypatch.setattr(serving, "find", lambda: HERE)
    monkeypatch.setattr(verification, "verify_served", fake_results)
    return problems


def test_server_is_used_if_it_can_run_the_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "find", lambda: HERE)
    monkeypatch.setattr(flavor, "has_gpu", lambda: True)
    assert verification.server_of("auto") == verification.server_of("server") == HERE
    assert verification.server_of("plan") is None
    monkeypatch.setattr(flavor, "has_gpu", lambda: False)
    assert verification.server_of("auto") is None
    assert verification.server_of("server") == HERE


def test_missing_server_is_an_error_only_if_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find() -> Installation:
        raise EnvironmentProblem("no tritonserver was found", fix="install one")

    monkeypatch.setattr(serving, "find", find)
    monkeypatch.setattr(flavor, "has_gpu", lambda: True)
    assert verification.server_of("auto") is None
    with pytest.raises(
        EnvironmentProblem, match=r"`verify: server`.* no tritonserver was found"
    ):
        verification.server_of("server")


@pytest.mark.slow
def test_wrong_output_of_the_server_fails_the_task(
    tmp_path: Path, server: list[str]
) -> None:
    """A failed build is not stored. A correct build is stored, and is not verified again."""
    job = Job.from_json(job_of(tmp_path, verify="server"))
    server.append("y differs by 3")
    failed = ended(job)
    assert not failed["ok"] and failed["error"]["exit_code"] == 3
    assert "golden p0-opt over http: y differs by 3" in failed["error"]["message"]
    assert not [*Path(job.store).glob("published/*/*")]
    server.clear()
    right = ended(job)
    assert right["ok"] and right["result"][VERIFIED]["answered_by"] == {"plan": 1}
    server.append("not verified again")
    event = ended(job)
    assert (event["ok"], event["state"]) == (True, "found")
    assert event["result"][VERIFIED] == right["result"][VERIFIED]


def test_model_that_the_server_cannot_load_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_results(repository: Path, **settings: Any) -> list[ModelParity]:
        raise ServerError("net: no such backend")

    monkeypatch.setattr(verification, "verify_served", fake_results)
    with pytest.raises(
        verification.ParityError, match="does not serve the built model"
    ):
        verification.verified(tmp_path, HERE, lambda model, phase: None)


def test_server_has_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def fake_results(repository: Path, **settings: Any) -> list[ModelParity]:
        seen.update(os.environ)
        return []

    for name in ("AWS_SECRET_ACCESS_KEY", "TRT_BUILD_STORE_KEY"):
        monkeypatch.setenv(name, "a secret of many letters")
    monkeypatch.setattr(verification, "verify_served", fake_results)
    verification.verified(tmp_path, HERE, lambda model, phase: None)
    assert "PATH" in seen and "a secret of many letters" not in seen.values()
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "a secret of many letters"


@pytest.mark.slow
def test_unverified_stored_build_is_verified_later(tmp_path: Path) -> None:
    """With a real tritonserver, in the process of a job."""
    environment = remote.variables((), 1)
    *_, built = remote.events(job_of(tmp_path, verify="plan"), environment)
    assert built["ok"] and built["state"] == "built" and VERIFIED not in built["result"]
    *phases, last_event = remote.events(job_of(tmp_path, verify="server"), environment)
    assert last_event["ok"] and last_event["state"] == "found", last_event
    facts = last_event["result"][VERIFIED]
    assert facts["by"] == "tritonserver" and sum(facts["answered_by"].values()) == 1
    assert 0 <= facts["share_of_tolerance"] <= 1
    assert any("verify" in event.get("phase", "") for event in phases)
    *phases, again = remote.events(job_of(tmp_path, verify="server"), environment)
    assert again["result"][VERIFIED] == facts
    assert not any("verify" in event.get("phase", "") for event in phases)
