"""The wheel has the data files that the code reads."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from builder.templates import config_templates

ROOT = Path(__file__).parents[2]


def test_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
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
    packed = {
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if name.startswith("builder/")
    }
    templates = {
        f"builder/templates/{path.name}" for path in config_templates().glob("*.pbtxt")
    }
    assert len(templates) == 4
    templates.add("builder/templates/deploy/tritonserver.sh")
    typed = (
        "builder/py.typed"  # without it, type checkers of users ignore the annotations
    )
    assert {*templates, typed} <= packed
    tracked = subprocess.run(
        ["git", "ls-files", "builder"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert set(tracked.stdout.split()) - packed == set()
    _installed_templates(wheel, tmp_path / "installed")


def _installed_templates(wheel: Path, folder: Path) -> None:
    """An installation reads the templates of the wheel."""
    zipfile.ZipFile(wheel).extractall(folder)
    program = (
        "from builder.triton.config import template; print(template('base.pbtxt'))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "version_policy" in process.stdout
