"""A model that crashes or never ends fails by name in `check`; the other models go on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch

from tests.cli.conftest import MANIFEST, PROGRAM, environment, save

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


def crashing(folder: Path) -> None:
    """A model whose forward ends its process, through a custom operator."""
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


def test_a_crash_and_an_endless_forward_fail_alone(small: Path) -> None:
    crashing(small)
    save(Endless(), small / "endless.pt", MANIFEST + "limits: {stage_seconds: 20}\n")
    done = subprocess.run(
        [*PROGRAM, "check", "--json", "--paranoid", str(small)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )
    models = {model["name"]: model for model in json.loads(done.stdout)["models"]}
    assert done.returncode == 1
    assert models["small"]["error"] is None
    assert "SIGSEGV" in models["crashes"]["error"]["message"]
    assert "took more than 20 s" in models["endless"]["error"]["message"]
