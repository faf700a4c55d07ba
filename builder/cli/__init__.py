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

COMMANDS = (
    "repo",
    "explain",
    "check",
    "init",
    "lower",
    "inspect",
    "serve",
    "verify",
    "bisect",
    "bench",
    "tune",
    "report",
    "health",
    "history",
    "rollback",
    "prune",
    "remove",
    "promote",
    "push",
    "deploy",
    "adopt",
    "merge",
    "sign",
    "farm",
    "doctor",
)

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
