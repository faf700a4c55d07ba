"""A server for partitioned models in one layout, and the comparison with their goldens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.parity import ModelParity, verify
from builder.repository import ModelResult, build_repository
from builder.serving import FREE_PORTS, Server, serve


@dataclass(frozen=True)
class Served:
    """`built` and `verified` have the results by the names of the models."""

    layout: str
    repository: Path
    server: Server
    built: dict[str, ModelResult]
    verified: dict[str, ModelParity]


def serve_and_verify(
    models: Path, repository: Path, layout: str, **settings: Any
) -> Iterator[Served]:
    """Build the models, serve them until the generator is closed, and compare them."""
    results = build_repository(models, repository, layout=layout, **settings)
    with serve(repository, **FREE_PORTS) as server:
        parities = verify(repository, server.http_url, server.grpc_url, repeat=0)
        yield Served(
            layout,
            repository,
            server,
            {result.name: result for result in results},
            {parity.name: parity for parity in parities},
        )
