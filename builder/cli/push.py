"""`trt-build push`: load published models into a running server, and verify each one."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import deployment, report, serving, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal
from builder.cli.verify import quiet_interrupts
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.deployment import Pushed, Target
    from builder.serving import Access


@command(
    "push",
    "trt-build push model_repository --url localhost:8000",
)
@click.argument("repository", type=options.PATH)
@options.endpoint
@options.control_token
@options.path(
    "--to",
    metavar="SERVED",
    help="The repository that the server reads. [default: REPOSITORY]",
)
@options.only
@options.seconds(
    "--timeout",
    180.0,
    help="Seconds to wait until a model is loaded, and for each response.",
)
@click.option(
    "--drain",
    type=options.FiniteRange(0),
    metavar="SECONDS",
    default=10.0,
    help="Seconds until the old steps of an ensemble are unloaded.",
)
@options.accept_incompatible
@options.sign
def push_command(
    terminal: Terminal,
    /,
    repository: Path,
    url: str | None,
    to: Path | None,
    only: tuple[str, ...],
    accept_incompatible: bool,
    sign: Path | None,
    **settings: Any,
) -> int:
    """Load the models of REPOSITORY into the server at --url. The new version of a live model is
    first loaded under another name and compared with its goldens. Then it replaces the old version
    and is verified again. If that fails, the old version is restored.

    The server must run in explicit mode (trt-build serve --explicit) or poll mode (serve --watch).

    Exit codes: 0 all models are live, 3 one was rejected or rolled back, 4 no server.
    """

    target = _target(to or repository, url, settings)
    quiet_interrupts()
    _prepare(repository, target, only)
    with triton.signatures.signing_with(sign), terminal.progress() as progress:
        pushes = deployment.push(
            repository, target, only, accept=accept_incompatible, progress=progress
        )
    served = target.repository
    _carry_figures(terminal, repository, served, pushes)
    options.note_incompatible(terminal, pushes)
    live = all(push.live for push in pushes)
    models = [{**asdict(push), "live": push.live} for push in pushes]
    data = {"repository": repository, "served": served, "live": live, "models": models}
    terminal.result(data, lambda: show(terminal, pushes))
    return 0 if live else 3


def _carry_figures(
    terminal: Terminal, repository: Path, served: Path, pushes: list[Pushed]
) -> None:
    """Copy the recorded figures of the pushed models to the repository that is served."""
    if served == repository:
        return

    pushed = [push.name for push in pushes if push.live]
    terminal.note_if_any(report.records.carry(repository, served, pushed))


def _target(served: Path, url: str | None, settings: dict[str, Any]) -> Target:
    """The server that reads the repository `served`, and how long to wait for it."""
    if not url:
        raise UsageError(
            "push needs the address of the server", fix="pass --url HOST:PORT"
        )
    access = _with_control_token(settings["access"], settings["control_token_file"])
    return deployment.Target(
        served,
        url,
        settings["grpc_url"],
        access,
        settings["timeout"],
        settings["drain"],
    )


def _with_control_token(access: Access, file: Path | None) -> Access:
    """`access` with the token in the file, which lets the server load models."""
    if file is None:
        return access
    return replace(
        access,
        headers={**access.headers, serving.CONTROL_HEADER: options.token_in(file)},
    )


def _prepare(repository: Path, target: Target, only: tuple[str, ...]) -> None:
    """Repair what interrupted commands left. Raises EnvironmentProblem where preflight finds that
    the server cannot serve the models.
    """
    deployment.check_local(repository, target, only)
    deployment.require_fit(
        repository, deployment.of_endpoint(target.http, target.access), only
    )


def show(terminal: Terminal, pushes: list[Pushed]) -> None:
    """Print one row for each model, then the reasons of failures."""
    rows = [
        (push.name, str(push.number or ""), push.state, f"{push.seconds:.1f}")
        for push in pushes
    ]
    terminal.table(
        ("model", "version", "result", "seconds"), rows, numbers=("version", "seconds")
    )
    for push in pushes:
        for problem in push.problems:
            terminal.line(f"FAILED {push.name}: {problem}", color="red")
