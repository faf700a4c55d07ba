"""A local tritonserver during a verification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from builder import serving
from builder.parity import served
from builder.parity.results import ModelParity
from builder.parity.shared_memory import BODY
from builder.parity.verification import verify
from builder.progress import Progress
from builder.serving import Installation, Server
from builder.store import published


@contextmanager
def serving_models(
    repository: Path,
    models: Sequence[str] | None = None,
    memories: Sequence[str] = (),
    installation: Installation | None = None,
) -> Iterator[Server]:
    """A tritonserver on free ports that has loaded `models` with their steps, or the whole
    repository.

    Clients may use shared memory if `memories` has any. Raises the errors of serving.serve, and
    UsageError for an unknown model.
    """
    settings: Any = {}
    if models:
        names = list(served.chosen(repository, models))
        sidecars = [
            published.read(repository / name / published.SIDECAR) for name in names
        ]
        steps = [
            step for sidecar in sidecars for step in sidecar.get(published.STEPS) or ()
        ]
        settings = {"explicit": True, "models": list(dict.fromkeys([*steps, *names]))}
    settings["client_shared_memory"] = any(memory != BODY for memory in memories)
    with serving.serve(
        repository, installation=installation, **serving.FREE_PORTS, **settings
    ) as server:
        yield server


def verify_served(
    repository: Path,
    *,
    installation: Installation | None,
    progress: Progress | None,
) -> list[ModelParity]:
    """As `verify` without timed requests, with a tritonserver that runs during the call."""
    if progress:
        progress("tritonserver", "start")
    with serving_models(repository, installation=installation) as server:
        return verify(
            repository,
            server.http_url,
            server.grpc_url,
            repeat=0,
            progress=progress,
        )
