"""Tests of the fuzzing tool: short runs, earlier findings, and detection and minimization of a
fault.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from builder.lowering import unread_writes
from builder.lowering.passes.functionalize import inplace
from tests.fuzz import published
from tests.fuzz.__main__ import FOUND, fuzz, main
from tests.fuzz.checking import Outcome, check
from tests.fuzz.minimize import minimized
from tests.fuzz.programs import KINDS, Program, program, source_of
from tests.fuzz.state import check_calls, source


@pytest.mark.parametrize("kind", KINDS)
def test_short_run_has_no_findings(kind: str, tmp_path: Path) -> None:
    counts, files = fuzz((kind,), 0, seconds=60, programs=3, keep=tmp_path)
    assert counts["programs"] == 3 and not files


@pytest.mark.parametrize(
    "file", sorted(FOUND.glob("*.txt")), ids=lambda file: file.stem
)
def test_earlier_findings_are_fixed(file: Path) -> None:
    outcome = check(source_of(file), file.stem)
    assert outcome.verdict in ("equal", "refused"), outcome.reason


def test_inserted_fault_is_found_minimized_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault is a `fill_` that is lowered like `zero_`."""
    wrong = {**inplace._SPECIAL, "aten::fill_": inplace._SPECIAL["aten::zero_"]}
    monkeypatch.setattr(inplace, "_SPECIAL", wrong)
    lines = (
        "a = x.clone()",
        "b = y + 1",
        "for t in range(x.size(0)):",
        "    a.fill_(2)",
    )
    generated = Program(
        "inplace", 7, (*lines, "c = a * b", "return (a,)"), traced=False
    )
    monkeypatch.setattr("tests.fuzz.__main__.program", lambda kind, seed: generated)
    arguments = ["--kind", "inplace", "--programs", "1", "--seconds", "99"]
    assert main([*arguments, "--keep", str(tmp_path)]) == 1
    source = source_of(tmp_path / "inplace_7.txt")
    assert "a.fill_(2)" in source and "y + 1" not in source and "for t" not in source
    assert "lowered graph, output 0" in capsys.readouterr().out


def test_time_is_shared_between_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow kind runs fewer programs, so that the other kinds run, too."""
    clock = count(0.0, 1.0)
    monkeypatch.setattr("tests.fuzz.__main__.time.monotonic", lambda: next(clock))

    def fake_check(source: str, name: str, engine: bool) -> Outcome:
        for _ in range(9 if name.startswith("export") else 0):
            next(clock)
        return Outcome("equal")

    monkeypatch.setattr("tests.fuzz.__main__.check", fake_check)
    counts, _ = fuzz(KINDS, 0, seconds=400, programs=10**6, keep=tmp_path)
    shares = {kind: counts[f"of kind {kind}"] for kind in KINDS}
    assert 0 < 3 * shares["export"] < min(shares["containers"], shares["inplace"])


def test_equal_seeds_give_equal_programs() -> None:
    assert program("control", 3) == program("control", 3) != program("control", 4)


def test_minimization_removes_statements_with_their_blocks() -> None:
    lines = ("if a:", "    b", "else:", "    c", "d")
    generated = Program("control", 0, lines, traced=False)
    assert minimized(generated, lambda smaller: "d" in smaller.lines).lines == ("d",)
    assert minimized(
        generated, lambda smaller: "c" in map(str.strip, smaller.lines)
    ).lines == ("c",)


def test_program_that_fails_in_torch_is_invalid() -> None:
    generated = Program("control", 0, ("return torch.relu(nothing)",), traced=False)
    assert check(generated.source(), "invalid").verdict == "invalid"


def _outcomes(seeds: range) -> Counter[str]:
    counts = Counter[str]()
    for seed in seeds:
        outcome = check_calls(source(seed), f"state_{seed}")
        counts[outcome.verdict] += 1
        counts["leaves out"] += outcome.leaves_out
    return counts


def test_modules_that_write_attributes_have_no_hidden_state() -> None:
    counts = _outcomes(range(80))
    assert not counts["wrong"]
    assert counts["leaves out"] > 30 and counts["refused"] > 10, counts


def test_write_that_a_later_call_needs_is_found_if_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unread_writes._Memory, "needed", lambda memory: set())
    assert _outcomes(range(30))["wrong"]


@pytest.mark.slow
@pytest.mark.live
def test_published_programs_respond_as_torch(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["--seed", "3", "--seconds", "1", "--models", "3", "--out", str(file)]
    assert published.main(arguments) == 0
    rows = map(json.loads, file.read_text().splitlines())
    assert [row["verdict"] for row in rows] == ["equal"] * 3
