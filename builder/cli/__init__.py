"""The command line: `trt-build COMMAND`, one file for each command, imported on use.

The top level of a command's file imports click, and packages of trt-build whose names load on first
use, so that `trt-build --help` is fast.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from builder import __version__, interruption
from builder.cli.formatting import Context

__all__ = ["main"]

COMMANDS = {
    "repo": "Build a Triton model repository from a folder of models.",
    "explain": "Show why a model would or would not be built again.",
    "check": "Run all steps of `repo` except publication, and report the result.",
    "init": "Write manifests from the graphs of model files.",
    "lower": "Print a model's graph after any pass.",
    "inspect": "Print a network's layers, a plan's facts, or a repository.",
    "serve": "Serve a model repository with tritonserver.",
    "verify": "Compare a running server with the goldens of its repository.",
    "bisect": "Name the first node that differs from the original module.",
    "bench": "Measure throughput and latency under load.",
    "tune": "Find the configuration that serves best under load.",
    "report": "Write a page of evidence for a repository.",
    "health": "Check that each model of a running server responds correctly.",
    "history": "Show the versions of published models.",
    "rollback": "Serve an earlier version of a model again.",
    "prune": "Remove old versions of published models.",
    "remove": "Remove published models with all versions.",
    "promote": "Copy published models into another repository.",
    "push": "Load models into a running server, verified at the endpoint.",
    "deploy": "Write manifests for Kubernetes or KServe.",
    "adopt": "Write edits of a published config into the manifest.",
    "merge": "Join repositories that were built on different GPUs.",
    "sign": "Sign published models with a private key.",
    "farm": "Show or cancel what `repo --farm` builds on a Ray cluster.",
    "doctor": "Check this machine, or check whether a server can load a repository.",
}
"""Each command with its line in the list of commands, which imports none of their files."""

EPILOG = """\b
First steps:
  trt-build init models
  trt-build repo models --out model_repository
  trt-build verify model_repository --serve
  trt-build serve model_repository

Exit codes: 0 success, 1 a model failed, 2 usage, 3 parity, 4 environment, 70 a defect of
trt-build, 129, 130 or 143 interrupted, 141 output closed."""


Resolved = tuple[str | None, click.Command | None, list[str]]


class LazyGroup(click.Group):
    """A group whose commands are the modules of the same name."""

    context_class = Context
    wants_json = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"builder.cli.{cmd_name}"), f"{cmd_name}_command"
        )
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        self.wants_json = "--json" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            self._document(error)
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_interrupted()) from None
        except OSError as error:
            raise click.exceptions.Exit(self._failed(error)) from None

    def _document(self, error: click.UsageError) -> None:
        """Print a usage error as the one JSON document if --json is set."""
        if self.wants_json:
            import json

            data = {
                "kind": "UsageError",
                "message": error.format_message(),
                "exit_code": error.exit_code,
            }
            click.echo(json.dumps({"error": data}, indent=2))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            self._document(error)
            raise
        except KeyboardInterrupt:
            ctx.exit(_interrupted())
        except OSError as error:
            ctx.exit(self._failed(error))

    def _failed(self, error: OSError) -> int:
        """Report that the help could not be printed, or that a path cannot be read. Returns the
        exit code.
        """
        from builder.cli.command import exit_code_of
        from builder.cli.terminal import Terminal

        return exit_code_of(Terminal(as_json=self.wants_json), error)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Resolved:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(
                error.message + _did_you_mean(args[0]), ctx
            ) from error


def _interrupted() -> int:
    """Report an interrupt before the command has begun, which click would report as a failure.
    Returns the exit code.
    """
    click.echo(interruption.MESSAGE, err=True)
    return 130


def _did_you_mean(word: str) -> str:
    from builder.manifest import nearest

    match = nearest(word, COMMANDS)
    return f" Did you mean {match!r}?" if match else ""


@click.command(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="trt-build")
def main(**_: object) -> None:
    """Build a Triton model repository from model files, and check its parity."""
