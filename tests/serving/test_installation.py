"""Finding a tritonserver: the bundle's, or the one on the PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from builder.errors import EnvironmentProblem
from builder.serving import installation
from builder.serving.flags import optional

pytriton = pytest.importorskip("pytriton")


def test_bundle_has_libraries_python_and_executable_stub(
    tmp_path: Path,
) -> None:
    installed = installation.find("nvidia-pytriton")
    assert installed.environment["PATH"].split(os.pathsep)[0] == str(
        Path(sys.executable).parent
    )
    assert "nvidia_pytriton.libs" in installed.environment["LD_LIBRARY_PATH"]
    (flag,) = installed.backend_flags(tmp_path)
    folder = Path(flag.removeprefix("--backend-directory=")) / "python"
    assert os.access(folder / "triton_python_backend_stub", os.X_OK)
    assert (folder / "libtriton_python.so").exists()


def test_server_on_the_path_is_preferred_with_its_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\necho '  --http-max-input-size <integer>'\nexit 1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    installed = installation.find()
    assert (installed.executable, installed.source) == (binary, "path")
    assert installed.backend_flags(tmp_path) == []
    assert installed.supports("--http-max-input-size") and not installed.supports(
        "--no-such-flag"
    )


def test_shared_memory_flag_is_used_only_if_supported(
    tmp_path: Path,
) -> None:
    binary = tmp_path / "tritonserver"
    flags = []
    for text in ("--allow-client-shm <boolean>", "--allow-metrics <boolean>"):
        binary.write_text(f"#!/bin/sh\necho '  {text}'\n")
        binary.chmod(0o755)
        flags.append(list(optional(installation.Installation(binary, "path"), True)))
    assert flags == [["--allow-client-shm=true"], []]
    assert list(optional(installation.find("nvidia-pytriton"), True)) == []


def test_help_with_invalid_utf_8_is_read(tmp_path: Path) -> None:
    """If LANG is C, Python decodes as ASCII by default."""
    binary = tmp_path / "tritonserver"
    binary.write_bytes(b"#!/bin/sh\nprintf '\\342\\200\\224 \\377 --flag <x>\\n'\n")
    binary.chmod(0o755)
    server = installation.Installation(binary, "path")
    assert server.supports("--flag") and not server.supports("--other")


def test_backends_are_read_from_the_folder_of_the_server(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.touch()
    server = installation.Installation(binary, "path")
    assert server.backends() is None
    for name in ("python", "tensorrt"):
        (tmp_path / "backends" / name).mkdir(parents=True)
    assert server.backends() == {"python", "tensorrt"}
    (tmp_path / "bin" / "backends" / "pytorch").mkdir(parents=True)
    assert server.backends() == {"pytorch"}, (
        "the folder beside the wrapper has priority"
    )
    assert installation.find("nvidia-pytriton").backends() == {"python"}


def test_missing_server_is_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="no tritonserver") as caught:
        installation.find()
    assert "trt-build[server]" in (caught.value.fix or "")


def test_python_without_a_shared_library_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        installation.Path, "exists", lambda self: "libpython" not in self.name
    )
    monkeypatch.setattr(installation.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="libpython") as caught:
        installation.find("nvidia-pytriton")
    assert "apt-get install" in (caught.value.fix or "")


def test_python_without_a_stub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_stub", lambda bundle: Path("/nowhere/stub"))
    with pytest.raises(EnvironmentProblem, match="no Python backend stub"):
        installation.find("nvidia-pytriton")


def test_server_without_readable_help_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\necho no library\nexit 127\n")
    binary.chmod(0o755)
    server = installation.Installation(binary, "path")
    with pytest.raises(
        EnvironmentProblem, match="exit code 127 and lists no flags: no library"
    ):
        server.supports("--http-restricted-api")
