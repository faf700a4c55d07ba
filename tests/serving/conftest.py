"""A valid repository, built once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.triton import publish
from tests.triton.artifacts import scorer


@pytest.fixture(scope="session")
def valid_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("serving") / "repository"
    publish(scorer(), repository)
    return repository
