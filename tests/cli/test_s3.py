"""Models, store and repository in the buckets of a real S3 server on the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.conftest import PROGRAM
from tests.cli.s3 import SECRET, Server, serving
from tests.cli.test_versions import states, write

Run = Callable[..., Result]
OUT, STORE, MODELS = "s3://models/out", "s3://models/store", "s3://models/in"
pytestmark = pytest.mark.slow


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, with the environment that makes s3fs use it, and the bucket `models`."""
    import s3fs

    with serving() as server:
        for name, value in {**SECRET, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("models")
        yield server
        s3fs.S3FileSystem.clear_instance_cache()


def upload(models: Path) -> None:
    fs = file_system()
    for file in models.iterdir():
        fs.put_file(str(file), f"models/in/{file.name}")


def file_system() -> Any:
    import s3fs

    found = s3fs.S3FileSystem()
    found.invalidate_cache()
    return found


def objects() -> dict[str, bytes]:
    fs = file_system()
    return {path: fs.cat_file(path) for path in fs.find("models")}


def served_version() -> int:
    """The version that the published config serves, after a check that its files exist."""
    stored = objects()
    config = stored["models/out/net/config.pbtxt"].decode()
    served = [int(number) for number in re.findall(r"versions: (\d+)", config)]
    record = json.loads(stored["models/out/net/trt-build.json"])
    assert served == [record["version"]]
    for name in record["files"]:
        assert f"models/out/net/{name}" in stored
    return served[0]


def check_order(writes: list[tuple[str, str]]) -> None:
    """Check that a publication writes config.pbtxt last and deletes files only after all writes."""
    inside = [
        (method, path) for method, path in writes if path.startswith("models/out/net/")
    ]
    puts = [path for method, path in inside if method == "PUT"]
    assert puts[-1].endswith("net/config.pbtxt")
    assert puts[-2].endswith("net/trt-build.json")
    methods = [method for method, _ in inside]
    assert "DELETE" not in methods[: len(puts)]
    assert any(re.match(r"models/out/net/\d+/", path) for path in puts)


def test_models_store_and_repository_in_buckets_work(
    tmp_path: Path, run: Run, s3: Server
) -> None:
    shown = ""
    for number, factor in enumerate((1.0, 2.0), 1):
        write(tmp_path / "models", factor)
        upload(tmp_path / "models")
        s3.writes.clear()
        words = [] if number == 1 else ["--no-isolate"]  # it is faster
        result = run("repo", MODELS, "--out", OUT, "--store", STORE, *words)
        assert result.exit_code == 0, result.output
        assert (
            "1 models in s3://models/out" in result.stdout
            and "mirror" not in result.output
        )
        shown += result.output
        check_order(s3.writes)
        assert served_version() == number
        into = {
            path.split("/")[3]
            for _, path in s3.writes
            if re.match(r"models/out/net/\d", path)
        }
        assert into == {str(number)}
    assert states(run, OUT) == [(2, "current"), (1, "kept")]  # type: ignore[arg-type]
    s3.writes.clear()
    result = run("repo", MODELS, "--out", OUT, "--store", STORE)
    assert "unchanged" in result.stdout
    assert not [path for _, path in s3.writes if "/out/" in path]
    result = run("rollback", OUT, "net")
    assert (
        "version 1 is served instead of version 2" in result.stdout
        and served_version() == 1
    )
    s3.writes.clear()
    assert run("prune", OUT, "--keep", 1).exit_code == 0 and served_version() == 1
    methods = [method for method, path in s3.writes if "/out/net/" in path]
    assert methods == sorted(methods, reverse=True) and {"PUT", "DELETE"} == set(
        methods
    )
    assert not any(path.startswith("models/out/net/2/") for path in objects())
    result = run("promote", OUT, "s3://models/live")
    assert result.exit_code == 0 and "models/live/net/config.pbtxt" in objects()
    stored = objects()
    assert any(path.startswith("models/store/plans/") for path in stored)
    s3.writes.clear()
    result = run("remove", OUT, "net")
    deleted = [path for method, path in s3.writes if "/out/net/" in path]
    assert result.exit_code == 0 and deleted[0].endswith("/net/config.pbtxt")
    assert not any(path.startswith("models/out/net/") for path in objects())
    for secret in SECRET.values():
        assert secret not in shown
        assert not [path for path, data in stored.items() if secret.encode() in data]


FARM = """\
address: local
store: s3://models/store
targets: {ada: {build: {compute_capabilities: ["8.9"]}}}
environment: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_DEFAULT_REGION]
"""


def test_farm_builds_in_a_bucket_and_writes_no_secret(
    tmp_path: Path, s3: Server
) -> None:
    """No object, output or log file of Ray contains the secret."""
    pytest.importorskip("ray")
    write(tmp_path / "models", 1.0)
    upload(tmp_path / "models")
    (tmp_path / "farm.yaml").write_text(FARM)
    ray_folder = Path(
        tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    )  # a long path is refused
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(ray_folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    words = [
        "repo",
        MODELS,
        "--out",
        OUT,
        "--farm",
        str(tmp_path / "farm.yaml"),
        "--json",
    ]
    try:
        process = subprocess.run(
            [*PROGRAM, *words],
            env=environment,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert process.returncode == 0, process.stderr
        record = json.loads(process.stdout)
        assert record["results"][0]["published"] == "published"
        assert record["repository"] == OUT
        assert record["events"] == "s3://models/out.farm/events.jsonl"
        written = objects()
        assert {
            "models/out/ada/net/config.pbtxt",
            "models/out.farm/events.jsonl",
        } <= set(written)
        assert any(name.startswith("models/store/published/") for name in written)
        logs = {
            str(path): path.read_bytes()
            for path in ray_folder.rglob("*.*")
            if path.is_file()
        }
        assert any(path.endswith("raylet.out") for path in logs)
        shown = {"output": f"{process.stdout}{process.stderr}".encode()}
        for secret in SECRET.values():
            holders = [
                n
                for n, data in {**written, **logs, **shown}.items()
                if secret.encode() in data
            ]
            assert holders == []
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)


def test_failed_publication_leaves_the_bucket_unchanged(
    tmp_path: Path, run: Run, s3: Server
) -> None:
    words = ["repo", tmp_path / "models", "--out", OUT, "--no-isolate"]
    write(tmp_path / "models", 1.0, "")
    assert run(*words).exit_code == 0
    before = objects()
    write(tmp_path / "models", 2.0, "")
    result = run(*words, "--json")
    assert result.exit_code == 2
    assert "versions: {keep: 2}" in json.loads(result.stdout)["error"]["fix"]
    assert objects() == before
    write(tmp_path / "models", 2.0)
    s3.refused = "net/config.pbtxt"  # the last file: all others are removed again
    result = run(*words)
    assert (
        result.exit_code == 4
        and "s3://models/out could not be written" in result.stderr
    )
    assert objects() == before
    s3.refused = ""
    assert run(*words).exit_code == 0
    assert states(run, OUT) == [(2, "current"), (1, "kept")]  # type: ignore[arg-type]
    result = run("repo", tmp_path / "models", "--out", "s3://missing/out")
    assert (
        result.exit_code == 4
        and "s3://missing/out could not be written" in result.stderr
    )
