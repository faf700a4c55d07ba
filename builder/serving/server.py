"""One tritonserver process: started, waited for, asked what failed, stopped without a trace."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from builder.errors import EnvironmentProblem, ServerError, UsageError
from builder.serving import log, ports, precheck
from builder.serving.installation import Installation, find

READY_TIMEOUT = 180.0
STOP_TIMEOUT = 20.0
HUNG_STOP_TIMEOUT = 2.0
INTERRUPTED_STOP_TIMEOUT = 1.0
"""Seconds. The server itself waits for open connections, and Python models for their process. Who
is interrupted has no clients but his own, whose last request may still hold its connection: what it
began on a GPU may end, no more.
"""

HTTP_MAX_BYTES = 1 << 30
_SHARED_MEMORY = Path("/dev/shm")
_PLAIN = re.compile(r"[A-Za-z0-9_./=@%+,:-]*")


class Server:
    """A running tritonserver on `http_url` and `grpc_url` (host:port each); stop() or leaving the
    `with` ends it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        address: str,
        port: dict[str, int],
        scratch: Path,
        log_path: Path,
    ) -> None:
        host = f"[{address}]" if ":" in address else address
        self.process, self.scratch, self.log_path = process, scratch, log_path
        self.grace = STOP_TIMEOUT
        self.http_url = f"{host}:{port['--http-port']}"
        self.grpc_url = f"{host}:{port['--grpc-port']}"
        self.metrics_url = f"{host}:{port['--metrics-port']}"

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.grace = INTERRUPTED_STOP_TIMEOUT
        self.stop()

    def log(self) -> str:
        """Everything that the server has logged so far; "" once it is stopped and its log was not
        asked to be kept.
        """
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def ready(self) -> bool:
        """Whether the server says that all its models are ready, and its metrics answer too: they
        start last, after HTTP has said so.
        """
        return all(
            map(_answers, (f"{self.http_url}/v2/health/ready", f"{self.metrics_url}/metrics"))
        )

    def wait_ready(self, timeout: float) -> None:
        """Return when all models are ready; ServerError with each failed model and its reason where
        that does not happen.
        """
        deadline = time.monotonic() + timeout
        while not self.ready():
            if self.process.poll() is not None:
                raise ServerError(
                    _why(self.log(), f"tritonserver stopped (exit code {self.process.returncode})")
                )
            if time.monotonic() > deadline:
                # A load that hangs (24.10 does where a stub cannot start) hangs the server's own
                # end too.
                self.grace = HUNG_STOP_TIMEOUT
                raise ServerError(
                    _why(self.log(), f"tritonserver was not ready after {timeout:g} s")
                )
            time.sleep(0.1)

    def block(self) -> None:
        """Return on Ctrl-C or SIGTERM (main thread only); ServerError where the server ends by
        itself.
        """
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            code = self.process.wait()
        except KeyboardInterrupt:
            return
        finally:
            signal.signal(signal.SIGTERM, before)
        raise ServerError(_why(self.log(), f"tritonserver stopped (exit code {code})"))

    def stop(self) -> None:
        """End the server and its Python processes, kindly, then by force, and remove its shared
        memory and folder.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self.grace)
        # The server leads a process group of its own: this reaches its stubs, which outlive it when
        # it dies badly.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for region in _SHARED_MEMORY.glob(f"{self.scratch.name}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)


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
    installation: Installation | None = None,
) -> Iterator[Server]:
    """Serve `repository` for the length of the `with`; it is entered when every model is ready.

    A port of 0 takes a free one. `explicit` loads `models` only, else none, and allows loading by
    request. Raises EnvironmentProblem for a port in use or no server here, ServerError with every
    failed model and the log's reason.
    """
    server = start(
        repository,
        port={"--http-port": http_port, "--grpc-port": grpc_port, "--metrics-port": metrics_port},
        address=address,
        flags=[f"--log-verbose={log_verbose}", *_control(explicit, models)],
        log_path=log_path,
        installation=installation or find(),
        models=models if explicit else None,
    )
    with server:
        server.wait_ready(ready_timeout)
        yield server


def start(
    repository: Path,
    *,
    port: dict[str, int],
    address: str,
    flags: Sequence[str],
    log_path: Path | None,
    installation: Installation,
    models: Sequence[str] | None = None,
) -> Server:
    """Start the process and return at once."""
    if not repository.is_dir():
        raise UsageError(
            f"{repository} is no model repository", fix="trt-build repo MODELS --out REPOSITORY"
        )
    if models is None and not any(path.is_dir() for path in repository.iterdir()):
        raise UsageError(
            f"{repository} holds no model", fix="trt-build repo MODELS --out REPOSITORY"
        )
    precheck.check(repository, models)
    port = ports.settle(address, port)
    # The folder's name is unique, and so the prefix of the shared memory, by which only our own is
    # cleaned up.
    scratch = Path(_plain_folder(), f"trt-build-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    scratch.mkdir()
    try:
        path = log_path or scratch / "tritonserver.log"
        command = _command(installation, repository, port, address, scratch, flags)
        return Server(_launch(command, installation, path), address, port, scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _command(
    installation: Installation,
    repository: Path,
    port: dict[str, int],
    address: str,
    scratch: Path,
    flags: Sequence[str],
) -> list[str]:
    return [
        str(installation.executable),
        f"--model-repository={_plain(repository.resolve(), scratch)}",
        *(f"{flag}={number}" for flag, number in port.items()),
        *(f"--{service}-address={address}" for service in ("http", "grpc", "metrics")),
        "--disable-auto-complete-config",
        "--strict-readiness=true",
        "--allow-gpu-metrics=false",
        f"--backend-config=python,shm-region-prefix-name={scratch.name}",
        *installation.backend_flags(scratch),
        *_large_requests(installation),
        *flags,
    ]


def _plain(path: Path, scratch: Path) -> Path:
    """The path, or a link to it: the Python backend hands paths to a shell without quotes, and its
    interpreter reads them as ASCII.
    """
    if _PLAIN.fullmatch(str(path)):
        return path
    link = scratch / "repository"
    link.symlink_to(path)
    return link


def _plain_folder() -> Path:
    """Where files for the time of a server may be, by a path as `_plain` gives."""
    folder = Path(tempfile.gettempdir())
    return folder if _PLAIN.fullmatch(str(folder)) else Path("/tmp")


def _large_requests(installation: Installation) -> list[str]:
    """From 25.06 on HTTP refuses bodies beyond 64 MB, which a profile's maximum easily has; the
    bundled 24.10 has no limit.
    """
    flag = "--http-max-input-size"
    return (
        [f"{flag}={HTTP_MAX_BYTES}"]
        if installation.source == "path" and installation.supports(flag)
        else []
    )


def _control(explicit: bool, models: Sequence[str]) -> list[str]:
    if not explicit:
        return ["--model-control-mode=none"]
    return ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)]


def _launch(
    command: list[str], installation: Installation, log_path: Path
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **installation.environment}
    with _opened(log_path) as log_file:
        try:
            # A session of its own: Ctrl-C at the terminal reaches us, and we stop the server in
            # order.
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
                f"tritonserver cannot be run: {error}", where=str(installation.executable)
            ) from error


def _opened(log_path: Path) -> BinaryIO:
    try:
        return log_path.open("wb")
    except OSError as error:
        raise EnvironmentProblem(
            f"the log cannot be written: {error.strerror}", where=str(log_path)
        ) from error


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _why(text: str, head: str) -> str:
    """`head`, then every model that failed or hangs; the log's end where it names none."""
    reasons = [str(failure) for failure in log.failures(text)]
    reasons += [
        f"model {name!r}: its loading neither ended nor failed" for name in log.unfinished(text)
    ]
    reasons = reasons or [log.fatal(text) or log.tail(text)]
    return "\n  ".join([f"{head}:", *(reason.replace("\n", "\n    ") for reason in reasons)])
