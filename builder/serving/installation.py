"""Finds a tritonserver on this machine and the environment that its process needs."""

from __future__ import annotations

import ctypes.util
import functools
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import EnvironmentProblem

STUB = "triton_python_backend_stub"
HELP_TRIALS = 3
VARIABLE = "TRT_BUILD_TRITONSERVER"


@dataclass(frozen=True)
class Installation:
    """A tritonserver. `source` is "path" or "nvidia-pytriton"; `bundle` is the latter's folder.

    `environment` overrides variables of this process.
    """

    executable: Path
    source: str
    bundle: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def backend_flags(self, scratch: Path) -> list[str]:
        """Return flags for the backend folder.

        The server does not look for the stub in the bundle's folder, so a folder is created in
        `scratch`.
        """
        if self.bundle:
            return [f"--backend-directory={_lay_out(self.bundle, scratch)}"]
        return []

    def supports(self, flag: str) -> bool:
        """Whether `tritonserver --help` lists the flag. The server exits on an unknown flag."""
        changed = (
            os.stat(self.executable).st_mtime_ns if self.executable.exists() else 0
        )
        return flag in _flags(
            self.executable, changed, tuple(sorted(self.environment.items()))
        )

    def backends(self) -> frozenset[str] | None:
        """The backends in the server's own folder (`bin/../backends`, or `backends` beside a
        wrapper); None if it has no such folder.
        """
        if self.bundle:
            return frozenset({"python"})
        binary = self.executable.resolve()
        for folder in (binary.parent / "backends", binary.parent.parent / "backends"):
            if folder.is_dir():
                return frozenset(
                    entry.name for entry in folder.iterdir() if entry.is_dir()
                )
        return None


@functools.lru_cache(maxsize=8)
def _flags(
    executable: Path, changed: int, environment: tuple[tuple[str, str], ...]
) -> frozenset[str]:
    """The words of `tritonserver --help`, including its flags.

    Raises EnvironmentProblem if it prints no flags: the server would then be started without the
    flags that close it to clients.
    """
    for _ in range(HELP_TRIALS):
        result = subprocess.run(
            [str(executable), "--help"],
            env={**os.environ, **dict(environment)},
            capture_output=True,
            timeout=60,
            check=False,
        )
        # in UTF-8, independent of the locale, which may be C
        printed = (result.stdout + b" " + result.stderr).decode("utf-8", "replace")
        words = frozenset(printed.split())
        if any(word.startswith("--") for word in words):
            return words
    raise EnvironmentProblem(
        f"tritonserver --help ends with exit code {result.returncode} and lists no flags:"
        f" {printed[-500:].strip() or 'it prints nothing'}",
        where=str(executable),
    )


def find(prefer: str = "auto") -> Installation:
    """The tritonserver to use: `path` (or $TRT_BUILD_TRITONSERVER), `nvidia-pytriton`, or auto.

    `auto` tries them in this order. Raises EnvironmentProblem if there is none, if the bundle has
    no stub for this Python, or if libpython is missing.
    """
    on_path = os.environ.get(VARIABLE) or shutil.which("tritonserver")
    if on_path and prefer in ("auto", "path"):
        return Installation(
            Path(on_path), "path", environment={"PATH": _path_with_our_python()}
        )
    spec = (
        importlib.util.find_spec("pytriton")
        if prefer in ("auto", "nvidia-pytriton")
        else None
    )
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "no tritonserver was found",
            fix="pip install 'trt-build[server]', or add tritonserver to the PATH",
        )
    return _bundled(Path(spec.origin).parent)


def _bundled(package: Path) -> Installation:
    bundle = package / "tritonserver"
    stub = _stub(bundle)
    if not stub.exists():
        version = ".".join(map(str, sys.version_info[:2]))
        raise EnvironmentProblem(
            f"nvidia-pytriton has no Python backend stub for Python {version}",
            fix="use Python 3.10, 3.11 or 3.12",
        )
    libraries = [str(package.parent / "nvidia_pytriton.libs"), *_libpython_folder()]
    environment = {
        "PATH": _path_with_our_python(),
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *_inherited()]),
    }
    return Installation(
        bundle / "bin" / "tritonserver", "nvidia-pytriton", bundle, environment
    )


def _inherited() -> list[str]:
    return [
        part for part in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part
    ]


def _stub(bundle: Path) -> Path:
    return (
        bundle
        / "python_backend_stubs"
        / ".".join(map(str, sys.version_info[:2]))
        / STUB
    )


def _path_with_our_python() -> str:
    """PATH with this Python first, so that the stub uses its packages, including torch."""
    return os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    )


def _libpython_folder() -> list[str]:
    """The folder of this Python's shared library; [] if the system's loader finds it."""
    name = "libpython{}.{}.so.1.0".format(*sys.version_info[:2])
    folders = [
        sysconfig.get_config_var("LIBDIR"),
        f"{sys.base_prefix}/lib",
        *_multiarch(),
    ]
    for folder in filter(None, folders):
        if Path(folder, name).exists():
            return [str(folder)]
    if ctypes.util.find_library("python{}.{}".format(*sys.version_info[:2])):
        return []
    version = "{}.{}".format(*sys.version_info[:2])
    raise EnvironmentProblem(
        f"{name} was not found, and Triton's Python backend needs it",
        fix=(
            f"apt-get install libpython{version} (Debian, Ubuntu), or use a Python built with"
            " --enable-shared"
        ),
    )


def _multiarch() -> list[str]:
    triple = sysconfig.get_config_var("MULTIARCH")
    if triple:
        return [f"/usr/lib/{triple}", f"/lib/{triple}"]
    return []


def _lay_out(bundle: Path, scratch: Path) -> Path:
    """Create backends/python: links to the bundle's files, and an executable copy of the stub."""
    python = scratch / "backends" / "python"
    python.mkdir(parents=True)
    for file in (bundle / "backends" / "python").iterdir():
        if file.is_file():
            (python / file.name).symlink_to(file)
    shutil.copy(_stub(bundle), python / STUB)
    (python / STUB).chmod(0o755)
    return python.parent


def server_version(installation: Installation) -> str | None:
    """Return the server's version without starting it: from the bundle's package, or from its
    image.

    tritonserver has no --version.
    """
    if installation.source == "nvidia-pytriton":
        return f"nvidia-pytriton {importlib.metadata.version('nvidia-pytriton')}"
    return os.environ.get("TRITON_SERVER_VERSION")
