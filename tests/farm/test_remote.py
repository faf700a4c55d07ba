"""The process of a job: its environment variables, files and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.farm import remote
from builder.farm.job import Job, upload
from builder.manifest import load
from builder.store import Folders, sources
from tests.cli.conftest import Small, save


def test_build_has_only_the_listed_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SECRET", "AWS_ACCESS_KEY_ID", "TRT_BUILD_STORE_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    variables = remote.variables(["AWS_ACCESS_KEY_ID"], 3)
    assert {"AWS_ACCESS_KEY_ID", "TRT_BUILD_STORE_KEY", "PATH"} <= set(variables)
    assert "SECRET" not in variables and variables["OMP_NUM_THREADS"] == "3"
    here = str(Path(remote.__file__).parents[2])
    assert variables["PYTHONPATH"] == here
    assert remote.variables(["PYTHONPATH"], 1)["PYTHONPATH"] == f"{here}{os.pathsep}x"


def test_uploaded_model_keeps_its_file_names(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "net"
    folder.mkdir(parents=True)
    save(Small(), folder / "model.pt")
    store = Folders(str(tmp_path / "store"))
    (spec,) = load(tmp_path / "models")
    file, files = upload(spec, store)
    assert file == "net/model.pt" and set(files) == {"net/model.pt", "net/model.yaml"}
    for name, digest in files.items():
        store.fetch(digest, tmp_path / "again" / name)
    assert [found.name for found in load(tmp_path / "again" / file)] == ["net"]


def job_of(tmp_path: Path, **more: str) -> str:
    save(Small(), tmp_path / "net.pt")
    (spec,) = load(tmp_path / "net.pt")
    url = str(tmp_path / "store")
    file, files = upload(spec, Folders(url))
    facts = {"version": sources.version_of_all(), **more}
    return Job(spec.name, "a", url, file, files, **facts).to_json()  # type: ignore[arg-type]


def test_other_version_of_trt_build_is_refused(tmp_path: Path) -> None:
    *_, ended = remote.events(job_of(tmp_path, version="0"), remote.variables((), 1))
    assert not ended["ok"]
    assert ended["error"]["exit_code"] == 4
    assert "on this machine differs" in ended["error"]["message"]


@pytest.mark.slow
def test_damaged_file_in_the_store_is_reported(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    digest = json.loads(job)["files"][f"{tmp_path.name}/net.pt"]
    (tmp_path / "store" / "files" / digest[:2] / digest).write_bytes(b"no model")
    *_, ended = remote.events(job, remote.variables((), 1))
    assert (
        ended["error"]["exit_code"] == 4 and "is damaged" in ended["error"]["message"]
    )
