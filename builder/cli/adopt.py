"""`trt-build adopt`: copy manual edits of a published config into the manifest."""

from __future__ import annotations

from pathlib import Path

import click

from builder import manifest, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal, command_line


@command(
    "adopt",
    "trt-build adopt model_repository net --models models",
)
@click.argument("repository", type=options.PATH)
@click.argument("model")
@options.path(
    "--models",
    required=True,
    metavar="MODELS",
    help="The source of the model: a folder, a model file or a manifest.",
)
def adopt_command(
    terminal: Terminal, /, repository: Path, model: str, models: Path
) -> None:
    """Write manual edits of config.pbtxt of MODEL in REPOSITORY into its manifest, under `triton:`
    or `batching:`. Comments and all other keys of the manifest stay.

    `trt-build repo` then publishes the model with these values. If a manifest cannot express an
    edit, nothing is written and the exit code is 2.
    """
    (folder,) = triton.history.models(repository, [model])
    (spec,) = manifest.load(models, only=[model])
    values = triton.adopt_edits(folder, spec)
    data = {
        "repository": repository,
        "model": model,
        "manifest": spec.manifest,
        "values": values,
    }
    names = [f"{key}.{name}" for key, inner in values.items() for name in inner]
    text = f"{model}: its config has no edits"
    if names:
        text = f"{spec.manifest}: {', '.join(names)}"
    terminal.result(data, lambda: terminal.line(text))
    if names:
        rebuild = command_line("trt-build", "repo", models, "--out", repository)
        terminal.hint(f"next: {rebuild}")
