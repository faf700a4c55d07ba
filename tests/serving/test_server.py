"""Real servers: they report failed models and remove their files and processes."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import socketserver
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from builder.errors import EnvironmentProblem, ServerError, UsageError
from builder.parity import verify
from builder.serving import FREE_PORTS, Server, ports, serve
from builder.serving.installation import find
from builder.serving.server import _plain_path
from builder.triton import publish
from tests.parity.asserting import assert_passed
from tests.triton.artifacts import scorer

pytestmark = pytest.mark.live


EXISTING_FILES: set[str] = set()
"""Files of other servers that existed when the test began."""


def server_files() -> set[str]:
    pattern = f"trt-build-{os.getpid()}-*"
    return {
        str(p) for folder in ("/dev/shm", "/tmp") for p in Path(folder).glob(pattern)
    }


@pytest.fixture(autouse=True)
def record_existing_files() -> None:
    EXISTING_FILES.clear()
    EXISTING_FILES.update(server_files())


def remaining_files() -> set[str]:
    """Files of the servers of this test."""
    return server_files() - EXISTING_FILES


def children() -> set[str]:
    """The ids of running child processes."""
    processes = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            processes |= (
                {path.parent.name}
                if parent == str(os.getpid()) and state != "Z"
                else set()
            )
    return processes


@pytest.mark.usefixtures("normal_stop")
def test_server_listens_on_loopback_until_sigterm_and_leaves_only_its_log(
    valid_repository: Path, tmp_path: Path
) -> None:
    before = children()
    with serve(valid_repository, log_path=tmp_path / "log", **FREE_PORTS) as server:
        assert server.ready() and server.http_url.startswith("127.0.0.1:")
        with urllib.request.urlopen(
            f"http://{server.metrics_url}/metrics", timeout=5
        ) as response:
            assert b"nv_inference_request_success" in response.read()
        assert remaining_files()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        begin = time.monotonic()
        server.block()
        assert 0.4 < time.monotonic() - begin < 5
    assert not server.ready() and server.process.returncode == 0
    assert remaining_files() == set() and children() == before
    assert "successfully unloaded 'scorer'" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["two words", "modèles", "模型", "a;b", "$(c)", "'d'"])
def test_path_with_special_characters_is_replaced_by_a_link(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    path = _plain_path(tmp_path / name, tmp_path)
    assert path == tmp_path / "repository" and path.readlink() == tmp_path / name


SPECIAL_NAME = "two words, modèles 模型; a;b $(c) 'd'"
"""A name with blanks, non-ASCII characters and characters that a shell interprets."""


def test_repository_name_may_have_special_characters(
    zeros_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's Python backend writes paths, also of temporary files, into a shell command and reads
    them as ASCII.
    """
    (tmp_path / SPECIAL_NAME / "temporary").mkdir(parents=True)
    zeros_repository.rename(tmp_path / SPECIAL_NAME / "repository")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / SPECIAL_NAME / "temporary"))
    with serve(tmp_path / SPECIAL_NAME / "repository", **FREE_PORTS) as server:
        assert server.ready()
    assert remaining_files() == set() and not list(
        (tmp_path / SPECIAL_NAME / "temporary").iterdir()
    )
    assert (tmp_path / SPECIAL_NAME / "repository" / "scorer" / "config.pbtxt").exists()


def test_server_is_ready_only_with_its_metrics_and_id(tmp_path: Path) -> None:
    """Another server answers if it was started with the same port at the same time."""

    class HealthyHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"name": "own"}).encode())

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), HealthyHandler) as answering,
        socket.socket() as silent,
    ):
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        silent.bind(("127.0.0.1", 0))
        up, down = answering.server_port, silent.getsockname()[1]
        for metrics, name in ((up, "own"), (down, "own"), (up, "other")):
            port = {"--http-port": up, "--grpc-port": up, "--metrics-port": metrics}
            server = Server(
                Mock(), "127.0.0.1", port, tmp_path / name, tmp_path / "log"
            )
            assert server.ready() is (metrics == up and name == "own")
        answering.shutdown()


def test_server_is_not_ready_if_its_port_belongs_to_another_protocol(
    tmp_path: Path,
) -> None:
    """A gRPC server may take a free port between its choice and the start. The server is then
    started again with other ports.
    """
    settings_of_http2 = bytes.fromhex("000006040000000000000400400000")

    class Grpc(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(settings_of_http2 + b"\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Grpc) as taken:
        threading.Thread(target=taken.serve_forever, daemon=True).start()
        port = taken.server_address[1]
        flags = dict.fromkeys(("--http-port", "--grpc-port", "--metrics-port"), port)
        server = Server(Mock(), "127.0.0.1", flags, tmp_path, tmp_path / "log")
        assert not server.ready()
        with pytest.raises(ServerError, match="not from an HTTP server"):
            server.served()
        taken.shutdown()


def test_port_in_use_is_reported_before_the_start(valid_repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(EnvironmentProblem, match=f"port {port}"),
            serve(valid_repository, **{**FREE_PORTS, "http_port": port}),
        ):
            pass
    assert remaining_files() == set()


def test_free_port_that_was_taken_is_replaced(
    valid_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, chosen = ports.resolve, list[dict[str, int]]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def taken_at_first(address: str, wanted: Mapping[str, int]) -> dict[str, int]:
            free = resolve(address, wanted)
            if not chosen:
                free["--metrics-port"] = listener.getsockname()[1]
            chosen.append(free)
            return free

        monkeypatch.setattr(ports, "resolve", taken_at_first)
        with serve(valid_repository, **FREE_PORTS) as server:
            assert server.ready() and len(chosen) == 2
    assert remaining_files() == set()


def test_every_failed_model_is_reported_with_the_reason(
    zeros_repository: Path,
) -> None:
    for name in ("syntax", "config"):
        publish(scorer(name=name), zeros_repository)
    (zeros_repository / "syntax" / "1" / "model.py").write_text(
        "import no_such_module\n"
    )
    config = zeros_repository / "config" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_FP32", "FP32", 1))
    with pytest.raises(ServerError) as caught, serve(zeros_repository, **FREE_PORTS):
        pass
    text = str(caught.value)
    assert "'syntax'" in text and "no_such_module" in text
    assert "'config'" in text and "FP32" in text
    assert "'scorer'" not in text
    assert remaining_files() == set()


FAILING_EXECUTE = """
class TritonPythonModel:
    def execute(self, requests):
        raise RuntimeError("the first request fails")
"""
KILLED_PROCESS = "import os\nos.kill(os.getpid(), 11)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [{}, {"explicit": True, "models": ["*"]}, {"poll_seconds": 60}],
    ids=["default", "explicit", "poll"],
)
def test_failed_models_do_not_stop_the_others(
    valid_repository: Path, tmp_path: Path, mode: dict[str, Any]
) -> None:
    """Models fail by an import, a config, a killed process and a warmup request. The last one
    sometimes crashes tritonserver 24.10, which is then restarted.
    """
    repository = tmp_path / "repository"
    shutil.copytree(valid_repository, repository)
    sources = {
        "syntax": "import no_such_module\n",
        "killed": KILLED_PROCESS,
        "first": FAILING_EXECUTE,
    }
    for name in ("config", *sources):
        publish(scorer(name=name), repository)
    for name, source in sources.items():
        (repository / name / "1" / "model.py").write_text(source)
    config = repository / "config" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_FP32", "FP32", 1))
    with serve(repository, exit_on_error=False, **mode, **FREE_PORTS) as server:
        assert server.served() == {"scorer"} and not server.ready()
        reasons = {failure.model: failure.reason for failure in server.failed}
        assert reasons.keys() == {"syntax", "killed", "first", "config"}
        assert "no_such_module" in reasons["syntax"] and "FP32" in reasons["config"]
        assert "failed to run warmup sample 'p0-opt'" in reasons["first"]
        (parity,) = verify(repository, server.http_url, None, ["scorer"], repeat=0)
        assert_passed(parity)
    assert remaining_files() == set()


def test_server_without_a_loaded_model_fails(tmp_path: Path) -> None:
    publish(scorer(), tmp_path)
    (tmp_path / "scorer" / "1" / "model.py").write_text("import no_such_module\n")
    with (
        pytest.raises(
            ServerError, match=r"could load no model:\n  model 'scorer'.*no_such_module"
        ),
        serve(tmp_path, exit_on_error=False, **FREE_PORTS),
    ):
        pass
    assert remaining_files() == set()


def test_failed_model_is_not_reported_as_a_dead_process(
    zeros_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.serving.server.WATCH_SECONDS", 0.2)
    publish(scorer(name="first"), zeros_repository)
    (zeros_repository / "first" / "1" / "model.py").write_text(FAILING_EXECUTE)
    with serve(zeros_repository, exit_on_error=False, **FREE_PORTS) as server:
        server.stubs.ended.add("first")
        stop = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        stop.start()
        try:
            server.block()
        finally:
            stop.cancel()
        assert server.process.poll() is None


@pytest.mark.slow
def test_hanging_load_is_killed_after_the_timeout(
    valid_repository: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(valid_repository, repository)
    (repository / "scorer" / "1" / "model.py").write_text(
        "import time\ntime.sleep(600)\n"
    )
    before = children()
    begin = time.monotonic()
    with (
        pytest.raises(ServerError, match="'scorer': loading neither finished"),
        serve(repository, ready_timeout=3, **FREE_PORTS),
    ):
        pass
    assert time.monotonic() - begin < 15
    assert remaining_files() == set() and children() == before


def test_missing_model_file_is_reported_before_the_start(
    valid_repository: Path, tmp_path: Path
) -> None:
    """Triton 24.10 waits forever for a Python model whose file is missing."""
    repository = tmp_path / "repository"
    shutil.copytree(valid_repository, repository)
    (repository / "scorer" / "1" / "model.py").unlink()
    with (
        pytest.raises(ServerError, match=r"'scorer': 1/model.py is missing"),
        serve(repository, **FREE_PORTS),
    ):
        pass
    with serve(repository, explicit=True, **FREE_PORTS) as server:
        assert server.ready()


@pytest.mark.parametrize("crashes", [1, 2])
@pytest.mark.slow
def test_server_that_crashes_on_load_is_restarted_once_with_one_thread(
    valid_repository: Path, tmp_path: Path, crashes: int
) -> None:
    real = find()
    starts = tmp_path / "starts"
    wrapper = tmp_path / "tritonserver"
    wrapper.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--help*) exec {real.executable} --help;; esac\n'
        f'echo "$*" >> {starts}\n'
        f"if [ $(wc -l < {starts}) -le {crashes} ]; then\n"
        "  echo 'I1123 01:02:03.456789 1 loader.cc:1] \"loading: scorer:1\"'\n"
        "  echo 'terminate called after a fault'\n"
        "  kill -ABRT $$\n"
        "fi\n"
        f'exec {real.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    crashing = dataclasses.replace(real, executable=wrapper)
    reason = (
        r"signal 6, Aborted\):\n  model 'scorer'(.|\n)*terminate called after a fault"
    )
    with contextlib.ExitStack() as stack:
        if crashes == 2:
            stack.enter_context(pytest.raises(ServerError, match=reason))
        server = stack.enter_context(
            serve(valid_repository, installation=crashing, **FREE_PORTS)
        )
        assert server.ready()
        assert re.search(reason, server.first_crash or "")
    first, second = starts.read_text().splitlines()
    assert "--model-load-thread-count=1" not in first
    assert "--model-load-thread-count=1" in second
    assert remaining_files() == set()


def test_missing_or_empty_repository_is_a_usage_error(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="does not exist"),
        serve(tmp_path / "nowhere", **FREE_PORTS),
    ):
        pass
    (tmp_path / "model.pt").touch()
    with (
        pytest.raises(UsageError, match="contains no model"),
        serve(tmp_path, **FREE_PORTS),
    ):
        pass
    with serve(tmp_path, **FREE_PORTS, explicit=True, models=["*"]) as server:
        assert not server.served()  # `push` loads the first model later


@pytest.mark.usefixtures("normal_stop")
def test_interrupt_does_not_wait_for_finalize_of_models(
    zeros_repository: Path, tmp_path: Path
) -> None:
    """By default Triton waits for open connections and for finalize of every model."""
    finished = tmp_path / "finished"
    slow = f"""
import pathlib, time
def finalize(self):
    time.sleep(4)
    pathlib.Path({str(finished)!r}).touch()
TritonPythonModel.finalize = finalize
"""
    with (zeros_repository / "scorer" / "1" / "model.py").open("a") as source:
        source.write(slow)
    before = children()
    with (
        pytest.raises(KeyboardInterrupt),
        serve(zeros_repository, **FREE_PORTS) as server,
    ):
        raise KeyboardInterrupt
    assert server.process.returncode is not None and not finished.exists()
    assert remaining_files() == set() and children() == before


def test_request_that_crashes_the_server_is_reported_with_a_fix(
    zeros_repository: Path,
) -> None:
    with serve(zeros_repository, **FREE_PORTS) as server:
        url = f"http://{server.http_url}/v2/models/scorer/infer"
        nested = urllib.request.Request(url, data=b"[" * 200_000)
        with contextlib.suppress(OSError, http.client.HTTPException):
            urllib.request.urlopen(nested, timeout=60).close()
        with pytest.raises(
            ServerError, match=r"stopped \(signal (.|\n)*docker/nginx.conf"
        ):
            server.block()
    assert remaining_files() == set()


def test_block_reports_that_the_server_ended(zeros_repository: Path) -> None:
    with serve(zeros_repository, **FREE_PORTS) as server:
        threading.Timer(0.3, server.process.kill).start()
        with pytest.raises(ServerError, match="stopped"):
            server.block()
    assert remaining_files() == set()
