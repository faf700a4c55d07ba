"""Models, store and repository on gs:// and as://, against emulators on the loopback.

Each needs packages that the development environment does not have (together 300 MB):

    pip install gcsfs gcp-storage-emulator            gs://
    pip install adlfs, npm install azurite            as://, with node_modules/.bin in the PATH
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from builder.store import urls
from tests.cli.conftest import PROGRAM
from tests.cli.test_versions import states, write
from tests.serving.ports import free_port

Run = Callable[..., Result]
pytestmark = pytest.mark.slow
ACCOUNT = "devstoreaccount1"
"""Azurite's only account, and its key, which its documentation publishes."""
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Cloud:
    """An object store with the bucket or container `models`, at the URL `root`."""

    root: str
    environment: tuple[str, ...]

    def objects(self) -> dict[str, bytes]:
        """The content of every object, by its path below `root`."""
        fs, root = urls.file_system(self.root)
        fs.invalidate_cache()
        paths = fs.find(root)
        return {str(path).partition("models/")[2]: fs.cat_file(path) for path in paths}

    def upload(self, models: Path) -> None:
        fs, root = urls.file_system(f"{self.root}/in")
        for file in models.iterdir():
            fs.put_file(str(file), f"{root}/{file.name}")


@contextlib.contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """Run a server on the port until the end of the block."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
    try:
        until = time.monotonic() + 60
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 1),
            ):
                break
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["gs", "as"])
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    port, folder = free_port(), tmp_path / "server"
    folder.mkdir()
    if request.param == "gs":
        pytest.importorskip("gcsfs")
        pytest.importorskip("gcp_storage_emulator")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        emulator = [
            sys.executable,
            "-m",
            "gcp_storage_emulator",
            "start",
            "--in-memory",
        ]
        words = [f"--port={port}", "--host=127.0.0.1", "--default-bucket=models"]
        with running([*emulator, *words], port, folder):
            yield Cloud("gs://models", ("STORAGE_EMULATOR_HOST",))
        return
    adlfs = pytest.importorskip("adlfs")
    azurite = shutil.which("azurite-blob")
    if azurite is None:
        pytest.skip("azurite-blob is not in the PATH")
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
    )
    monkeypatch.setenv(urls.CONNECTION, f"{connection}BlobEndpoint={endpoint};")
    words = [
        "--blobPort",
        str(port),
        "--location",
        str(folder),
        "--skipApiVersionCheck",
    ]
    with running([azurite, *words], port, folder):
        adlfs.AzureBlobFileSystem(account_name=ACCOUNT).mkdir("models")
        yield Cloud(f"as://{ACCOUNT}/models", (urls.CONNECTION,))


def test_models_store_and_repository_in_cloud_storage_work(
    tmp_path: Path, run: Run, cloud: Cloud
) -> None:
    source, out, store = (f"{cloud.root}/{name}" for name in ("in", "out", "store"))
    shown = ""
    for number, factor in enumerate((1.0, 2.0), 1):
        write(tmp_path / "models", factor)
        cloud.upload(tmp_path / "models")
        words = [] if number == 1 else ["--no-isolate"]  # it is faster
        result = run("repo", source, "--out", out, "--store", store, *words)
        assert result.exit_code == 0, result.output
        assert f"1 models in {out}" in result.stdout
        shown += result.output
        assert f"versions: {number}" in cloud.objects()["out/net/config.pbtxt"].decode()
    assert states(run, out) == [(2, "current"), (1, "kept")]  # type: ignore[arg-type]
    before = cloud.objects()
    result = run("repo", source, "--out", out, "--store", store)
    assert "unchanged" in result.stdout and cloud.objects() == before
    result = run("rollback", out, "net")
    assert "version 1 is served instead of version 2" in result.stdout
    assert run("prune", out, "--keep", 1).exit_code == 0
    assert not any(name.startswith("out/net/2/") for name in cloud.objects())
    result = run("promote", out, f"{cloud.root}/live")
    stored = cloud.objects()
    assert result.exit_code == 0 and "live/net/config.pbtxt" in stored
    assert any(name.startswith("store/plans/") for name in stored)
    assert KEY not in shown and not [
        path for path, data in stored.items() if KEY.encode() in data
    ]


def test_farm_builds_in_cloud_storage(tmp_path: Path, cloud: Cloud) -> None:
    pytest.importorskip("ray")
    write(tmp_path / "models", 1.0)
    cloud.upload(tmp_path / "models")
    connection: dict[str, Any] = {
        "address": "local",
        "store": f"{cloud.root}/store",
        "targets": {"ada": {"build": {"compute_capabilities": ["8.9"]}}},
        "environment": list(cloud.environment),
    }
    (tmp_path / "farm.yaml").write_text(json.dumps(connection))
    words = ["repo", f"{cloud.root}/in", "--out", f"{cloud.root}/out"]
    process = subprocess.run(
        [*PROGRAM, *words, "--farm", str(tmp_path / "farm.yaml"), "--json"],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["results"][0]["published"] == "published"
    written = cloud.objects()
    assert {"out/ada/net/config.pbtxt", "out.farm/events.jsonl"} <= set(written)
    assert any(name.startswith("store/published/") for name in written)
    for text in (process.stdout, process.stderr, *map(str, written.values())):
        assert KEY not in text
