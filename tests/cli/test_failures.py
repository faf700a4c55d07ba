"""An unexpected error fails only its model, with the model's name and an exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from builder.pipeline import fallback
from tests.cli.conftest import Small, save

Run = Callable[..., Result]

PLUGIN = """
from builder.pipeline import fallback

real = fallback.convert_or_partition

def convert_or_partition(lowered, spec, names, *more):
    if spec.name == "bad":
        {statement}
    return real(lowered, spec, names, *more)

fallback.convert_or_partition = convert_or_partition
"""
ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9"
    " bytes."
)
KINDS = {
    "memory": ("raise MemoryError", 4, "there is not enough memory"),
    "torch": (
        f'raise RuntimeError("{ALLOCATOR}")',
        4,
        "can't allocate memory: you tried 9 bytes",
    ),
    "package": (
        "import nothing_of_that_name",
        4,
        "nothing_of_that_name is not installed",
    ),
    "defect": (
        "1 / 0",
        70,
        "this is a defect of trt-build: ZeroDivisionError: division by zero",
    ),
}


@pytest.fixture
def models(small: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models `bad` and `small`. The fixture undoes the change of the plugin."""
    save(Small(), small / "bad.pt")
    monkeypatch.setattr(fallback, "convert_or_partition", fallback.convert_or_partition)
    return small


def plugin(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"{kind}_plugin.py"
    path.write_text(PLUGIN.format(statement=KINDS[kind][0]))
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_repo_names_the_model_and_builds_the_others(
    models: Path, tmp_path: Path, run: Run, kind: str, isolate: str
) -> None:
    _, code, words = KINDS[kind]
    out = tmp_path / "out"
    result = run(
        "repo",
        models,
        "--out",
        out,
        "--no-store",
        isolate,
        "--plugin",
        plugin(tmp_path, kind),
    )
    assert result.exit_code == code
    assert "error: bad: " in result.stderr and words in result.stderr
    assert "1 of 2 models" in result.stdout and "Traceback" not in result.output
    assert {path.name for path in out.iterdir()} == {"small"}


@pytest.mark.parametrize("kind", KINDS)
def test_check_names_the_model_and_checks_the_others(
    models: Path, tmp_path: Path, run: Run, kind: str
) -> None:
    _, code, words = KINDS[kind]
    result = run("check", models, "--json", "--plugin", plugin(tmp_path, kind))
    bad, small = json.loads(result.stdout)["models"]
    assert (result.exit_code, bad["error"]["exit_code"]) == (code, code)
    assert bad["name"] == "bad" and words in bad["error"]["message"]
    assert small["error"] is None and small["config"]


def test_failures_of_several_kinds_exit_with_1(
    models: Path, tmp_path: Path, run: Run
) -> None:
    (models / "broken.pt").write_bytes(b"PK\x03\x04 not much of a zip")
    (models / "broken.yaml").write_text((models / "small.yaml").read_text())
    for words in (
        ["repo", models, "--out", tmp_path / "out", "--no-store"],
        ["check", models],
    ):
        assert run(*words, "--plugin", plugin(tmp_path, "defect")).exit_code == 1


@pytest.mark.parametrize(
    "words", [["repo", "--out", "out", "--no-store"], ["check"]], ids=["repo", "check"]
)
def test_traceback_of_a_defect_is_in_json_and_printed_with_debug(
    models: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(
        words[0],
        models,
        *words[1:],
        "--debug",
        "--json",
        "--plugin",
        plugin(tmp_path, "defect"),
    )
    bad, _ = json.loads(result.stdout)["models"]
    assert (
        bad["error"]["kind"] == "Defect"
        and "defect_plugin.py" in bad["error"]["traceback"]
    )
    assert "bad: Traceback" in result.stderr and "ZeroDivisionError" in result.stderr
    assert (
        "please report it" in bad["error"]["fix"]
        and "/builder/" in bad["error"]["where"]
    )


def test_defect_in_a_precision_search_does_not_stop_other_models(
    models: Path, tmp_path: Path, run: Run
) -> None:
    words = ["--search-precision", "--no-store", "--plugin", plugin(tmp_path, "defect")]
    result = run("repo", models, "--out", tmp_path / "out", *words)
    assert (
        result.exit_code == 70
        and "bad: no precision was found: this is a defect" in result.stderr
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"small"}


DAMAGED = (
    "[]",
    "null",
    "[" * 100_000,
    '{"inputs": 3, "outputs": [1], "bytes": "x", "state": 5}',
)


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("name", ["trt-build.json", "1/plan.json"])
def test_damaged_json_of_a_published_model_is_reported_by_name(
    published: Path, tmp_path: Path, run: Run, name: str, text: str
) -> None:
    model = published / "small"
    (model / name).write_text(text)
    plan, merged = model / "1" / "model.plan", tmp_path / "merged"
    for arguments in (("inspect", model), ("inspect", plan), ("inspect", published)):
        assert run(*arguments).exit_code in (0, 2)
    assert run("merge", published, "--out", merged).exit_code in (1, 2)
    result = run("explain", model, "--no-store")
    assert result.exit_code != 70
    assert f"{name} of the published model is damaged" in result.stdout


@pytest.mark.parametrize(
    "name", ["trt-build.json", "config.pbtxt", "1/plan.json", "1/model.plan"]
)
def test_pipe_in_a_published_model_does_not_block(
    published: Path, tmp_path: Path, run: Run, name: str
) -> None:
    file = published / "small" / name
    file.unlink()
    os.mkfifo(file)
    for arguments in (
        ("inspect", published / "small"),
        ("explain", published / "small", "--no-store"),
        ("merge", published, "--out", tmp_path / "merged"),
    ):
        assert run(*arguments).exit_code in (0, 1, 2)
    assert not (tmp_path / "merged").exists()
