"""State in the commands: init guesses it, check and inspect show it, and --state selects where it
is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from torch import Tensor

from builder.manifest import load
from tests.repository import stateful as models

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return models.write(tmp_path, "recognizer")


def shorten(manifest: Path) -> None:
    """Replace the guessed ranges: the reference evaluates each step of a loop."""
    ranges = "{min: 1, opt: 2, max: 4}"
    manifest.write_text(re.sub(r"\{min: .*\}", ranges, manifest.read_text()))


def test_init_guesses_the_state_of_a_recurrent_layer(folder: Path, run: Run) -> None:
    """The written manifest passes check, also after the state section is uncommented."""
    assert run("init", folder / "recognizer.pt", "--force").exit_code == 0
    text = (folder / "recognizer.yaml").read_text()
    (spec,) = load(folder)
    assert [tensor.shape for tensor in spec.inputs] == [
        ("batch", "length", 6),
        (2, "batch", 5),
        (2, "batch", 5),
    ]
    assert not spec.state
    (folder / "recognizer.yaml").write_text(
        text.replace("# state", "state").replace("#   -", "  -")
    )
    (spec,) = load(folder)
    assert [(state.input, state.output) for state in spec.state] == [
        ("h0", "output_1"),
        ("c0", "output_2"),
    ]
    shorten(folder / "recognizer.yaml")
    assert run("check", folder).exit_code == 0


class Step(torch.nn.Module):
    """One step of an LSTM and of a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = torch.nn.LSTMCell(5, 7), torch.nn.GRUCell(7, 3)

    def forward(
        self, x: Tensor, h: Tensor, c: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h, c = self.lstm(x, (h, c))
        g = self.gru(h, g)
        return torch.relu(g), h, c, g


def test_init_guesses_the_state_of_cells(tmp_path: Path, run: Run) -> None:
    torch.jit.script(Step()).save(str(tmp_path / "step.pt"))
    assert run("init", tmp_path / "step.pt").exit_code == 0
    (spec,) = load(tmp_path)
    assert [tensor.shape for tensor in spec.inputs] == [
        ("batch", size) for size in (5, 7, 7, 3)
    ]
    manifest = tmp_path / "step.yaml"
    manifest.write_text(
        manifest.read_text().replace("# state", "state").replace("#   -", "  -")
    )
    (spec,) = load(tmp_path)
    assert [(state.input, state.output) for state in spec.state] == [
        ("h", "output_1"),
        ("c", "output_2"),
        ("g", "output_3"),
    ]


class Packed(torch.nn.Module):
    """Two layers over a packed sequence, the first from a given state."""

    def __init__(self, enforce_sorted: bool) -> None:
        super().__init__()
        self.first, self.second = (
            torch.nn.GRU(6, 5, 2, batch_first=True),
            torch.nn.GRU(5, 4),
        )
        self.enforce_sorted = enforce_sorted

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor, h0: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), True, self.enforce_sorted
        )
        packed, h = self.first(packed, h0)
        packed, last = self.second(packed)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, True, 0.0, x.size(1))
        return y, h, last


@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_init_guesses_the_state_of_packed_sequences(
    tmp_path: Path, run: Run, enforce_sorted: bool
) -> None:
    torch.jit.script(Packed(enforce_sorted)).save(tmp_path / "packed.pt")
    assert json.loads(run("init", tmp_path / "packed.pt", "--json").stdout)[
        "state"
    ] == [{"input": "h0", "output": "output_1"}]
    (spec,) = load(tmp_path)
    assert [tensor.shape for tensor in spec.inputs] == [
        ("batch", "length", 6),
        ("batch",),
        (2, "batch", 5),
    ]
    assert [tensor.dtype for tensor in spec.inputs] == ["float32", "int64", "float32"]
    shorten(tmp_path / "packed.yaml")
    assert run("check", tmp_path).exit_code == 0


def test_init_guesses_state_from_names(tmp_path: Path, run: Run) -> None:
    class Cached(torch.nn.Module):
        def forward(
            self, x: torch.Tensor, cache: torch.Tensor
        ) -> dict[str, torch.Tensor]:
            return {"y": x + cache, "next_cache": x, "x_norm": x.norm()}

    torch.jit.script(Cached()).save(tmp_path / "cached.pt")
    data = json.loads(run("init", tmp_path / "cached.pt", "--json").stdout)
    assert data["state"] == [{"input": "cache", "output": "next_cache"}]


def test_init_guesses_no_state_for_a_linear_layer(tmp_path: Path, run: Run) -> None:
    torch.jit.script(torch.nn.Linear(3, 3)).save(tmp_path / "plain.pt")
    assert (
        json.loads(run("init", tmp_path / "plain.pt", "--json").stdout)["state"] == []
    )
    assert "state" not in (tmp_path / "plain.yaml").read_text()


def test_check_shows_where_state_is_kept_and_the_config(folder: Path, run: Run) -> None:
    result = run("check", folder, "--show-config")
    assert result.exit_code == 0
    assert "state h0 <- hn [2, streams, 5], kept by the server" in result.stdout
    assert "sequence_batching {" in result.stdout
    explicit = run("check", folder, "--state", "explicit", "--show-config")
    assert (
        "kept by the client" in explicit.stdout
        and "sequence_batching" not in explicit.stdout
    )
    (report,) = json.loads(run("check", folder, "--paranoid", "--json").stdout)[
        "models"
    ]
    assert report["error"] is None
    assert [state["kept"] for state in report["state"]] == ["implicit", "implicit"]


def test_check_reports_mismatched_state_with_its_line(folder: Path, run: Run) -> None:
    manifest = folder / "recognizer.yaml"
    manifest.write_text(manifest.read_text().replace("output: cn}", "output: y}"))
    result = run("check", folder)
    assert result.exit_code == 2
    assert (
        f"{manifest}:11" in result.stdout
        and "output 'y' is float32[1, 3, 3]" in result.stdout
    )


def test_inspect_shows_state_and_the_network_that_serves_it(
    folder: Path, run: Run
) -> None:
    assert run("repo", folder, "--out", folder / "out").exit_code == 0
    shown = run("inspect", folder / "out" / "recognizer").stdout
    assert "h0 <- hn  float32[2, 5], from the file initial_state/h0" in shown
    assert "c0 <- cn  float32[2, 5], from zeros" in shown
    assert "python, keeps state" in run("inspect", folder / "out").stdout
    assert (
        "input  h0  FLOAT[-1, 2, 5]"
        in run("inspect", folder / "recognizer.yaml").stdout
    )
