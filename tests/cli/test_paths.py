"""Paths and URLs that a command refuses."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

URL = "sftp://me:hunter22@host/folder"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["merge", URL, "--out", "merged"], "a URL cannot be used here"),
        (["serve", "s3://bucket/out"], "a URL cannot be used here"),
        (["repo", "models", "--out", URL], "the URL of host has a password"),
        (["repo", URL, "--out", "out"], "the URL of host has a password"),
        (
            ["repo", "models", "--out", "out", "--store", URL],
            "the URL of host has a password",
        ),
        (
            ["repo", "models", "--out", "memory://x/out", "--write-env"],
            "there is no --write-env",
        ),
        (
            ["history", "memory://nothing/out"],
            "there is nothing at memory://nothing/out",
        ),
    ],
)
def test_refused_url_exits_with_2_and_hides_its_password(
    small: Path,
    run: Callable[..., Result],
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(small.parent)
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr and "hunter22" not in result.output
    assert not (small.parent / "out").exists()


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_path_without_read_permission_exits_with_4(
    small: Path,
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(small))
    result = run("check", small, *options)
    assert result.exit_code == 4
    assert "Permission denied" in result.stderr and "Usage:" not in result.stderr
    if options:
        assert json.loads(result.stdout)["error"]["exit_code"] == 4


@pytest.mark.parametrize("command", ["check", "repo"])
@pytest.mark.parametrize("suffix", [".pt", ".yaml"])
def test_file_without_read_permission_exits_with_4(
    small: Path,
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    command: str,
) -> None:
    file = next(small.glob(f"*{suffix}"))

    def denying(function: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Path | str, *arguments: Any, **options: Any) -> Any:
            if str(path) == str(file):
                reason = os.strerror(errno.EACCES)
                raise PermissionError(errno.EACCES, reason, str(file))
            return function(path, *arguments, **options)

        return opened

    monkeypatch.setattr(io, "open", denying(io.open))
    monkeypatch.setattr(builtins, "open", denying(open))
    out = ("--out", small.parent / "out") if command == "repo" else ()
    result = run(command, small, *out, "--no-isolate")
    assert result.exit_code == 4, result.output
    assert "Permission denied" in result.output and str(file) in result.output
    assert "give this user access to it" in result.output


def test_folder_of_a_published_model_is_refused_as_repository(
    small: Path, run: Callable[..., Result]
) -> None:
    model = small.parent / "out" / "net"
    model.mkdir(parents=True)
    (model / "config.pbtxt").write_text('name: "net"\n')
    for folder in (model, model / "1"):
        result = run("repo", small, "--out", folder)
        assert result.exit_code == 2, result.output
        assert "because it is in the model" in result.stderr
    assert [path.name for path in model.iterdir()] == ["config.pbtxt"]


@pytest.mark.parametrize(
    "words",
    [
        ["repo", "models", "--out", ""],
        ["repo", "models", "--out", "out", "--farm", ""],
        ["serve", ""],
        ["farm", "status", ""],
    ],
)
def test_empty_path_is_a_usage_error(
    small: Path,
    run: Callable[..., Result],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(small.parent)
    result = run(*words)
    assert result.exit_code == 2 and "the path is empty" in result.stderr


def test_output_folder_may_go_up_from_a_folder_that_does_not_exist(
    small: Path, run: Callable[..., Result], tmp_path: Path
) -> None:
    result = run("repo", str(small), "--out", str(tmp_path / "a" / "no" / ".." / "r é"))
    assert result.exit_code == 0, result.stderr
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["r é"]


def test_file_url_is_a_local_path(
    small: Path, run: Callable[..., Result], tmp_path: Path
) -> None:
    result = run("repo", small.as_uri(), "--out", (tmp_path / "a b").as_uri())
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "a b" / "small" / "config.pbtxt").is_file()


@pytest.mark.parametrize("up", ["..", "../no/.."], ids=["a link", "a missing folder"])
def test_path_that_goes_up_from_a_link_follows_it(
    small: Path, run: Callable[..., Result], tmp_path: Path, up: str
) -> None:
    inner = tmp_path / "far" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inner)
    result = run("repo", str(small), "--out", str(tmp_path / "link" / up / "r"))
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "far" / "r").is_dir()


@pytest.mark.parametrize("command", ["promote", "merge --out"])
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("repository/inside", "inside each other"),
        (".", "inside each other"),
        ("loop", "is a link to loop, which does not exist"),
    ],
)
def test_target_in_a_repository_or_a_loop_of_links_is_refused(
    published: Path, run: Callable[..., Result], command: str, target: str, message: str
) -> None:
    (published.parent / "loop").symlink_to("loop")
    name, *option = command.split()
    result = run(name, published, *option, published.parent / target)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert not (published / "inside").exists()


def test_report_that_cannot_be_written_has_a_fix(
    published: Path, run: Callable[..., Result]
) -> None:
    result = run("report", published, "-o", "/proc/none/report.html")
    assert (result.exit_code, "fix:   use another path" in result.stderr) == (4, True)
