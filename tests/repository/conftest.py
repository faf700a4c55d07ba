"""A server for the repository of a test module, which is the first value of its fixture `built`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.repository import ModelResult, build_repository
from builder.serving import Server, serve
from tests.serving.ports import FREE

Built = tuple[Path, dict[str, ModelResult]]
"""A repository, and the results of its models by name."""


def build_all(folder: Path, write: Callable[[Path], Path]) -> Built:
    """Build the models that `write` writes to a folder."""
    repository = folder / "repository"
    results = build_repository(write(folder / "models"), repository)
    return repository, {result.name: result for result in results}


@pytest.fixture(scope="module")
def server(built: Built) -> Iterator[Server]:
    repository, _ = built
    with serve(repository, **FREE) as started:
        yield started
