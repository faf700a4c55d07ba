"""Files are written as a whole, and errors name them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from builder import files


@pytest.mark.parametrize("function", ["os.fsync", "os.open"])
def test_error_names_the_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    file = tmp_path / "net.yaml"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if function == "os.open":
        full.filename = str(tmp_path / ".net.yaml.a1b2")
    monkeypatch.setattr(function, Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left") as caught:
        files.write_text(file, "text")
    assert caught.value.filename == str(file)
    assert not list(tmp_path.iterdir())


def test_umask_decides_the_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.write_text(tmp_path / "net.yaml", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "net.yaml").stat().st_mode & 0o777 == 0o600
