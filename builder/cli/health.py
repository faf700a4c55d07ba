"""`trt-build health`: check that each model of a running server returns correct outputs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder import parity
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal

if TYPE_CHECKING:
    from builder.parity import ModelHealth
    from builder.serving import Access

HEALTHY = 0
WRONG = 3
UNHEALTHY = 4


@command(
    "health",
    "trt-build health model_repository --url localhost:8000",
)
@click.argument("repository", type=options.PATH)
@options.endpoint
@options.only
@options.seconds("--timeout", 10.0, help="Seconds to wait for a response.")
def health_command(
    terminal: Terminal,
    /,
    repository: Path,
    url: str | None,
    grpc_url: str | None,
    access: Access,
    only: tuple[str, ...],
    timeout: float,
) -> int:
    """Send each model of REPOSITORY its smallest golden, over HTTP and gRPC, and compare the
    outputs. A model whose process has died fails, although Triton reports it as ready.

    Exit codes: 0 all models are healthy, 3 an output is incorrect, 4 a model or the server does not
    respond.
    """
    models = parity.health(
        repository, url, grpc_url, list(only) or None, timeout=timeout, access=access
    )
    code = exit_code(models)
    data = {
        "repository": repository,
        "healthy": code == HEALTHY,
        "models": [{**asdict(model), "healthy": model.healthy} for model in models],
    }
    terminal.result(data, lambda: show(terminal, models))
    return code


def exit_code(models: list[ModelHealth]) -> int:
    """4 if a model does not respond, else 3 if an output is incorrect, else 0."""
    if any(not model.healthy and not model.wrong for model in models):
        return UNHEALTHY
    if any(model.wrong for model in models):
        return WRONG
    return HEALTHY


def show(terminal: Terminal, models: list[ModelHealth]) -> None:
    """Print one line for each unhealthy model, then the count of healthy ones."""
    for model in models:
        if not model.healthy:
            terminal.line(
                f"UNHEALTHY {model.name}, {model.protocol}: {model.problem}",
                color="red",
            )
    names = {model.name for model in models}
    bad = {model.name for model in models if not model.healthy}
    terminal.line(
        f"{len(names - bad)} of {len(names)} models are healthy",
        color="red" if bad else "green",
    )
