"""`trt-build push` to real servers under load: explicit and poll mode, single models and ensembles.

Invalid models never reach clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tritonclient import http as triton_http

from builder.cli import main
from builder.deployment import Target, push
from builder.deployment.push import _Push
from builder.errors import ServerError
from builder.parity import verify
from builder.parity.clients import GrpcClient, HttpClient
from builder.serving import (
    CONTROL_HEADER,
    FREE_PORTS,
    PLAIN,
    Access,
    Server,
    control,
    serve,
)
from builder.serving.stubs import Stubs
from builder.store import retired
from builder.triton import publish
from tests.chaos.pushing import spoil
from tests.triton.artifacts import Raise, artifact, pair, reseal, tensor

pytestmark = [pytest.mark.live, pytest.mark.slow]


def repository_of(folder: Path, generation: int) -> Path:
    """Model `net` adds its generation; ensemble `pair` returns it."""
    inputs = (tensor("x", "float32", "batch", 2),)
    model = artifact(Raise(generation), inputs, ("y",), name="net", serve_as="python")
    publish(model, folder / str(generation))
    publish(pair(generation), folder / str(generation))
    return folder / str(generation)


def run(source: Path, server: Server, served: Path, *words: object) -> Result:
    urls = ["--url", server.http_url, "--grpc-url", server.grpc_url]
    given = [
        "push",
        source,
        *urls,
        "--to",
        served,
        "--drain",
        1,
        "--timeout",
        60,
        *words,
    ]
    return CliRunner().invoke(
        main, [str(word) for word in given], catch_exceptions=False
    )


def infer_one(client: HttpClient | GrpcClient, model: str) -> float:
    x = np.zeros((1, 2), "float32")
    outputs = client.infer(model, {"x": x}).outputs
    if model == "net":
        return float(outputs["y"][0, 0])
    assert (outputs["y"] == 0).all(), "the steps are of two generations"
    return float(outputs["g"][0, 0])


@dataclass
class Clients:
    """Two threads that send requests to both models until the end, and their errors."""

    server: Server
    results: set[float] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def __enter__(self) -> Clients:
        self.ended = threading.Event()
        self.threads = [
            threading.Thread(target=self._send, args=(n,)) for n in range(2)
        ]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _send(self, number: int) -> None:
        kind, url = (
            (HttpClient, self.server.http_url),
            (GrpcClient, self.server.grpc_url),
        )[number]
        client = kind(url, 30)
        while not self.ended.is_set():
            try:
                for model in ("net", "pair"):
                    self.results.add(infer_one(client, model))
                time.sleep(0.05)  # the requests count, not the load
            except Exception as error:
                self.errors.append(str(error))
        client.close()


@pytest.fixture(params=["explicit", "poll"])
def running(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Server, Path]]:
    served = repository_of(tmp_path / "served", 1)
    mode: dict[str, Any] = {"explicit": True, "models": ["*"]}
    with serve(
        served,
        **FREE_PORTS,
        **(mode if request.param == "explicit" else {"poll_seconds": 1}),
    ) as server:
        yield server, served


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_push_under_load_replaces_only_valid_models(
    running: tuple[Server, Path], tmp_path: Path
) -> None:
    server, served = running
    with Clients(server) as clients:
        good = run(repository_of(tmp_path, 2), server, served, "--json")
        assert good.exit_code == 0, good.output
        record = json.loads(good.stdout)
        assert {one["name"]: one["state"] for one in record["models"]} == {
            "net": "pushed",
            "pair": "pushed",
        }
        before = names(served)
        bad = repository_of(tmp_path, 3)
        for model in ("net", "pair"):
            spoil(bad / model)
        rejected = run(bad, server, served)
        assert rejected.exit_code == 3 and rejected.output.count("rejected") == 2, (
            rejected.output
        )
        assert "FAILED net: " in rejected.output and "FAILED pair: " in rejected.output
        assert names(served) == before, "the candidates are removed"
    assert not clients.errors, clients.errors[:3]
    assert clients.results <= {1.0, 2.0} and 2.0 in clients.results
    assert names(served.parent) == {"1"}, "no staging folder is left"
    again = run(tmp_path / "2", server, served)
    assert again.exit_code == 0 and again.output.count("unchanged") == 2, again.output


def test_model_that_fails_after_the_switch_is_rolled_back(
    running: tuple[Server, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, served = running
    source = repository_of(tmp_path, 2)
    target = Target(served, server.http_url, server.grpc_url, timeout=60, drain=0)
    original, requested = _Push._live_problems, set[str]()

    def fail_once(self: _Push, before: Any) -> tuple[str, ...]:
        results = original(self, before)
        if self.name in requested:
            return results
        requested.add(self.name)
        return ("inserted",)

    monkeypatch.setattr(_Push, "_live_problems", fail_once)
    results = push(source, target)
    assert [(one.state, one.problems) for one in results] == [
        ("rolled back", ("inserted",))
    ] * 2
    with contextlib.closing(HttpClient(server.http_url, 30)) as client:
        assert infer_one(client, "net") == infer_one(client, "pair") == 1


def test_new_model_that_fails_to_load_is_removed(tmp_path: Path) -> None:
    served, source = repository_of(tmp_path / "served", 1), tmp_path / "source"
    inputs = (tensor("x", "float32", "batch", 2),)
    publish(artifact(Raise(5), inputs, ("y",), name="new", serve_as="python"), source)
    (source / "new" / "1" / "model.py").write_text("raise ImportError('inserted')\n")
    reseal(source / "new")
    with serve(served, **FREE_PORTS, explicit=True, models=["net"]) as server:
        failed = run(source, server, served)
        assert failed.exit_code == 3 and "inserted" in failed.output, failed.output
        assert "new" not in names(served)
        # the source is the repository that the server reads
        repository_of(tmp_path / "served", 1)
        model = artifact(Raise(7), inputs, ("y",), name="net", serve_as="python")
        publish(model, served)
        result = run(served, server, served, "--only", "net")
        assert result.exit_code == 0, result.output
        with contextlib.closing(HttpClient(server.http_url, 30)) as client:
            assert infer_one(client, "net") == 7
        index = triton_http.InferenceServerClient(
            server.http_url
        ).get_model_repository_index()
        assert {one["name"] for one in index if one.get("state") == "READY"} == {"net"}


def test_server_that_ignores_changes_is_reported(tmp_path: Path) -> None:
    served = repository_of(tmp_path / "served", 1)
    with serve(served, **FREE_PORTS) as server:
        refused = run(
            repository_of(tmp_path, 2), server, served, "--only", "net", "--timeout", 8
        )
    assert (
        refused.exit_code == 3
        and "serve --watch" not in refused.output.split("FAILED")[0]
    )
    assert "did not take model" in refused.output


def test_replaced_process_is_not_reported_as_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.serving.server.UNLOAD_SECONDS", 2.0)
    served = repository_of(tmp_path / "served", 1)
    with serve(served, **FREE_PORTS, explicit=True, models=["net"]) as server:
        errors: list[str] = []

        def watch() -> None:
            try:
                server._watch()
            except ServerError as error:
                errors.append(str(error))

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        stubs = Stubs(server.process.pid)
        stubs.dead()
        (first,) = stubs.models
        time.sleep(2)
        inputs = (tensor("x", "float32", "batch", 2),)
        publish(
            artifact(Raise(2), inputs, ("y",), name="net", serve_as="python"), served
        )
        control.update(server.http_url, served / "net", drain=0)
        stubs.dead()
        (second,) = set(stubs.models) - {first}  # the first may be ending
        watching.join(8)
        assert watching.is_alive() and not errors
        os.kill(second, signal.SIGKILL)
        watching.join(30)
        assert "the process of model 'net' ended" in "".join(errors)


def test_loading_models_needs_the_control_token(tmp_path: Path) -> None:
    served = repository_of(tmp_path / "served", 1)
    (tmp_path / "token").write_text("secret\n")
    mode = {"explicit": True, "models": ["net"], "control_token": "secret"}
    with serve(served, **FREE_PORTS, **mode) as server:
        source = repository_of(tmp_path, 2)
        refused = run(source, server, served, "--only", "net")
        assert refused.exit_code == 4 and "--control-token-file" in refused.output, (
            refused.output
        )
        with contextlib.closing(GrpcClient(server.grpc_url, 30)) as client:
            assert infer_one(client, "net") == 1
            token = ["--control-token-file", tmp_path / "token"]
            result = run(source, server, served, "--only", "net", *token)
            assert result.exit_code == 0, result.output
            assert infer_one(client, "net") == 2
        token = Access(headers={CONTROL_HEADER: "secret"})
        with control.connected(server.http_url, token, 30, server.grpc_url) as api:
            assert api.loader is not api.client, "models are loaded over HTTP"
        with control.connected(server.http_url, PLAIN, 30, server.grpc_url) as api:
            assert api.loader is api.client
        assert not server._lacks_processes("net", Stubs(server.process.pid))


def test_slow_load_does_not_delay_clients(tmp_path: Path) -> None:
    """Over HTTP, clients that share a thread with the load would wait until it ends."""
    served = repository_of(tmp_path, 1)
    model = artifact(
        Raise(1),
        (tensor("x", "float32", "batch", 2),),
        ("y",),
        name="slow",
        serve_as="python",
    )
    folder = publish(model, served)
    program = folder / "1/model.py"
    begin = "def initialize(self, args: dict[str, str]) -> None:\n"
    assert begin in program.read_text()
    slow = program.read_text().replace(
        begin, f"{begin}        __import__('time').sleep({SLOW})\n"
    )
    program.write_text(slow)
    reseal(folder)
    with serve(served, **FREE_PORTS, explicit=True, models=["net"]) as server:
        waits = [LatencyClient(server) for _ in range(16)]
        for waiting in waits:
            waiting.start()
        assert all(waiting.began.wait(30) for waiting in waits)
        begun = time.monotonic()
        control.update(server.http_url, folder, grpc_url=server.grpc_url)
        took = time.monotonic() - begun
        for waiting in waits:
            waiting.ended.set()
        for waiting in waits:
            waiting.join()
    assert took > SLOW and max(waiting.longest for waiting in waits) < SLOW / 2


def test_push_cleans_up_after_a_killed_push(tmp_path: Path) -> None:
    served, source = repository_of(tmp_path / "served", 1), repository_of(tmp_path, 2)
    program = "from builder.cli import main; main()"
    with serve(served, **FREE_PORTS, explicit=True, models=["*"]) as server:
        urls = ["--url", server.http_url, "--grpc-url", server.grpc_url]
        words = [sys.executable, "-c", program, "push", source, *urls, "--to", served]
        with Clients(server) as clients:
            pushing = subprocess.Popen(
                [str(word) for word in words], stderr=subprocess.DEVNULL
            )
            while not (
                candidates := {name for name in names(served) if "candidate" in name}
            ):
                assert pushing.poll() is None
                time.sleep(0.01)
            pushing.kill()
            pushing.wait()
            time.sleep(1)
            assert candidates < names(served)
            result = run(source, server, served)
            assert result.exit_code == 0, result.output
            time.sleep(1)
        assert not clients.errors and clients.results == {1, 2}
        assert not {name for name in names(served) if "candidate" in name}
        assert not list(served.parent.glob(".1.staging-*"))


def test_push_removes_expired_ensemble_steps(
    running: tuple[Server, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, served = running
    old_steps = {name for name in names(served) if name.startswith("pair.")}
    assert (
        run(repository_of(tmp_path, 2), server, served, "--only", "pair").exit_code == 0
    )
    assert old_steps < names(served)
    # the old steps are unloaded in explicit mode, and in the repository
    assert all(one.passed for one in verify(served, server.http_url, None, repeat=0))
    monkeypatch.setattr(retired, "GRACE_SECONDS", 0.0)
    assert (
        run(repository_of(tmp_path, 3), server, served, "--only", "net").exit_code == 0
    )
    assert not old_steps & names(served)


SLOW = 8.0


class LatencyClient(threading.Thread):
    """An HTTP client that repeats a request, and its longest latency."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server, self.longest = server, 0.0
        self.began, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        with contextlib.closing(HttpClient(self.server.http_url, 60)) as client:
            while not self.ended.is_set():
                begun = time.monotonic()
                infer_one(client, "net")
                if self.began.is_set():
                    self.longest = max(self.longest, time.monotonic() - begun)
                self.began.set()
                time.sleep(0.05)
