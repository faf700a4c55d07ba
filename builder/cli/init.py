"""`trt-build init`: a manifest to start from, with what the file itself tells of its inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli import options
from builder.cli.command import Command
from builder.cli.terminal import Terminal
from builder.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from builder.cli.guess import Guess

HEAD = """\
# {name}: what the file does not say and trt-build has to know. Every key: docs/manifest.md.
# A name in a shape is an axis that varies; dims has its range. Lines with
# a question mark are guesses: look at them.
"""


@click.command(
    "init", cls=Command, short_help="Write a manifest for a file from what its graph tells."
)
@click.argument("file", type=options.PATH)
@click.option(
    "--module", help="A submodule or method of the file, as encoder.0 or forward_features."
)
@click.option(
    "--out", type=options.PATH, metavar="FILE", help="Where to write; beside the model otherwise."
)
@click.option("--force", is_flag=True, help="Replace a manifest that is there.")
@options.libraries
@options.plugins
@options.confinement
@click.pass_obj
def init_command(
    terminal: Terminal,
    /,
    file: Path,
    module: str | None,
    out: Path | None,
    force: bool,
    libraries: tuple[Path, ...],
    plugins: tuple[str, ...],
    isolate: bool,
) -> None:
    """Write FILE's manifest beside it: names, element types and shapes of its inputs as far as the
    file tells.
    """
    out = out or file.with_suffix(".yaml")
    if out.exists() and not force:
        raise UsageError(
            f"{out} is there already", fix="--force replaces it, --out writes elsewhere"
        )
    inputs, outputs, states = _guessed((file, module, libraries, plugins), isolate)
    text = manifest(file.name, inputs, outputs, module, _beside(out, libraries)) + state(states)
    _write(out, text)
    pairs = [{"input": given, "output": made} for given, made in states]
    data = {
        "manifest": out,
        "inputs": [vars(guess) for guess in inputs],
        "outputs": outputs,
        "state": pairs,
    }
    terminal.result(data, lambda: _show(terminal, out, text))


def _beside(out: Path, libraries: tuple[Path, ...]) -> list[str]:
    """The libraries as the manifest names them: relative to its folder."""
    import os

    return [os.path.relpath(library, out.parent) for library in libraries]


def _guessed(
    asked: tuple[Path, str | None, tuple[Path, ...], tuple[str, ...]], isolate: bool
) -> tuple[list[Guess], list[str], list[tuple[str, str]]]:
    from builder.cli import guess, isolated

    if not isolate:
        return guess.guesses(*asked)
    found: tuple[list[Guess], list[str], list[tuple[str, str]]] = isolated.run_one(
        "builder.cli.guess:guesses_here", asked
    )
    return found


def manifest(
    name: str,
    inputs: list[Guess],
    outputs: list[str],
    module: str | None,
    libraries: list[str] | None = None,
) -> str:
    """The manifest's text."""
    from builder.cli.guess import RANGES

    lines = [HEAD.format(name=name) + (f"module: {module}\n" if module else "") + "inputs:"]
    for guess in inputs:
        shape = ", ".join(map(str, guess.shape))
        lines += [
            f"  - name: {guess.name}",
            f"    dtype: {guess.dtype}{_comment(guess.dtype_from)}",
        ]
        lines += [f"    shape: [{shape}]{_comment(guess.shape_from)}"]
    axes = dict.fromkeys(axis for guess in inputs for axis in guess.shape if isinstance(axis, str))
    lines += ["dims:"] if axes else []
    for axis in axes:
        low, usual, high = RANGES[axis]
        lines.append(f"  {axis}: {{min: {low}, opt: {usual}, max: {high}}}  # ?")
    lines.append(f"outputs: [{', '.join(outputs)}]")
    if libraries:
        lines.append(f"libraries: {json.dumps(libraries)}")
    return "\n".join(lines) + "\n"


def state(pairs: list[tuple[str, str]]) -> str:
    """What may be state, as a comment: to keep it on the server changes what clients send."""
    if not pairs:
        return ""
    head = (
        "# ? What the server keeps between the requests of a sequence (docs/state.md), without the"
        " comment signs:\n"
    )
    return f"{head}# state:\n" + "".join(
        f"#   - {{input: {given}, output: {made}}}\n" for given, made in pairs
    )


def _comment(source: str) -> str:
    return f"  # {source}" if source else ""


def _write(out: Path, text: str) -> None:
    """Whole or not at all."""
    import os
    import tempfile

    if not out.parent.is_dir():
        raise EnvironmentProblem(f"there is no folder {out.parent}")
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(0o644)
        os.replace(name, out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _show(terminal: Terminal, out: Path, text: str) -> None:
    terminal.line(text.rstrip())
    terminal.line()
    terminal.line(f"written to {out}; trt-build check {out} says whether it fits")
