"""`trt-build doctor`: check this machine, or check whether a server can load a repository."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import __version__, deployment, engine, parity, processes, serving
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal
from builder.errors import EnvironmentProblem
from builder.printable import counted

if TYPE_CHECKING:
    from builder.deployment import Finding as Preflight
    from builder.deployment import ServerFacts

PACKAGES = (
    "torch",
    "numpy",
    "polygraphy",
    "tritonclient",
    "protobuf",
    "tensorrt-rtx",
    "tensorrt",
    "nvidia-pytriton",
)


@dataclass(frozen=True)
class Finding:
    """One requirement of a task. `found` describes what is installed, or is None; then `fix`
    explains how to get it. `path` is the file of its program.
    """

    what: str
    needed_for: str
    found: str | None
    fix: str | None = None
    essential: bool = False
    path: str | None = None


@command(
    "doctor",
    "trt-build doctor",
    "trt-build doctor model_repository --image 26.01",
)
@click.argument("repository", type=options.PATH, required=False)
@click.option(
    "--image",
    metavar="TAG",
    help="Compare REPOSITORY with NVIDIA's Triton container of this tag.",
)
@options.url
@options.access
@options.only
@options.count(
    "--shm-size",
    metavar="BYTES",
    help="The container's /dev/shm, with --image. [default: 1 GiB, as in docker-compose.yml]",
)
@options.flag(
    "--shared-memory", help="Also check what clients need to use shared memory."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65533),
    metavar="PORT",
    default=8000,
    help="HTTP port. gRPC and metrics use the next two.",
)
def doctor_command(
    terminal: Terminal, /, repository: Path | None, only: tuple[str, ...], **server: Any
) -> int:
    """Check the TensorRT, GPU, driver and server of this machine. With REPOSITORY, find what
    prevents a server from loading it: the server of this machine, a container (--image) or a
    running server (--url). docs/preflight.md explains each number.

    Exit code 4: nothing can be built, or a finding is an error.
    """
    if repository is not None:
        return _preflight(terminal, repository, only, server)
    if only or server["image"] or server["url"]:
        raise click.UsageError(
            "--image, --url and --only require a REPOSITORY argument"
        )
    findings = [probe() for probe in PROBES]
    data = {
        "trt-build": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "findings": [vars(finding) for finding in findings],
    }
    terminal.result(data, lambda: _show(terminal, data, findings))
    if any(finding.essential and finding.found is None for finding in findings):
        return 4
    return 0


def _preflight(
    terminal: Terminal, repository: Path, only: tuple[str, ...], options: dict[str, Any]
) -> int:
    parity.served.chosen(repository, only)
    server = _server_of(options)
    findings = deployment.preflight(repository, server, only)
    errors = [finding for finding in findings if finding.severity == deployment.ERROR]
    data = {
        "repository": repository,
        "server": server.name,
        "ok": not errors,
        "findings": [asdict(finding) for finding in findings],
    }
    terminal.result(data, lambda: show_preflight(terminal, server.name, findings))
    return 4 if errors else 0


def _server_of(options: dict[str, Any]) -> ServerFacts:
    """The server that the options name. Raises click.UsageError, and the errors of reaching it."""
    if options["image"] and options["url"]:
        raise click.UsageError("--image and --url exclude each other: choose one")
    if options["image"]:
        size = {"shm_bytes": options["shm_size"]} if options["shm_size"] else {}
        server = deployment.of_image(options["image"], **size)
    elif options["url"]:
        server = deployment.of_endpoint(options["url"], options["access"])
    else:
        names = ("--http-port", "--grpc-port", "--metrics-port")
        ports = {name: options["port"] + index for index, name in enumerate(names)}
        server = deployment.this_machine(ports)
    return replace(server, client_shared_memory=options["shared_memory"])


def show_preflight(
    terminal: Terminal, server: str, findings: Sequence[Preflight]
) -> None:
    """Print each finding with its number, then the counts."""
    for finding in findings:
        color = "red" if finding.severity == "error" else "yellow"
        terminal.line(
            f"{finding.number} {finding.severity}: {finding.subject}: {finding.message}",
            color=color,
        )
        terminal.line(f"    fix: {finding.fix}")
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = counted(len(findings) - errors, "warning")
    counts = f"{counted(errors, 'error')}, {warnings}"
    terminal.line(f"{server}: {counts} (docs/preflight.md)")


def note_preflight(terminal: Terminal, findings: Sequence[Preflight]) -> None:
    """Print the errors, for commands that continue."""
    for finding in findings:
        if finding.severity == "error":
            terminal.note(
                f"preflight: {finding.number} {finding.subject}: {finding.message}; {finding.fix}"
            )


def version(package: str) -> str | None:
    """The installed version of a distribution, None where it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> Finding:
    return Finding(
        "torch", "reading models", version("torch"), "pip install torch", essential=True
    )


def _flavor() -> Finding:
    needs = "building plans"
    try:
        name = engine.flavor.resolve()
    except EnvironmentProblem as error:
        return Finding("TensorRT", needs, None, error.fix, essential=True)
    return Finding(
        "TensorRT", needs, f"{name} {version(name) or ''}".strip(), essential=True
    )


def _gpu() -> Finding:
    gpus = devices()
    words = "; ".join(
        f"{gpu['name']}, compute capability {gpu['compute_capability']}, {gpu['memory']}"
        for gpu in gpus
    )
    fix = (
        "without a GPU the Python runtime uses torch on the CPU, and `tensorrt` plans cannot be "
        "built"
    )
    return Finding("GPU", "running plans", words or None, fix)


def _driver() -> Finding:
    return Finding(
        "NVIDIA driver",
        "running plans",
        driver(),
        "install the NVIDIA driver, or run on a GPU host",
    )


def _server() -> Finding:
    try:
        installation = serving.find()
    except EnvironmentProblem as error:
        return Finding(
            "tritonserver",
            "serve, verify --serve",
            None,
            f"{error.message}: {error.fix}",
        )
    words = serving.server_version(installation) or "of unknown version"
    if installation.bundle:
        words += " (deeply nested JSON crashes Triton 24.10; docker/nginx.conf limits requests)"
    path = str(installation.executable)
    return Finding("tritonserver", "serve, verify --serve", words, path=path)


def _docker() -> Finding:
    executable = shutil.which("docker") or shutil.which("docker-compose")
    return Finding(
        "docker",
        "serving in NVIDIA's container",
        Path(executable).name if executable else None,
        "install Docker with the compose plugin",
        path=executable,
    )


def _python() -> Finding:
    supported = (3, 10) <= sys.version_info[:2] <= (3, 12)
    running = platform.python_version() if supported else None
    return Finding(
        "Python 3.10 to 3.12",
        "everything",
        running,
        "use Python 3.10, 3.11 or 3.12",
        essential=True,
    )


def _sandbox() -> Finding:
    mechanisms = " and ".join(
        name for name, here in processes.available().items() if here
    )
    missing = ", ".join(processes.missing())
    fix = f"{missing} is missing: models run with the rights of the user (docs/security.md)"
    return Finding("sandbox", "untrusted models", None if missing else mechanisms, fix)


PROBES: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _flavor,
    _gpu,
    _driver,
    _server,
    _docker,
    _sandbox,
)


def devices() -> list[dict[str, Any]]:
    """The GPUs that the CUDA driver reports, JSON-able; empty without a driver."""
    return [
        {
            "name": device.name,
            "compute_capability": ".".join(map(str, device.capability)),
            "memory": f"{device.memory / (1 << 30):.1f} GiB",
        }
        for device in engine.gpu.devices()
    ]


def driver() -> str | None:
    """The version that the kernel module reports."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return match.group(1) if match else "of unknown version"


def _show(terminal: Terminal, data: dict[str, Any], findings: list[Finding]) -> None:
    terminal.line(
        f"trt-build {data['trt-build']}, Python {data['python']}, {data['platform']}"
    )
    rows = [
        (
            finding.what,
            "found" if finding.found else "MISSING",
            finding.found or finding.fix or "",
            finding.needed_for,
        )
        for finding in findings
    ]
    terminal.table(("what", "status", "found, or how to get it", "needed for"), rows)
    for finding in findings:
        if finding.path:  # a line of its own is not wrapped, so the path can be copied
            terminal.line(f"{finding.what}: {finding.path}")
    packages = [
        f"{name} {package_version or '-'}"
        for name, package_version in data["packages"].items()
    ]
    terminal.line(f"packages: {', '.join(packages)}")
