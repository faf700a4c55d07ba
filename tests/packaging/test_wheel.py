"""The wheel carries what the code reads beside itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(tmp_path),
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("builder/")}
    tracked = subprocess.run(
        ["git", "ls-files", "builder"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert set(tracked.stdout.split()) - packed == set()
