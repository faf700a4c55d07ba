"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.choices import FLAVOURS, LAYOUTS, SERVE_AS, STATE_MODES, TORCH_STEPS
from builder.cli import places
from builder.precisions import PRECISIONS

if TYPE_CHECKING:
    from builder.cli.terminal import Terminal
    from builder.deployment import Pushed
    from builder.triton import history

Decorator = Callable[[Any], Any]

PATH = places.LocalPath(path_type=Path)
PLACE = places.Place(path_type=Path)
"""A path or URL that the command reads from."""
CHANGED_PLACE = places.Place(path_type=Path, writes=True)
"""A path or URL that the command may write to."""
SECONDS = click.FloatRange(0, min_open=True)


def models_options(function: Any) -> Any:
    """MODELS and everything that changes what is read there."""
    for decorate in reversed(_MODELS):
        function = decorate(function)
    return function


only = click.option(
    "--only", multiple=True, metavar="NAME", help="Only this model; may be given several times."
)
inputs = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help=(
        "An input of a model without a manifest: image:float32:batch(1,8,32)x3x224x224; once for"
        " each argument."
    ),
)
goldens = click.option(
    "--golden", "goldens", multiple=True, metavar="NAME", help="Send only goldens of these names."
)
requests = click.option(
    "--requests",
    "file",
    type=PATH,
    metavar="NPZ",
    help="Send these arrays in place of the goldens: by input name, or `<n>/<name>` for several.",
)
sample = click.option(
    "--sample", type=PATH, metavar="NPZ", help="Inputs of a model without a manifest, as arrays."
)
sign = click.option(
    "--sign",
    type=PATH,
    metavar="PRIVATE_KEY",
    help="Sign what is published with this elliptic-curve key (PEM).",
)
precision = click.option(
    "--precision", type=click.Choice(PRECISIONS), help="In place of what the manifests say."
)
flavour = click.option(
    "--flavour",
    type=click.Choice(("auto", *FLAVOURS)),
    default="auto",
    show_default=True,
    help="Which TensorRT.",
)
serve_as = click.option(
    "--serve-as",
    type=click.Choice(SERVE_AS),
    default="auto",
    show_default=True,
    help="What Triton is to run.",
)
plugins = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    help=(
        "Python (a file or a module's name) that is imported first: it may register converters,"
        " evaluators, decompositions and passes."
    ),
)
libraries = click.option(
    "--library",
    "libraries",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A .py or .so file with custom operators of the model, as `libraries` in a manifest.",
)
require_sandbox = click.option(
    "--require-sandbox",
    is_flag=True,
    help="Refuse to run models where this machine cannot confine them (see trt-build doctor).",
)
isolate = click.option(
    "--isolate/--no-isolate", default=True, help="Run each model in a process of its own."
)


def confinement(function: Any) -> Any:
    """`--require-sandbox`, `--isolate`: the command's `isolate`. Raises EnvironmentProblem and
    UsageError where models would not run confined.
    """

    @functools.wraps(function)
    def command(*arguments: Any, require_sandbox: bool, **settings: Any) -> Any:
        if require_sandbox:
            from builder import processes

            processes.require(settings["isolate"])
        return function(*arguments, **settings)

    return require_sandbox(isolate(command))


layout = click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="auto",
    show_default=True,
    help=(
        "How a model is served that TensorRT runs only in part: all pieces in one process, or a"
        " Triton ensemble."
    ),
)
torch_steps = click.option(
    "--torch-steps",
    type=click.Choice(TORCH_STEPS),
    default="auto",
    show_default=True,
    help=(
        "What serves the torch steps of an ensemble: our Python runtime, or Triton's PyTorch"
        " (libtorch) backend."
    ),
)
state = click.option(
    "--state",
    type=click.Choice(STATE_MODES),
    help=(
        "Who keeps the state of models that have some, in place of the manifests: the server, or"
        " the client."
    ),
)
accept_incompatible = click.option(
    "--accept-incompatible",
    is_flag=True,
    help="Replace a published model even where its clients could not go on with the new one.",
)
url = click.option(
    "--url",
    metavar="HOST:PORT",
    help="The endpoint's HTTP address, as localhost:8000; https:// before it for TLS.",
)
grpc_url = click.option(
    "--grpc-url",
    metavar="HOST:PORT",
    help="The endpoint's gRPC address, as localhost:8001; grpcs:// before it for TLS.",
)
metrics_url = click.option(
    "--metrics-url", metavar="HOST:PORT", help="The address of its metrics, for those of GPUs."
)
_ACCESS: tuple[Decorator, ...] = (
    click.option(
        "--tls-ca",
        type=PATH,
        metavar="PEM",
        help="Certificates that the server's must be signed by; by default those of the system.",
    ),
    click.option(
        "--tls-cert", type=PATH, metavar="PEM", help="The client's certificate, for mutual TLS."
    ),
    click.option("--tls-key", type=PATH, metavar="PEM", help="The key of --tls-cert."),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="Send this header (HTTP) or metadata (gRPC) with each request; several times.",
    ),
    click.option(
        "--token-file",
        type=PATH,
        metavar="FILE",
        help="Send `Authorization: Bearer`, with the token in this file.",
    ),
)


control_token = click.option(
    "--control-token-file",
    type=PATH,
    metavar="FILE",
    help="The token without which the server loads no models (serve --explicit).",
)


def access(function: Any) -> Any:
    """`--tls-ca`, `--tls-cert`, `--tls-key`, `--header`, `--token-file`: the command's `access`.

    An address with https:// or grpcs:// is reached with TLS. Raises UsageError.
    """

    @functools.wraps(function)
    def command(
        *arguments: Any,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        headers: tuple[str, ...],
        token_file: Path | None,
        **settings: Any,
    ) -> Any:
        from builder.serving import Access

        found = Access(tls_ca, tls_cert, tls_key, _headers(headers, token_file))
        found.check()
        return function(*arguments, access=found, **settings)

    for decorate in reversed(_ACCESS):
        command = decorate(command)
    return command


def _headers(given: Sequence[str], token_file: Path | None) -> dict[str, str]:
    from builder.errors import UsageError

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals) or not (text.isascii() and text.isprintable()):
            raise UsageError(f"--header {text!r} is no header", fix="NAME=VALUE in printable ASCII")
        found[name] = value
    if token_file:
        found["authorization"] = f"Bearer {token_in(token_file)}"
    return found


def token_in(file: Path) -> str:
    """The token in a file, without the white space around it. Raises UsageError."""
    from builder.errors import UsageError

    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"the token cannot be read: {error}", where=str(file)) from error
    if not token:
        raise UsageError("the file has no token", where=str(file))
    if not token.isprintable():
        raise UsageError("the file has more than a token", where=str(file), fix="one line of text")
    return token


record = click.option(
    "--record",
    is_flag=True,
    help="Keep the results in REPOSITORY.results for trt-build report.",
)


def endpoint(function: Any) -> Any:
    """`--url`, `--grpc-url`, `--metrics-url`."""
    return url(grpc_url(metrics_url(function)))


write_env = click.option(
    "--write-env",
    is_flag=True,
    help="Write the variables of docker-compose.yml to a block in the .env beside the repository.",
)
_MODELS: tuple[Decorator, ...] = (
    click.argument("models", type=PLACE),
    only,
    inputs,
    sample,
    precision,
    flavour,
    serve_as,
    state,
)


def store(function: Any) -> Any:
    """`--store URL`, `--no-store`: the command's `store`, None where there is to be none.

    Raises UsageError for one that ends with the process, as a command does.
    """
    asked = click.option(
        "--store", metavar="URL", help="Where plans are kept: a folder, or a URL as s3:// or gs://."
    )
    none = click.option("--no-store", is_flag=True, help="Keep no plan, and take none.")

    @functools.wraps(function)
    def command(*arguments: Any, store: str | None, no_store: bool, **settings: Any) -> Any:
        from builder.store import default_url

        chosen = None if no_store else store or default_url()
        _outlives(chosen, "--store" if store else "$TRT_BUILD_STORE")
        return function(*arguments, store=chosen, **settings)

    return asked(none(command))


def _outlives(store: str | None, said: str) -> None:
    """Raise UsageError for a store in memory: every plan would be lost as soon as it is kept."""
    from builder.errors import UsageError

    if store and store.rpartition("::")[2].startswith("memory:"):
        raise UsageError(
            f"{said} {store}: a store in memory ends with the process, and would keep nothing of"
            " this command",
            fix="a folder, a URL such as s3://bucket/plans, or --no-store",
        )


def note_unread(terminal: Terminal, models: Path) -> None:
    """Name the files in the folder `models` that trt-build does not read."""
    from builder.manifest import unread

    for name in unread(models):
        terminal.note(
            f"{name}: not read: trt-build reads .pt and .pt2 files; write one with torch.jit.trace,"
            " torch.jit.script or torch.export"
        )


def parsed(inputs: tuple[str, ...]) -> list[Any]:
    """The TensorSpec of each --input. Raises UsageError."""
    from builder.manifest import parse_input

    return [parse_input(text) for text in inputs]


def note_incompatible(terminal: Terminal, published: Sequence[history.Promotion | Pushed]) -> None:
    """Name the changes that the clients of these models cannot follow."""
    for one in published:
        for change in one.changes:
            terminal.note(f"{one.name}: warning: incompatible with its clients: {change}")


def note_unsigned(terminal: Terminal, folders: Sequence[Path]) -> None:
    """Report which of these models, signed before, have no signature any more."""
    from builder.triton import signatures

    for folder in folders:
        if not signatures.is_signed(folder):
            terminal.note(
                f"{folder.name}: warning: this change dropped its signature; use --sign, or run"
                f" `trt-build sign {folder.parent} --key PRIVATE_KEY`"
            )
