"""Every example on a real engine in each precision, with all its goldens."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder.engine import BuildOptions
from builder.parity import verify_engines
from builder.repository import build_repository
from tests.parity.asserting import assert_passed

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in (EXAMPLES / "models").glob("*.yaml"))
QUICK = BuildOptions(optimization_level=0)
"""The tests check outputs, not speed."""
TOLERANCES = {
    ("silero_vad", "tf32"): "tolerance: {rtol: 0.015, atol: 0.01}\n",
    ("silero_vad", "fp16"): "tolerance: {rtol: 0.06, atol: 0.02}\n",
}
"""Three times the default (docs/parity.md): some elements of the state accumulate larger errors."""


def exported(name: str, folder: Path) -> Path:
    """Export the example to a new folder. Skip the test if its wheel is not installed."""
    if name == "silero_vad" and not importlib.util.find_spec(name):
        pytest.skip("the silero-vad wheel is not installed")
    folder.mkdir()
    shutil.copy(EXAMPLES / "models" / f"{name}.yaml", folder)
    subprocess.run(
        [sys.executable, EXAMPLES / "export.py", "--out", folder, "--only", name],
        check=True,
    )
    return folder


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("name", NAMES)
def test_example_is_within_the_tolerance_of_its_precision(
    name: str, precision: str, tmp_path: Path
) -> None:
    models = exported(name, tmp_path / "models")
    with (models / f"{name}.yaml").open("a") as manifest:
        manifest.write(TOLERANCES.get((name, precision), ""))
    (result,) = build_repository(
        models,
        tmp_path / "repository",
        precision=precision,
        options=QUICK,
        serve_as="python",
        isolate=False,
    )
    assert result.ok, result.error
    (parity,) = verify_engines(tmp_path / "repository", repeat=0)
    assert_passed(parity)
    assert parity.results and "plan" in str(parity.answered_by)
