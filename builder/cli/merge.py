"""`trt-build merge`: join repositories that were built on different GPUs."""

from __future__ import annotations

from pathlib import Path

import click

from builder import store, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal


@command(
    "merge",
    "trt-build merge built_on_a100 built_on_l4 --out model_repository",
)
@click.argument(
    "repositories", type=options.PATH, nargs=-1, required=True, metavar="REPOSITORY..."
)
@options.path(
    "--out",
    required=True,
    metavar="DIR",
    help="The merged repository. Created if missing.",
)
@options.write_env
@options.sign
def merge_command(
    terminal: Terminal,
    /,
    repositories: tuple[Path, ...],
    out: Path,
    write_env: bool,
    sign: Path | None,
) -> None:
    """Write the models of all REPOSITORIES into DIR. Each model gets one plan for every compute
    capability that it was built for (Triton's cc_model_filenames), so that one repository serves
    different GPUs.

    A model must have the same file, interface and TensorRT in each. A model does not load on a GPU
    for which it has no plan. A plan of --hardware-compatible ampere_plus serves all GPUs that have
    no specific plan.
    """
    from builder.repository import preflight

    for repository in repositories:
        preflight.refuse_nested(repository, out)
    preflight.check(out)
    store.clean_up(out)
    with triton.signatures.signing_with(sign):
        merged = triton.merge(repositories, out)
    if write_env:
        options.write_env_file(terminal, out)
    data = [
        {"name": name, "compute_capabilities": capabilities}
        for name, capabilities in merged
    ]
    rows = [[name, ", ".join(capabilities) or "any"] for name, capabilities in merged]
    terminal.result(
        {"repository": out, "models": data},
        lambda: terminal.table(("model", "GPUs"), rows),
    )
