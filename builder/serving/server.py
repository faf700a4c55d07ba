"""One tritonserver process: start it, wait until it is ready, report failures, stop it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from builder.errors import EnvironmentProblem, ServerError
from builder.serving import (
    features,
    flags,
    guardian,
    log,
    ports,
    precheck,
    responses,
    scratch,
)
from builder.serving.installation import Installation, find
from builder.serving.stubs import Stubs
from builder.store import published
from builder.unforeseen import file_system_errors

READY_TIMEOUT = 180.0
STOP_TIMEOUT = 20.0
HUNG_STOP_TIMEOUT = 2.0
INTERRUPTED_STOP_TIMEOUT = 1.0
"""Seconds. The server waits for open connections, and Python models wait for their process.

After an interrupt, only clients of this process exist. Their last request may still be open: GPU
work that it started may finish, but nothing else.
"""

NONE: Mapping[str, str] = {}
UNLOAD_SECONDS = 30.0
"""For a server that changes models: seconds that a model may be ready with too few processes while
it is unloaded or loaded.
"""
WATCH_SECONDS = 1.0
"""Seconds between two checks of the Python models' processes."""
CRASH_FIX = (
    "the log above may name the model. A request can be the cause, too: Triton 24.10 ends on deeply"
    " nested JSON and on bodies in very many chunks. Use docker/nginx.conf as a proxy for clients"
    " that you do not trust"
)
FREE_PORTS: Mapping[str, Any] = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
"""Arguments of `serve` for free ports."""
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""Signals that end a tritonserver by its own fault.

24.10 sometimes aborted while it loaded 23 Python models at once (1 of about 30 starts), and ended
by a segmentation fault beside a model whose warm-up failed (3 of 13 starts).
"""
PORT_TAKEN = re.compile(r"failed to start \w+ service: .*already in use")
"""The server's message if another process took a free port between its choice and its use."""
PORT_CHOICES = 3
"""Maximum number of starts with other ports, if at least one port was chosen as a free one."""
RESTARTS = 3
"""Maximum number of restarts of a server that crashed and may serve without some of its models."""

_LOAD_THREADS = "--model-load-thread-count"


class Server:
    """A running tritonserver on `http_url` and `grpc_url` (host:port).

    stop(), or leaving the `with` block, ends it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        address: str,
        port: dict[str, int],
        scratch: Path,
        log_path: Path,
        lock: int = -1,
        guard: subprocess.Popen[bytes] | None = None,
    ) -> None:
        host = f"[{address}]" if ":" in address else address
        self.process = process
        self.scratch = scratch
        self.log_path = log_path
        self.grace = STOP_TIMEOUT
        self.first_crash: str | None = None
        self.failed: tuple[log.Failure, ...] = ()
        self.changes_models = False
        self.control_token: str | None = None
        self.lock = lock
        self.guardian = guard
        self.stubs = Stubs(process.pid)
        self.http_url = f"{host}:{port['--http-port']}"
        self.grpc_url = f"{host}:{port['--grpc-port']}"
        self.metrics_url = f"{host}:{port['--metrics-port']}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.grace = INTERRUPTED_STOP_TIMEOUT
        self.stop()

    def log(self) -> str:
        """The log so far; empty after the server stopped, unless a log file was requested."""
        if self.log_path.exists():
            return self.log_path.read_text(errors="replace")
        return ""

    def ready(self) -> bool:
        """Whether all models are ready and the metrics endpoint answers.

        The metrics endpoint starts last, after HTTP reports ready.
        """
        return self._is_healthy("ready")

    def started(self) -> bool:
        """Whether each model was loaded or has failed. HTTP and metrics answer only after that."""
        return self._is_healthy("live")

    def _is_healthy(self, state: str) -> bool:
        """Whether this health endpoint and the metrics endpoint respond, and the server is this
        one. Another server responds if both were started with the same port at the same time.
        """
        addresses = (
            f"{self.http_url}/v2/health/{state}",
            f"{self.metrics_url}/metrics",
        )
        return all(map(_responds, addresses)) and self._has_own_id()

    def _has_own_id(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            metadata = _requested(f"{self.http_url}/v2")
            return bool(metadata.get("name") == self.scratch.name)
        return False

    def served(self) -> frozenset[str]:
        """The names of the models with a version that is ready. Raises ServerError."""
        try:
            index = self._index()
        except (OSError, ValueError) as error:
            raise ServerError(
                f"tritonserver does not list its models: {error}"
            ) from error
        return frozenset(
            entry["name"] for entry in index if entry.get("state") == "READY"
        )

    def crashed(self) -> bool:
        """Whether the process ended by one of CRASHES."""
        code = self.process.poll()
        return code is not None and -code in CRASHES

    def wait_ready(self, timeout: float, *, partly: bool = False) -> None:
        """Return when all models are ready. With `partly`, return when at least one is ready and
        each other one has failed; `failed` then has the failures.

        Raises ServerError with each failed model and its reason if the server stops or `timeout`
        seconds pass.
        """
        deadline = time.monotonic() + timeout
        while not (self.started() if partly else self.ready()):
            self.stubs.look()
            if self.process.poll() is not None:
                raise ServerError(_stopped(self.log(), self.process.returncode))
            if time.monotonic() > deadline:
                # A load that hangs also blocks the shutdown. 24.10 hangs if a stub cannot start.
                self.grace = HUNG_STOP_TIMEOUT
                raise ServerError(
                    _failure_message(
                        self.log(), f"tritonserver was not ready after {timeout:g} s"
                    )
                )
            time.sleep(0.1)
        self.stubs.look()
        self.failed = log.failures(self.log()) if partly else ()
        if self.failed and not self.served():
            raise ServerError(
                _failure_message(self.log(), "tritonserver could load no model")
            )

    def block(self) -> None:
        """Wait for Ctrl-C or SIGTERM (main thread only).

        Raises ServerError if the server ends. Also raises it if the process of a loaded Python
        model ends, since requests to the model would fail. For other signals, such as SIGHUP, the
        command's signal handler raises KeyboardInterrupt with their `number`; it is not caught.
        """
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            code = self._watch()
        except KeyboardInterrupt as stop:
            if getattr(stop, "number", signal.SIGINT) != signal.SIGINT:
                raise
            return
        finally:
            signal.signal(signal.SIGTERM, before)
        fix = CRASH_FIX if -code in CRASHES else None
        raise ServerError(_stopped(self.log(), code), fix=fix)

    def _watch(self) -> int:
        """Return the server's exit code after it has ended.

        Raises ServerError for a model whose process has ended.
        """
        stubs = self.stubs
        suspects: dict[str, float] = {}
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(WATCH_SECONDS)
            now = time.monotonic()
            suspects.update(
                (name, now) for name in stubs.dead() if name not in suspects
            )
            dead = [
                name for name in sorted(suspects) if self._lacks_processes(name, stubs)
            ]
            suspects = {name: suspects[name] for name in dead}
            if self.changes_models:  # the model may be unloading
                dead = [name for name in dead if now - suspects[name] >= UNLOAD_SECONDS]
            # a server that is stopping ends the processes first
            if dead and self.process.poll() is None:
                names = ", ".join(map(repr, dead))
                raise ServerError(
                    f"the process of model {names} ended, so every request to it would fail",
                    fix="start the server again; the reason is in its log or in dmesg",
                )

    def _lacks_processes(self, name: str, stubs: Stubs) -> bool:
        """Whether the model is ready but has fewer processes than instances.

        The processes of an unloaded or replaced model end normally, and so do those of a model that
        failed to load.
        """
        if not (self.changes_models or self.failed):
            return True
        try:
            index = self._index()
            config = _requested(f"{self.http_url}/v2/models/{quote(name)}/config")
        except (OSError, ValueError):
            return False  # not loaded, or the server is stopping
        versions = sum(
            entry["name"] == name and entry.get("state") == "READY" for entry in index
        )
        groups = config.get("instance_group", ())
        instances = sum(
            group["count"] * max(1, len(group.get("gpus", ()))) for group in groups
        )
        return bool(stubs.running(name) < versions * instances)

    def _index(self) -> Any:
        """The models of the repository with their states. Raises OSError, ValueError."""
        token = {flags.CONTROL_HEADER: self.control_token} if self.control_token else {}
        return _requested(f"{self.http_url}/v2/repository/index", b"{}", token)

    def stop(self) -> None:
        """Stop the server and its Python processes, by SIGINT and then SIGKILL.

        Removes its shared memory and its scratch folder.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self.grace)
        # The server has its own process group, so this also ends stubs that survive a crash.
        guardian.end(self.process.pid)
        self.process.wait()
        guardian.clean(self.scratch)
        if self.guardian is not None:
            self.guardian.kill()
            self.guardian.wait()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


@contextlib.contextmanager
def serve(
    repository: Path,
    *,
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    address: str = "127.0.0.1",
    log_verbose: int = 0,
    log_path: Path | None = None,
    ready_timeout: float = READY_TIMEOUT,
    explicit: bool = False,
    models: Sequence[str] = (),
    poll_seconds: int | None = None,
    client_shared_memory: bool = False,
    control_token: str | None = None,
    installation: Installation | None = None,
    exit_on_error: bool = True,
    response_cache: int = 0,
) -> Iterator[Server]:
    """Serve `repository` during the `with` block, which starts when every model is ready.

    Without `exit_on_error`, models that fail to load are in `failed` of the result, and the others
    are served. The server's readiness endpoint then answers that it is not ready.

    A port of 0 selects a free one. With `explicit`, only `models` are loaded ("*": all) and clients
    may load more. With `poll_seconds` the server loads changes of the repository. Clients may use
    shared memory only with `client_shared_memory`; they can never change log and trace settings. If
    `control_token` is given, only requests with it in the header flags.CONTROL_HEADER may load
    models. `response_cache` is the size in MiB of the cache for the models whose config enables it;
    0: no response is cached.

    A server that crashes while it loads models is restarted once (RESTARTS times without
    `exit_on_error`) and then loads one model at a time. `first_crash` of the result is then the
    reason, else None. A server that finds a free port taken is started again with other ports.
    Raises EnvironmentProblem if a port is in use, no server is installed, or the
    server cannot require the token. Raises ServerError with every failed model and the reason in
    the log.
    """
    installation = installation or find()
    options = [
        f"--log-verbose={log_verbose}",
        *flags.control(explicit, models, poll_seconds),
        *flags.restrictions(installation, client_shared_memory, control_token),
        *flags.optional(installation, client_shared_memory),
        *features.server_flags(repository, installation, response_cache),
        *([] if exit_on_error else [flags.KEEP_SERVING]),
    ]
    port = {
        "--http-port": http_port,
        "--grpc-port": grpc_port,
        "--metrics-port": metrics_port,
    }
    start_server = functools.partial(
        start,
        repository,
        port=port,
        address=address,
        log_path=log_path,
        installation=installation,
        models=models if explicit and flags.ALL not in models else None,
        changes_models=explicit or poll_seconds is not None,
        control_token=control_token,
    )
    run = _ready if exit_on_error else functools.partial(_ready, partly=True)
    choices = PORT_CHOICES if 0 in port.values() else 1
    with run(start_server, options, ready_timeout, installation, choices) as server:
        yield server


@contextlib.contextmanager
def _ready(
    start_server: Callable[..., Server],
    options: Sequence[str],
    timeout: float,
    installation: Installation,
    port_choices: int,
    *,
    partly: bool = False,
) -> Iterator[Server]:
    """Return a server that is ready. After a crash during a start, models are loaded serially."""
    restarts = RESTARTS if partly else 1
    first_crash: str | None = None
    extra: tuple[str, ...] = ()
    with contextlib.ExitStack() as stack:
        while True:
            server = stack.enter_context(start_server(options=[*options, *extra]))
            server.first_crash = first_crash
            try:
                server.wait_ready(timeout, partly=partly)
                break
            except ServerError as error:
                if port_choices > 1 and PORT_TAKEN.search(server.log()):
                    port_choices -= 1
                    server.stop()
                    continue
                if not partly and log.failures(server.log()):
                    raise
                may_restart = restarts and installation.supports(_LOAD_THREADS)
                if not (server.crashed() and may_restart):
                    raise
                first_crash = first_crash or str(error)
                restarts = restarts - 1
                extra = (f"{_LOAD_THREADS}=1",)
                server.stop()
        yield server


def start(
    repository: Path,
    *,
    port: dict[str, int],
    address: str,
    options: Sequence[str],
    log_path: Path | None,
    installation: Installation,
    models: Sequence[str] | None = None,
    changes_models: bool = False,
    control_token: str | None = None,
) -> Server:
    """Start the process and return at once. `changes_models`: clients or a poll may change which
    models are loaded. `control_token` is the token that the options require for it.
    """
    _require_models(repository, models, may_be_empty=changes_models)
    port = ports.resolve(address, port)
    scratch.remove_stale()
    folder, lock = scratch.make()
    try:
        path = log_path or folder / "tritonserver.log"
        command = _command(installation, repository, port, address, folder, options)
        process, guard = _launch_guarded(command, installation, path, folder)
        server = Server(process, address, port, folder, path, lock, guard)
        server.changes_models = changes_models
        server.control_token = control_token
        return server
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        raise


def _require_models(
    repository: Path, models: Sequence[str] | None, *, may_be_empty: bool
) -> None:
    """Raise UsageError or ServerError if the server could not load these models; None: all."""
    if models is None and not may_be_empty:
        published.model_names(repository)
    else:
        published.require_repository(repository)
    precheck.check(repository, models)


def _command(
    installation: Installation,
    repository: Path,
    port: dict[str, int],
    address: str,
    folder: Path,
    options: Sequence[str],
) -> list[str]:
    return [
        str(installation.executable),
        f"--model-repository={_plain_path(repository.resolve(), folder)}",
        f"--id={folder.name}",
        *(f"{flag}={number}" for flag, number in port.items()),
        *(f"--{service}-address={address}" for service in ("http", "grpc", "metrics")),
        *flags.ALWAYS,
        "--allow-gpu-metrics=false",
        f"{scratch.PREFIX}{folder.name}",
        *installation.backend_flags(folder),
        *options,
    ]


def _guard(server: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends the server if this process is killed. It has a new session, so
    that a signal to this process group does not kill it.
    """
    words = [os.getpid(), server, folder]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def _plain_path(path: Path, folder: Path) -> Path:
    """Return the path, or a link to it if it has special characters.

    The Python backend passes paths to a shell without quotes and reads them as ASCII.
    """
    if scratch.PLAIN.fullmatch(str(path)):
        return path
    link = folder / "repository"
    link.symlink_to(path)
    return link


def _launch_guarded(
    command: list[str], installation: Installation, log_path: Path, folder: Path
) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """The server's process, and the guardian that kills it if this process dies."""
    process = _launch(command, installation, log_path)
    try:
        return process, _guard(process.pid, folder)
    except BaseException:
        guardian.end(process.pid)
        raise


def _launch(
    command: list[str], installation: Installation, log_path: Path
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **installation.environment}
    with _opened_log(log_path) as log_file:
        try:
            # In a new session, Ctrl-C reaches only this process, which then stops the server.
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentProblem(
                f"tritonserver cannot be started: {error}",
                where=str(installation.executable),
            ) from error


def _opened_log(log_path: Path) -> BinaryIO:
    with file_system_errors("the log cannot be written", log_path, "--log-file"):
        return log_path.open("wb")


def _responds(address: str) -> bool:
    try:
        responses.read(f"http://{address}", timeout=2)
    except OSError:
        return False
    return True


def _requested(
    address: str, body: bytes | None = None, headers: Mapping[str, str] = NONE
) -> Any:
    """Return the response to a GET, or to a POST of `body`. Raises OSError, ValueError."""
    request = urllib.request.Request(
        f"http://{address}", data=body, headers=dict(headers)
    )
    return json.loads(responses.read(request, timeout=5))


def _stopped(text: str, code: int) -> str:
    """The message for a server that ended without a request to stop. After a signal it includes the
    end of the log.
    """
    head = f"tritonserver stopped (exit code {code})"
    if code >= 0:
        return _failure_message(text, head)
    head = f"tritonserver stopped (signal {-code}, {signal.strsignal(-code)})"
    message = _failure_message(text, head)
    end = log.tail(text).replace("\n", "\n    ")
    if end in message:
        return message
    return f"{message}\n  last lines of its log:\n    {end}"


def _failure_message(text: str, head: str) -> str:
    """Return `head`, then every model that failed or hangs, else the end of the log."""
    reasons = [str(failure) for failure in log.failures(text)]
    reasons += [
        f"model {name!r}: loading neither finished nor failed"
        for name in log.unfinished(text)
    ]
    reasons = reasons or [log.fatal(text) or log.tail(text)]
    return "\n  ".join(
        [f"{head}:", *(reason.replace("\n", "\n    ") for reason in reasons)]
    )
