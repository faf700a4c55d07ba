"""`trt-build serve`: run tritonserver on a model repository until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import deployment, serving, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.doctor import note_preflight
from builder.cli.terminal import Terminal
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.serving import Server

HTTP = 8000
GRPC = 8001
METRICS = 8002
POLL_SECONDS = 2
PORTS = ("port", "http_port", "grpc_port", "metrics_port")
SERVE_CHECKS = (
    "P04",
    "P05",
    "P06",
    "P07",
    "P08",
    "P09",
    "P10",
    "P11",
    "P14",
    "P15",
    "P22",
    "P23",
    "P24",
)
"""Preflight findings that the server itself reports less clearly, or only at the first request."""


def _port(name: str, last: int = 65535, *, help: str) -> options.Decorator:
    """An option for a port; 0 chooses a free one."""
    return click.option(name, type=click.IntRange(0, last), metavar="PORT", help=help)


@command(
    "serve",
    "trt-build serve model_repository --port 9000 --watch",
)
@click.argument("repository", type=options.PATH)
@_port(
    "--port",
    last=65533,
    help="HTTP port; gRPC and metrics use the next two. 0: free ports.",
)
@_port("--http-port", help=f"HTTP port. [default: {HTTP}; 0: a free one]")
@_port("--grpc-port", help=f"gRPC port. [default: {GRPC}; 0: a free one]")
@_port("--metrics-port", help=f"Metrics port. [default: {METRICS}; 0: a free one]")
@click.option(
    "--address",
    metavar="HOST",
    default="127.0.0.1",
    help="Address to listen on. 0.0.0.0: all interfaces.",
)
@click.option(
    "--log-verbose",
    type=int,
    metavar="LEVEL",
    default=0,
    help="tritonserver's own verbosity.",
)
@options.path("--log-file", help="Keep tritonserver's log here.")
@options.seconds("--timeout", 180.0, help="Seconds to wait until all models are ready.")
@options.flag(
    "--watch",
    help="Load models that are published while the server runs, also by push (Triton's poll mode).",
)
@options.count(
    "--poll-seconds",
    help="Seconds between two polls of the repository, with --watch. "
    f"[default: {POLL_SECONDS}]",
)
@options.flag(
    "--explicit",
    help="Let clients load and unload models (Triton's explicit mode), as `trt-build push` does.",
)
@options.control_token
@options.flag(
    "--exit-on-error",
    help="Serve nothing if one model fails to load. By default the other models are served.",
)
@options.flag(
    "--allow-client-shm", help="Let clients register shared memory on this host."
)
@options.count(
    "--response-cache",
    minimum=0,
    default=64,
    metavar="MIB",
    help="Size of the cache for models with `triton: {response_cache: {enable: true}}`. 0: none.",
)
@options.path(
    "--require-signature",
    metavar="PUBLIC_KEY",
    help="Start only if each model has a valid signature of this key.",
)
def serve_command(
    terminal: Terminal,
    /,
    repository: Path,
    address: str,
    require_signature: Path | None,
    **settings: Any,
) -> None:
    """Serve REPOSITORY on localhost until Ctrl-C, with the tritonserver on the PATH or that of
    nvidia-pytriton.

    Models that fail to load are reported with the reason, and the others are served. The server is
    then live and not ready. Ctrl-C and SIGTERM end the server with exit code 0.
    """
    chosen: Any = ports(*(settings[key] for key in PORTS)) | _changes(settings, address)
    if require_signature:
        _check_signatures(repository, require_signature, settings)
    _report_foreign(terminal, repository)
    chosen["response_cache"] = _cache_size(terminal, repository, settings)
    _report_preflight(terminal, repository)
    with serving.serve(
        repository,
        **chosen,
        address=address,
        log_verbose=settings["log_verbose"],
        log_path=settings["log_file"],
        ready_timeout=settings["timeout"],
        client_shared_memory=settings["allow_client_shm"],
        exit_on_error=settings["exit_on_error"],
    ) as server:
        report_crash(terminal, server)
        _report_models(terminal, server)
        server.block()
        terminal.note("stopping")


def _report_preflight(terminal: Terminal, repository: Path) -> None:
    """Print what prevents this machine from serving the models."""

    if repository.is_dir():
        findings = deployment.preflight(
            repository, deployment.this_machine({}), digests=False
        )
        note_preflight(
            terminal,
            [finding for finding in findings if finding.number in SERVE_CHECKS],
        )


def _report_models(terminal: Terminal, server: Server) -> None:
    """Print the addresses and the models that are served, and those that failed to load."""
    _report_failed(terminal, server)
    names = sorted(server.served())
    data = {
        "http": server.http_url,
        "grpc": server.grpc_url,
        "metrics": server.metrics_url,
    }
    failed = {failure.model: failure.reason for failure in server.failed}
    result = data | {"pid": server.process.pid, "failed": failed}
    terminal.result(result, lambda: _show(terminal, data, names))


def _changes(settings: dict[str, Any], address: str) -> dict[str, Any]:
    """How the server loads changes of the repository. Raises UsageError for options that exclude
    each other.
    """
    if settings["watch"] and settings["explicit"]:
        raise click.UsageError("--watch and --explicit exclude each other: choose one")
    if settings["control_token_file"] and not settings["explicit"]:
        raise click.UsageError("--control-token-file is for --explicit")
    if settings["poll_seconds"] and not settings["watch"]:
        raise click.UsageError("--poll-seconds is for --watch")
    if settings["explicit"]:
        token = _token(settings["control_token_file"], address)
        return {"explicit": True, "models": ["*"], "control_token": token}
    if settings["watch"]:
        return {"poll_seconds": settings["poll_seconds"] or POLL_SECONDS}
    return {}


def _cache_size(terminal: Terminal, repository: Path, settings: dict[str, Any]) -> int:
    """The size of the response cache in MiB; 0 if it would return responses of replaced models."""
    changes = settings["watch"] or settings["explicit"]
    size = int(settings["response_cache"])
    if not (size and changes):
        return size
    names = serving.features.outdated(repository)
    if names:
        terminal.note(
            f"warning: no response is cached, because {', '.join(names)} would have responses of"
            " the replaced model after an update; add versions: {keep: 1} to the manifest"
        )
        return 0
    return size


def _check_signatures(repository: Path, key: Path, settings: dict[str, Any]) -> None:
    """Raise an error where a model's signature does not hold for this key."""
    if settings["watch"] or settings["explicit"]:
        raise click.UsageError(
            "--require-signature checks models only at the start: remove --watch and --explicit"
        )
    triton.signatures.require(repository, key)


def _token(file: Path | None, address: str) -> str | None:
    """The token for loading models. It is required if other machines can connect."""
    if file is not None:
        token = options.token_in(file)
        if any(character in token for character in ",:="):
            raise click.UsageError(
                "--control-token-file: the token contains one of , : ="
            )
        return token
    import ipaddress

    try:
        local = ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name
        local = address == "localhost"
    if not local:
        raise click.UsageError(
            f"--explicit on {address} would let every client load models: pass "
            "--control-token-file, or listen on localhost"
        )
    return None


def report_crash(terminal: Terminal, server: Server) -> None:
    """Report that the first start crashed and the models were then loaded one at a time."""
    if server.first_crash:
        terminal.note(f"warning: {server.first_crash}")
        terminal.note("  tritonserver was started again and loaded one model at a time")


def _report_failed(terminal: Terminal, server: Server) -> None:
    """Name each model that failed to load, with the reason and the fix."""
    for failure in server.failed:
        terminal.note(f"warning: {failure}".replace("\n", "\n  "))
    if server.failed:
        terminal.note(
            "  the other models are served, but the server's readiness endpoint reports not ready;"
            " --exit-on-error ends the server instead"
        )


def _report_foreign(terminal: Terminal, repository: Path) -> None:
    """Name each version that Triton will serve and that trt-build did not write."""
    if not repository.is_dir():
        return
    for folder in sorted(repository.iterdir()):
        try:
            foreign = triton.versions.foreign(folder)
        except (OSError, ValueError, UsageError):
            continue  # no model, or one that the server will report
        for number in foreign:
            terminal.note(
                f"{folder.name}: warning: {number}/ is a version that trt-build did not write, and"
                " Triton serves it"
            )


def ports(
    port: int | None,
    http_port: int | None,
    grpc_port: int | None,
    metrics_port: int | None,
) -> dict[str, int]:
    """The three ports: as passed, else counted from `port`, else Triton's defaults."""
    base = HTTP if port is None else port
    step = 0 if base == 0 else 1
    requested = {
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
    }
    return {
        key: base + index * step if value is None else value
        for index, (key, value) in enumerate(requested.items())
    }


def _show(terminal: Terminal, urls: dict[str, str], names: list[str]) -> None:
    """Print each model with its inference URL, then the addresses."""
    rows = [(name, f"http://{urls['http']}/v2/models/{name}/infer") for name in names]
    if names:
        terminal.table(("model", "HTTP"), rows)
    else:
        terminal.line("no model is loaded yet")
    terminal.line(
        f"ready: HTTP {urls['http']}, gRPC {urls['grpc']}, metrics {urls['metrics']} (Ctrl-C"
        " stops it)"
    )
