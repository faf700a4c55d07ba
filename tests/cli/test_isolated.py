"""A model that crashes or never ends fails alone, with its name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from builder import processes
from builder.cli import isolated
from builder.manifest.spec import Limits
from tests.cli.conftest import MANIFEST, PROGRAM, environment, save

Run = Callable[..., Result]

LIBRARY = """\
import os, signal, torch
library = torch.library.Library("hostile", "FRAGMENT")
library.define("crash(Tensor x) -> Tensor")
library.impl("crash", lambda x: os.kill(os.getpid(), signal.SIGSEGV), "CPU")
"""


class Endless(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = 0
        while count < 10:
            x = x + 1
        return x


def write_crashing_model(folder: Path) -> None:
    """Write a model whose forward kills its process in a custom operator."""
    (folder / "library.py").write_text(LIBRARY)
    code = (
        f"import torch\nexec(open({str(folder / 'library.py')!r}).read())\n"
        "class Crashes(torch.nn.Module):\n"
        "    def forward(self, x: torch.Tensor) -> torch.Tensor:\n"
        "        return torch.ops.hostile.crash(x)\n"
    )
    (folder / "make.py").write_text(
        code + f"torch.jit.script(Crashes()).save({str(folder / 'crashes.pt')!r})\n"
    )
    subprocess.run([PROGRAM[0], str(folder / "make.py")], check=True)
    (folder / "crashes.yaml").write_text(MANIFEST + "libraries: [library.py]\n")


@pytest.mark.slow
def test_crash_and_endless_forward_fail_only_their_models(small: Path) -> None:
    write_crashing_model(small)
    save(Endless(), small / "endless.pt", MANIFEST + "limits: {stage_seconds: 4}\n")
    process = subprocess.run(
        [*PROGRAM, "check", "--json", "--paranoid", str(small)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )
    models = {model["name"]: model for model in json.loads(process.stdout)["models"]}
    assert process.returncode == 1
    assert models["small"]["error"] is None
    assert "SIGSEGV" in models["crashes"]["error"]["message"]
    assert "took more than 4 s" in models["endless"]["error"]["message"]


def crash(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(*arguments: object) -> None:
    while True:
        time.sleep(1)


@pytest.mark.parametrize(
    ("behavior", "words"),
    [("crash", "crashed with SIGSEGV"), ("hang", "more than 0.3 s")],
)
@pytest.mark.parametrize("command", ["init", "lower", "inspect"])
def test_crash_or_timeout_of_the_process_is_an_error_of_the_command(
    small: Path,
    run_with_workers: Run,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    behavior: str,
    words: str,
) -> None:
    """A function that kills or blocks its process replaces the model."""
    real = isolated.run_one

    def run_one(target: Any, isolate: bool, **more: Any) -> Any:
        # a crash must not become a timeout on a busy machine
        more["limits"] = Limits(stage_seconds=0.3 if behavior == "hang" else 60)
        return real({"crash": crash, "hang": hang}[behavior], isolate, **more)

    monkeypatch.setattr(isolated, "run_one", run_one)
    more = ("--force",) if command == "init" else ()
    before = (small / "small.yaml").read_text()
    result = run_with_workers(command, small / "small.pt", *more)
    assert result.exit_code == 1
    assert words in result.stderr
    assert (small / "small.yaml").read_text() == before


def test_failed_lower_leaves_no_folder(small: Path, tmp_path: Path, run: Run) -> None:
    refused = run(
        "lower", small / "small.pt", "--out", tmp_path / "new", "--show", "inlin"
    )
    assert refused.exit_code == 2
    assert not (tmp_path / "new").exists()


PROBE = """\
from pathlib import Path
found = []
for name in {files!r}:
    try:
        Path(name).read_text() if name.endswith("store.key") else Path(name).write_text("evil")
        found.append(name)
    except (PermissionError, FileNotFoundError):
        pass
raise ValueError(f"reached: {{found}}")
"""


@pytest.mark.skipif(
    bool(processes.missing()), reason="this machine has no Landlock or seccomp"
)
def test_build_cannot_write_beside_the_repository_or_read_the_key(
    small: Path, tmp_path: Path, run_with_workers: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin, which runs in the same process, replaces the model."""
    monkeypatch.delenv("TRT_BUILD_STORE_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    out, probe = tmp_path / "here" / "out", tmp_path / "probe.py"
    files = [
        out.parent / "beside",
        small / "small.pt",
        tmp_path / "config/trt-build/store.key",
    ]
    probe.write_text(PROBE.format(files=[str(file) for file in files]))
    result = run_with_workers(
        "repo",
        small,
        "--out",
        out,
        "--store",
        tmp_path / "store",
        "--plugin",
        probe,
    )
    assert "ValueError: reached: []" in result.stderr
    assert files[2].is_file()
    assert not out.parent.exists()
