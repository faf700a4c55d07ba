"""`trt-build init`: write a first manifest from the inputs that the model file describes."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli import options
from builder.cli.command import command
from builder.cli.repo import common_exit_code
from builder.cli.terminal import Terminal, command_line
from builder.errors import EnvironmentProblem, TrtBuildError, UsageError
from builder.printable import counted, printable

if TYPE_CHECKING:
    from builder.cli.guess import Guess, Guessed, StatedRange

Request = tuple[Path, "str | None", tuple[Path, ...], tuple[str, ...]]
"""Arguments for reading a file: the file, its submodule, libraries, plugins."""
HEAD = """\
# {name}: names, dtypes and shapes of the inputs. Every key: docs/manifest.md.
# A name in a shape is an axis that varies; dims has its range. Lines with
# a question mark are guesses: look at them.
"""


@command(
    "init",
    "trt-build init models",
)
@click.argument("file", type=options.PATH)
@click.option(
    "--module",
    metavar="NAME",
    help="A submodule or method of the file, such as encoder.0 or forward_features.",
)
@options.path("--out", help="Output file. [default: beside the model]")
@options.flag("--force", help="Replace an existing manifest.")
@options.libraries
@options.plugins
@options.confinement
def init_command(
    terminal: Terminal,
    /,
    file: Path,
    module: str | None,
    out: Path | None,
    **settings: Any,
) -> int:
    """Write the manifest of FILE beside it: names, dtypes and shapes of the inputs as far as the
    file contains them. Guesses are marked. If FILE is a folder, write all missing manifests.
    """
    if not file.is_dir():
        manifest = _manifest_of(file)
        _write_manifest(terminal, file, module, out or manifest, **settings)
        return 0
    if module or out:
        raise UsageError("--module and --out require a file, and this is a folder")
    return _folder(terminal, file, **settings)


def _write_manifest(
    terminal: Terminal,
    file: Path,
    module: str | None,
    out: Path,
    force: bool,
    libraries: tuple[Path, ...],
    plugins: tuple[str, ...],
    isolate: bool,
) -> None:
    if out.exists() and not force:
        raise UsageError(
            f"{out} already exists",
            fix="replace it with --force, or choose another file with --out",
        )
    (guessed,) = _guessed([(file, module, libraries, plugins)], isolate)
    if isinstance(guessed, TrtBuildError):
        raise guessed
    text = text_of(file.name, guessed, module, _relative_libraries(out, libraries))
    _write(out, text)
    is_beside = out.with_suffix("").resolve() == file.with_suffix("").resolve()
    check = command_line("trt-build", "check", out) if is_beside else None
    terminal.result(_data(out, guessed), lambda: _show(terminal, out, text, check))


def _folder(
    terminal: Terminal,
    folder: Path,
    force: bool,
    libraries: tuple[Path, ...],
    plugins: tuple[str, ...],
    isolate: bool,
) -> int:
    """Write every missing manifest of the folder, or with --force all. Returns the exit code."""
    options.note_unread(terminal, folder)
    models = _models(folder, force)
    requests: list[Request] = [(model, None, libraries, plugins) for model in models]
    with terminal.progress() as progress:
        progress(str(folder), f"read {counted(len(models), 'file')}")
        guesses = _guessed(requests, isolate)
    written, failed = _write_all(models, guesses, libraries)
    manifests = [_data(out, guessed) for out, guessed in written]
    errors = [{"file": model, "error": error.as_dict()} for model, error in failed]
    data = {"manifests": manifests, "failed": errors}
    terminal.result(data, lambda: _show_folder(terminal, folder, written, failed))
    return common_exit_code(error.exit_code for _, error in failed)


def _write_all(
    models: list[Path],
    guesses: list[Guessed | TrtBuildError],
    libraries: tuple[Path, ...],
) -> tuple[list[tuple[Path, Guessed]], list[tuple[Path, TrtBuildError]]]:
    """Write the manifests. Returns those that were written, and the models that were not read with
    the reason.
    """
    written = []
    failed = []
    for model, guessed in zip(models, guesses, strict=True):
        out = _manifest_of(model)
        if isinstance(guessed, TrtBuildError):
            failed.append((model, guessed))
            continue
        _write(
            out, text_of(model.name, guessed, None, _relative_libraries(out, libraries))
        )
        written.append((out, guessed))
    return written, failed


def _models(folder: Path, force: bool) -> list[Path]:
    """The model files of the folder that have no manifest, or with `force` all."""
    from builder.manifest import find_models

    models = find_models(folder)
    candidates = [model for model in models if force or not model.manifest]
    return [model.model for model in candidates if model.model]


def _manifest_of(model: Path) -> Path:
    """The manifest beside the model file, or the path for one. Raises UsageError if the file does
    not exist.
    """
    from builder.manifest import find_models

    return find_models(model)[0].manifest or model.with_suffix(".yaml")


def _data(out: Path, guessed: Guessed) -> dict[str, Any]:
    return {
        "manifest": out,
        "inputs": [vars(guess) for guess in guessed.inputs],
        "outputs": guessed.outputs,
        "state": [{"input": name, "output": output} for name, output in guessed.state],
        "dropped": guessed.dropped,
    }


def _relative_libraries(out: Path, libraries: tuple[Path, ...]) -> list[str]:
    """The libraries as the manifest names them: relative to its folder."""
    return [os.path.relpath(library, out.parent) for library in libraries]


def _guessed(requests: list[Request], isolate: bool) -> list[Guessed | TrtBuildError]:
    from builder.cli import guess, isolated

    targets = [partial(guess.guesses_here, *request) for request in requests]
    if len(targets) == 1:
        return [isolated.run_one(targets[0], isolate)]
    model_files = [file for file, *_ in requests]
    return list(isolated.run_each(targets, isolate, files=model_files))


def text_of(
    name: str, guessed: Guessed, module: str | None, libraries: list[str]
) -> str:
    """The manifest's text. Possible state and dropped arguments are comments."""
    text = manifest(
        name, guessed.inputs, guessed.outputs, module, libraries, guessed.dims
    )
    return (
        text
        + max_lengths(guessed.max_lengths)
        + state(guessed.state)
        + dropped(guessed.dropped)
    )


def max_lengths(guessed: dict[str, int]) -> str:
    """The largest lengths of lists among the outputs, as guesses."""
    if not guessed:
        return ""
    source = _comment("? how many elements each of these lists of outputs can have")
    listed = ", ".join(
        f"{_yaml_name(name)}: {length}" for name, length in guessed.items()
    )
    return f"max_lengths: {{{listed}}}{source}\n"


def dropped(arguments: dict[str, str]) -> str:
    """The arguments of forward that are not inputs, as comments."""
    return "".join(
        f"# not an input: {name}: {reason}\n" for name, reason in arguments.items()
    )


def manifest(
    name: str,
    inputs: list[Guess],
    outputs: list[str],
    module: str | None,
    libraries: list[str] | None = None,
    dims: dict[str, StatedRange] | None = None,
) -> str:
    """The manifest's text; `dims` are the ranges that the file states, with a comment on each."""
    part = f"module: {module}\n" if module else ""
    shown = printable(name).replace("\n", "\\n")  # a comment is one line
    lines = [HEAD.format(name=shown) + part + "inputs:"]
    for guess in inputs:
        shape = ", ".join(map(str, guess.shape))
        lines.append(f"  - name: {_yaml_name(guess.name)}")
        lines.append(f"    dtype: {guess.dtype}{_comment(guess.dtype_from)}")
        lines.append(f"    shape: [{shape}]{_comment(guess.shape_from)}")
    lines += _dims(inputs, dims or {})
    if outputs:
        lines.append(f"outputs: [{', '.join(map(_yaml_name, outputs))}]")
    if libraries:
        lines.append(f"libraries: {json.dumps(libraries)}")
    return "\n".join(lines) + "\n"


def _dims(inputs: list[Guess], stated: dict[str, StatedRange]) -> list[str]:
    """The lines with the range of each dynamic axis."""
    from builder.cli.guess import RANGES

    axes = [axis for guess in inputs for axis in guess.shape if isinstance(axis, str)]
    lines = []
    for axis in dict.fromkeys(axes):
        known = stated[axis] if axis in stated else (RANGES[axis], "?")
        (low, usual, high), source = known
        sizes = f"{{min: {low}, opt: {usual}, max: {high}}}"
        lines.append(f"  {axis}: {sizes}{_comment(source)}")
    return ["dims:", *lines] if lines else []


def state(pairs: list[tuple[str, str]]) -> str:
    """Possible state, as a comment: keeping it on the server changes the clients' inputs."""
    if not pairs:
        return ""
    head = "# ? Uncomment to keep this state on the server (docs/state.md):\n"
    return f"{head}# state:\n" + "".join(
        f"#   - {{input: {_yaml_name(name)}, output: {_yaml_name(output)}}}\n"
        for name, output in pairs
    )


def _yaml_name(name: str) -> str:
    """The name in YAML, in quotes if it would be a number or another value without them."""
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII)
    if plain and name.lower() not in ("true", "false", "null"):
        return name
    return json.dumps(name)


def _comment(source: str) -> str:
    return f"  # {source}" if source else ""


def _write(out: Path, text: str) -> None:
    """Write the file atomically."""
    if not out.parent.is_dir():
        raise EnvironmentProblem(f"there is no folder {out.parent}")
    from builder import files

    files.write_text(out, text)


def _show(terminal: Terminal, out: Path, text: str, check: str | None) -> None:
    """Print the manifest, and the command that checks it. A manifest that is not beside its model
    file is not read.
    """
    terminal.line(text.rstrip())
    terminal.line()
    hint = f"{check} checks whether it fits"
    if check is None:
        hint = "move it beside the model file, and give it the same name"
    terminal.line(f"written to {out}; {hint}")


def _show_folder(
    terminal: Terminal,
    folder: Path,
    written: list[tuple[Path, Guessed]],
    failed: list[tuple[Path, TrtBuildError]],
) -> None:
    """Print one line for each file, then the next command."""
    for out, guessed in written:
        unsure = out.read_text(encoding="utf-8").count("  # ?")
        inputs = counted(len(guessed.inputs), "input")
        left_out = ""
        if guessed.dropped:
            left_out = f"; not inputs: {', '.join(guessed.dropped)}"
        terminal.line(
            f"{out}: {inputs}, {counted(unsure, 'line')} to look at{left_out}"
        )
    for model, error in failed:
        terminal.failure(f"{model}: {error}", None)
    total = len(written) + len(failed)
    if not total:
        terminal.line(f"every model in {folder} has a manifest; --force replaces them")
        return
    terminal.line(f"{len(written)} of {total} missing manifests written")
    if written and not terminal.quiet:
        terminal.line(f"next: {command_line('trt-build', 'check', folder)}")
