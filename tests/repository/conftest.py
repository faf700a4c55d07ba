"""The repository of a test module, and a server for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.repository import ModelResult, build_repository
from builder.serving import FREE_PORTS, Server, serve

Built = tuple[Path, dict[str, ModelResult]]
"""A repository, and the results of its models by name."""


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """The models that the test module's function `write` writes to a folder."""
    folder = tmp_path_factory.mktemp("built")
    repository = folder / "repository"
    models = request.module.write(folder / "models")
    results = build_repository(models, repository, isolate=False)
    return repository, {result.name: result for result in results}


@pytest.fixture(scope="module")
def server(built: Built) -> Iterator[Server]:
    repository, _ = built
    with serve(repository, **FREE_PORTS) as started:
        yield started
