"""`--json` writes one JSON document to standard output, also if a model prints. Control characters
are escaped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from builder.cli import main
from builder.cli.terminal import Terminal
from builder.printable import printable
from builder.processes import fork_server, pool

MANIFEST = """\
inputs: [{name: x, dtype: float32, shape: [n, 3]}]
dims: {n: {min: 1, opt: 2, max: 3}}
"""


class Prints(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("a model's line \x1b[31m\x07")
        return x * 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    torch.jit.script(Prints()).save(str(folder / "prints.pt"))
    (folder / "prints.yaml").write_text(MANIFEST)
    return folder


@pytest.mark.slow
def test_output_of_a_model_goes_to_stderr(models: Path) -> None:
    """Needs a process of its own: pytest replaces standard output."""
    command = [sys.executable, "-c", "from builder.cli import main; main()", "check"]
    process = subprocess.run(
        [*command, str(models), "--json", "--no-isolate"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(process.stdout)["ok"]
    assert "a model's line" in process.stderr


@pytest.mark.slow
def test_output_of_an_isolated_model_is_escaped(
    models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fork server of its own, which has the standard error of this test."""
    own_server = fork_server.ForkServer()
    monkeypatch.setattr(pool, "connect", own_server.connect)
    try:
        main(["check", str(models), "--json", "--isolate"], standalone_mode=False)
    finally:
        own_server.close()
    stdout, stderr = capfd.readouterr()
    assert json.loads(stdout)["ok"]
    assert "a model's line" in stderr
    assert "\\x1b[31m\\x07" in stderr and "\x1b" not in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "models", "--json", "--bogus"], "--bogus"),
        (["repo", "--json"], "MODELS"),
        (["bogus", "--json"], "bogus"),
        (["verify", "repository", "--serve", "--url", "x:1", "--json"], "--serve"),
    ],
)
def test_usage_error_is_a_json_document(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert message in error["message"] and error["exit_code"] == 2
    assert message in result.stderr
    without = CliRunner().invoke(main, [a for a in arguments if a != "--json"])
    assert without.exit_code == 2 and without.stdout == ""


def test_control_characters_except_line_breaks_are_escaped() -> None:
    text = "a\x1b]0;title\x07\r\n\tb\x9b\u202ec"
    assert printable(text) == "a\\x1b]0;title\\x07\\x0d\n\tb\\x9b\\u202ec"
    assert printable("modèle 模型") == "modèle 模型"
    # a file name that is not UTF-8
    assert printable(os.fsdecode(b"\xff")) == "\\udcff"


def test_every_kind_of_terminal_output_is_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal()
    terminal.line("\x1bline")
    terminal.note("\x1bnote")
    terminal.failure("\x1bfailure\n\x1brest", {})
    terminal.table(("model",), [["\x1bcell"]])
    with terminal.progress() as progress:
        progress("\x1bmodel", "build")
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown and shown.count("\\x1b") == 6
