"""A server for the repository of a test module, which is the first value of its fixture `built`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.repository import ModelResult
from builder.serving import Server, serve


@pytest.fixture(scope="module")
def server(built: tuple[Path, dict[str, ModelResult]]) -> Iterator[Server]:
    repository, _ = built
    with serve(repository, http_port=0, grpc_port=0, metrics_port=0) as started:
        yield started
