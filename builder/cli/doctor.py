"""`trt-build doctor`: what is installed here, and what is missing for what."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from builder import __version__
from builder.cli.command import Command
from builder.cli.terminal import Terminal
from builder.errors import EnvironmentProblem

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
    """One thing that a task needs: `found` says what is here, else None, and then `fix` how to get
    it.
    """

    what: str
    needed_for: str
    found: str | None
    fix: str | None = None
    essential: bool = False


@click.command(
    "doctor", cls=Command, short_help="Say what is installed and what is missing for what."
)
@click.pass_obj
def doctor_command(terminal: Terminal) -> int:
    """Look at this machine: TensorRT, GPU, driver, server.

    Exit code 4 where nothing can be built at all.
    """
    findings = [probe() for probe in PROBES]
    data = {
        "trt-build": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "findings": [vars(finding) for finding in findings],
    }
    terminal.result(data, lambda: _show(terminal, data, findings))
    return 4 if any(finding.essential and finding.found is None for finding in findings) else 0


def version(package: str) -> str | None:
    """The installed version of a distribution, None where it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> Finding:
    return Finding("torch", "reading models", version("torch"), "pip install torch", essential=True)


def _flavour() -> Finding:
    from builder.engine import flavour

    needs = "building plans"
    try:
        name = flavour.resolve()
    except EnvironmentProblem as error:
        return Finding("TensorRT", needs, None, error.fix, essential=True)
    return Finding("TensorRT", needs, f"{name} {version(name) or ''}".strip(), essential=True)


def _gpu() -> Finding:
    gpus = devices()
    words = "; ".join(
        f"{gpu['name']}, compute capability {gpu['compute_capability']}, {gpu['memory']}"
        for gpu in gpus
    )
    fix = (
        "without one the Python runtime answers with torch on the CPU, and `tensorrt` plans cannot"
        " be built"
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
    from builder.serving import find, server_version

    try:
        found = find()
    except EnvironmentProblem as error:
        return Finding(
            "tritonserver", "serve, verify --serve", None, f"{error.message}: {error.fix}"
        )
    words = f"{server_version(found) or ''} {found.executable}".strip()
    if found.bundle:
        words += " (Triton 24.10 ends on deeply nested JSON; docker/nginx.conf limits requests)"
    return Finding("tritonserver", "serve, verify --serve", words)


def _docker() -> Finding:
    import shutil

    found = shutil.which("docker") or shutil.which("docker-compose")
    return Finding(
        "docker", "serving in NVIDIA's container", found, "install Docker with the compose plugin"
    )


def _python() -> Finding:
    supported = (3, 10) <= sys.version_info[:2] <= (3, 12)
    found = platform.python_version() if supported else None
    return Finding(
        "Python 3.10 to 3.12", "all of it", found, "use Python 3.10, 3.11 or 3.12", essential=True
    )


def _sandbox() -> Finding:
    from builder import processes

    found = " and ".join(name for name, here in processes.available().items() if here)
    missing = ", ".join(processes.missing())
    fix = f"{missing} is missing: models run with the rights of the user (docs/security.md)"
    return Finding("sandbox", "models from others", None if missing else found, fix)


PROBES: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _flavour,
    _gpu,
    _driver,
    _server,
    _docker,
    _sandbox,
)


def devices() -> list[dict[str, Any]]:
    """The GPUs that the CUDA driver reports, JSON-able; empty without a driver."""
    from builder.engine import gpu

    return [
        {
            "name": device.name,
            "compute_capability": ".".join(map(str, device.capability)),
            "memory": f"{device.memory / (1 << 30):.1f} GiB",
        }
        for device in gpu.devices()
    ]


def driver() -> str | None:
    """The kernel module's version, as it says itself."""
    import re
    from pathlib import Path

    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return found.group(1) if found else "of unknown version"


def _show(terminal: Terminal, data: dict[str, Any], findings: list[Finding]) -> None:
    terminal.line(f"trt-build {data['trt-build']}, Python {data['python']}, {data['platform']}")
    rows = [
        (f.what, "found" if f.found else "MISSING", f.found or f.fix or "", f.needed_for)
        for f in findings
    ]
    terminal.table(("what", "", "which, or how to get it", "needed for"), rows)
    terminal.line(
        "packages: "
        + ", ".join(f"{name} {found or '-'}" for name, found in data["packages"].items())
    )
