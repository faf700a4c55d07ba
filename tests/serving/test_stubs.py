"""The scans of /proc for the processes of a server."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.serving import scratch
from builder.serving.stubs import Stubs


def test_process_that_ends_during_a_scan_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pathlib's check that a file exists fails for a process that ended after /proc was listed."""
    stat_of_path = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        if path.parts[1:2] == ("proc",) and len(path.parts) > 2:
            raise ProcessLookupError(errno.ESRCH, "No such process", str(path))
        return stat_of_path(path, **options)

    child = subprocess.Popen(["sleep", "60"])
    try:
        monkeypatch.setattr(Path, "stat", stat)
        assert child.pid in Stubs(os.getpid())._living()
        assert not list(scratch._servers("none"))
    finally:
        child.kill()
        child.wait()
