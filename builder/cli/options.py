"""Options that several commands share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import manifest, report, serving, triton
from builder.choices import (
    FLAVORS,
    LAYOUTS,
    MEMORIES,
    PROTOCOLS,
    SERVE_AS,
    STATE_MODES,
    TORCH_STEPS,
)
from builder.cli import paths
from builder.cli.terminal import command_line
from builder.errors import UsageError
from builder.precisions import PRECISIONS

if TYPE_CHECKING:
    from builder.cli.terminal import Terminal
    from builder.deployment import Pushed
    from builder.triton import history

Decorator = Callable[[Any], Any]

PATH = paths.LocalPath(path_type=Path)
PATH_OR_URL = paths.PathOrUrl(path_type=Path)
"""A path or URL that the command reads from."""
CHANGED_PATH_OR_URL = paths.PathOrUrl(path_type=Path, writes=True)
"""A path or URL that the command may write to."""


class FiniteRange(click.FloatRange):
    """A float within bounds. click.FloatRange accepts nan for any bounds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The value as click.FloatRange converts it."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


POSITIVE = FiniteRange(0, min_open=True)


def flag(*names: str, help: str) -> Decorator:
    """An option without a value."""
    return click.option(*names, is_flag=True, help=help)


def seconds(name: str, default: float, *, help: str) -> Decorator:
    """An option for a duration."""
    return click.option(
        name, type=POSITIVE, default=default, metavar="SECONDS", help=help
    )


def choice(*names: str, values: Sequence[str], help: str, **settings: Any) -> Decorator:
    """An option that takes one of the values."""
    return click.option(*names, type=click.Choice(values), help=help, **settings)


def count(*names: str, minimum: int = 1, help: str, **settings: Any) -> Decorator:
    """An option for a number of things, at least `minimum`."""
    settings = {"metavar": "N", **settings}
    return click.option(*names, type=click.IntRange(minimum), help=help, **settings)


def protocol(*names: str, help: str, **settings: Any) -> Decorator:
    """`--protocol`: how a client sends its requests."""
    return choice("--protocol", *names, values=PROTOCOLS, help=help, **settings)


def shared_memory(*names: str, help: str, **settings: Any) -> Decorator:
    """`--shared-memory`: how a client passes tensors."""
    return choice("--shared-memory", *names, values=MEMORIES, help=help, **settings)


def path(*names: str, help: str, metavar: str = "FILE", **settings: Any) -> Decorator:
    """An option for a local path."""
    return click.option(*names, type=PATH, metavar=metavar, help=help, **settings)


def together(*decorators: Decorator) -> Decorator:
    """Several arguments and options as one decorator; `--help` lists them in this order."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


only = click.option(
    "--only", multiple=True, metavar="NAME", help="Only this model. Repeatable."
)
inputs = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help=(
        "An input of a model without a manifest, such as image:float32:batch(1,8,32)x3x224x224. "
        "Repeat it for each argument."
    ),
)
goldens = click.option(
    "--golden",
    "goldens",
    multiple=True,
    metavar="NAME",
    help="Send only this golden. Repeatable.",
)
requests = path(
    "--requests",
    "file",
    metavar="NPZ",
    help="Send these arrays instead of the goldens. Keys are input names, or `<n>/<name>` for "
    "several requests.",
)
sample = path(
    "--sample",
    metavar="NPZ",
    help="Arrays for the inputs of a model without a manifest.",
)
sign = path(
    "--sign",
    metavar="PRIVATE_KEY",
    help="Sign the published models with this elliptic-curve key (PEM).",
)
precision = choice(
    "--precision",
    values=PRECISIONS,
    help="Precision of all models. [default: that of each manifest]",
)
flavor = choice(
    "--flavor",
    "--flavour",
    "flavor",
    values=("auto", *FLAVORS),
    default="auto",
    help="Which TensorRT.",
)
serve_as = choice(
    "--serve-as",
    values=SERVE_AS,
    default="auto",
    help="Triton runs the plan itself, or the Python runtime runs it.",
)
plugins = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    help=(
        "A Python file or module that registers converters, evaluators, decompositions or passes. "
        "It is imported first. Repeatable."
    ),
)
libraries = path(
    "--library",
    "libraries",
    multiple=True,
    help="A .py or .so file with the model's custom operators (`libraries` in a manifest). "
    "Repeatable.",
)
require_sandbox = flag(
    "--require-sandbox",
    help="Fail if this machine has no sandbox for models (see trt-build doctor).",
)
isolate = click.option(
    "--isolate/--no-isolate",
    default=True,
    help="Run each model in a separate process. [default: --isolate]",
)


def confinement(function: Any) -> Any:
    """`--require-sandbox`, `--isolate`: the command's `isolate`. Raises EnvironmentProblem and
    UsageError if models would run without a sandbox.
    """

    @functools.wraps(function)
    def command(*arguments: Any, require_sandbox: bool, **settings: Any) -> Any:
        if require_sandbox:
            from builder import processes

            processes.require(settings["isolate"])
        return function(*arguments, **settings)

    return require_sandbox(isolate(command))


layout = choice(
    "--layout",
    values=LAYOUTS,
    default="auto",
    help=(
        "How to serve a model with torch segments: all segments in one process (fused), or a "
        "Triton ensemble."
    ),
)
torch_steps = choice(
    "--torch-steps",
    values=TORCH_STEPS,
    default="auto",
    help=(
        "Backend of an ensemble's torch steps: the Python runtime, or Triton's PyTorch (libtorch) "
        "backend."
    ),
)
state = choice(
    "--state",
    values=STATE_MODES,
    help=(
        "Keep the state of stateful models in the server (implicit) or in the client (explicit). "
        "[default: that of each manifest]"
    ),
)
accept_incompatible = flag(
    "--accept-incompatible",
    help="Replace a published model even if the new one is incompatible with its clients.",
)
url = click.option(
    "--url",
    metavar="HOST:PORT",
    help="The server's HTTP address, such as localhost:8000. The prefix https:// selects TLS.",
)
grpc_url = click.option(
    "--grpc-url",
    metavar="HOST:PORT",
    help="The server's gRPC address, such as localhost:8001. The prefix grpcs:// selects TLS.",
)
metrics_url = click.option(
    "--metrics-url",
    metavar="HOST:PORT",
    help="The address of its metrics, for GPU metrics.",
)
_access = together(
    path(
        "--tls-ca",
        metavar="PEM",
        help="CA certificates for the server's certificate. [default: those of the system]",
    ),
    path("--tls-cert", metavar="PEM", help="The client's certificate, for mutual TLS."),
    path("--tls-key", metavar="PEM", help="The key of --tls-cert."),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME=VALUE",
        help="Send this header (HTTP) or metadata (gRPC) with each request. Repeatable.",
    ),
    path(
        "--token-file", help="Send `Authorization: Bearer` with the token in this file."
    ),
)


control_token = path(
    "--control-token-file",
    help="The token that the server requires to load models (serve --explicit).",
)


def access(function: Any) -> Any:
    """`--tls-ca`, `--tls-cert`, `--tls-key`, `--header`, `--token-file`: the command's `access`.

    An address with https:// or grpcs:// uses TLS. Raises UsageError.
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
        access = serving.Access(
            tls_ca, tls_cert, tls_key, _headers(headers, token_file)
        )
        access.check()
        return function(*arguments, access=access, **settings)

    return _access(command)


def _headers(texts: Sequence[str], token_file: Path | None) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals) or not (text.isascii() and text.isprintable()):
            raise UsageError(
                f"--header {text!r} is not a header",
                fix="write NAME=VALUE in printable ASCII",
            )
        headers[name] = value
    if token_file:
        headers["authorization"] = f"Bearer {token_in(token_file)}"
    return headers


def token_in(file: Path) -> str:
    """The token in a file, without the white space around it. Raises UsageError."""
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the token cannot be read: {error}", where=str(file)
        ) from error
    if not token:
        raise UsageError("the file is empty", where=str(file))
    if not token.isprintable():
        raise UsageError(
            "the file has more than a token",
            where=str(file),
            fix="write one line of text",
        )
    return token


record = flag(
    "--record", help="Keep the results in REPOSITORY.results for trt-build report."
)


def require_writable_results(repository: Path, kind: str) -> None:
    """Raise EnvironmentProblem if --record cannot keep results of this kind, one of
    builder.report.records.KINDS.
    """
    report.records.require_writable(report.records.path(repository, kind))


endpoint = together(url, grpc_url, access)
"""The address of a server, and what it requires of a client."""
write_env = flag(
    "--write-env",
    help="Write the variables of docker-compose.yml to a block in the .env beside the repository.",
)
models_options = together(
    click.argument("models", type=PATH_OR_URL),
    only,
    inputs,
    sample,
    precision,
    flavor,
    serve_as,
    state,
)
"""MODELS, and the options that select or describe its models."""


def store(function: Any) -> Any:
    """`--store URL`, `--no-store`: the command's `store`, None for --no-store.

    Raises UsageError for a store in memory, which ends with the command.
    """
    option = click.option(
        "--store",
        metavar="URL",
        help="The store of built plans: a folder or a URL (s3://, gs://). [default: "
        "$TRT_BUILD_STORE, else trt-build/plans in the cache folder]",
    )
    none = flag("--no-store", help="Neither read from nor write to the store.")

    @functools.wraps(function)
    def command(
        *arguments: Any, store: str | None, no_store: bool, **settings: Any
    ) -> Any:
        from builder.store import default_url

        chosen = None if no_store else store or default_url()
        _outlives(chosen, "--store" if store else "$TRT_BUILD_STORE")
        return function(*arguments, store=chosen, **settings)

    return option(none(command))


def _outlives(store: str | None, suffix: str) -> None:
    """Raise UsageError for a store in memory: its plans would be lost when the command ends."""
    if store and store.rpartition("::")[2].startswith("memory:"):
        raise UsageError(
            f"{suffix} {store}: a store in memory is lost when the command ends",
            fix="use a folder, a URL such as s3://bucket/plans, or --no-store",
        )


def note_unread(terminal: Terminal, models: Path) -> None:
    """Name the model files in the folder `models` that trt-build does not read, with the reason."""
    for name, reason in manifest.unread(models).items():
        terminal.note(f"{name}: not read: {reason}")


def without_source(terminal: Terminal, models: Path, out: Path) -> list[str]:
    """Name the published models of `out` that have no file in the folder `models` any more, and the
    command that removes them. Returns their names; none if this user cannot read a published model,
    which is noted: the results of the build are still to be shown.
    """
    from builder.store import published, retired

    sources = manifest.find_models(models) if models.is_dir() and out.is_dir() else []
    is_folder_of_models = any(
        source.name != models.resolve().name for source in sources
    )
    if not is_folder_of_models:  # one model, or its own folder
        return []
    try:
        names = {folder.name for folder in published.recorded_folders(out)}
    except PermissionError as error:
        terminal.note(f"no search for published models without a model file: {error}")
        return []
    names -= {source.name for source in sources}
    gone = sorted(name for name in names if retired.step_of(out / name) is None)
    if gone:
        remove = command_line("trt-build", "remove", out, *gone)
        terminal.hint(
            f"published, but no model file in {models}: {', '.join(gone)}; remove with"
            f" `{remove}`"
        )
    return gone


def parsed(inputs: tuple[str, ...]) -> list[Any]:
    """The TensorSpec of each --input. Raises UsageError."""
    return [manifest.parse_input(text) for text in inputs]


def note_incompatible(
    terminal: Terminal, published: Sequence[history.Promotion | Pushed]
) -> None:
    """Name the changes that the clients of these models cannot follow."""
    for model in published:
        for change in model.changes:
            terminal.note(
                f"{model.name}: warning: incompatible with its clients: {change}"
            )


def write_env_file(terminal: Terminal, repository: Path) -> None:
    """Write the .env beside the repository, for `--write-env`, and report it."""
    note_env(terminal, triton.write_env(repository))


def note_env(terminal: Terminal, path: Path) -> None:
    """Report the .env that `--write-env` wrote."""
    terminal.note(f"{path}: its block for docker compose was written")


def note_unsigned(terminal: Terminal, folders: Sequence[Path]) -> None:
    """Report models that were signed before and are not signed now."""
    for folder in folders:
        if not triton.signatures.is_signed(folder):
            terminal.note(
                f"{folder.name}: warning: this change removed its signature; use --sign, or run"
                f" `trt-build sign {folder.parent} --key PRIVATE_KEY`"
            )
