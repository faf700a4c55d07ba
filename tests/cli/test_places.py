"""URLs where a command takes none, and options that need folders of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
        (["repo", "models", "--out", "out", "--store", URL], "the URL of host has a password"),
        (["repo", "models", "--out", "memory://x/out", "--write-env"], "there is no --write-env"),
        (["history", "memory://nothing/out"], "there is nothing at memory://nothing/out"),
    ],
)
def test_urls_are_refused_with_exit_code_2_and_not_shown_with_a_password(
    small: Path,
    run: Callable[..., Result],
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(small.parent)
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr and "hunter22" not in done.output
    assert not (small.parent / "out").exists()
