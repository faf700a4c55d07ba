"""`TRT_BUILD_TEST_DIALECT=8.6 pytest tests/conversion` runs the whole suite with networks written
for TensorRT 8.6.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from builder.engine import capabilities
from tests.conversion import compiling, old


@pytest.fixture(autouse=os.environ.get("TRT_BUILD_TEST_DIALECT") == "8.6")
def old_dialect() -> Iterator[None]:
    """The test's conversions are written for 8.6."""
    with old.playing():
        yield


@pytest.fixture(autouse=True)
def compile_more_in_slow_tests(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("slow") and compiling.VARIABLE not in os.environ:
        monkeypatch.setenv(compiling.VARIABLE, "settings")


@pytest.fixture
def strongly_typed() -> None:
    """Skip the test where TensorRT, or the dialect that is played, chooses half itself: a `skipif`
    asks too early.
    """
    if not capabilities.current().strongly_typed:
        pytest.skip("8.6 chooses half itself, and has no FP8")
