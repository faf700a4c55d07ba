"""`--help` of every command: its width, its metavars and its examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from builder.cli import main
from tests.cli.command_lines import CONTEXT, parse

WORD = re.compile(r"[a-z]+")


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command, and of every subcommand of a group."""
    yield ()
    for name in main.list_commands(CONTEXT):
        yield (name,)
        group = main.get_command(CONTEXT, name)
        if isinstance(group, click.Group):
            yield from ((name, inner) for inner in group.list_commands(CONTEXT))


COMMANDS = list(commands())


def help_of(words: tuple[str, ...], width: int = 80) -> str:
    result = CliRunner().invoke(main, [*words, "--help"], terminal_width=width)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_the_terminal(words: tuple[str, ...]) -> None:
    text = help_of(words)
    assert max(map(len, text.splitlines())) <= 80
    divided = set(WORD.findall(help_of(words, 40))) - set(WORD.findall(text))
    assert not divided, "words that 40 columns divide between two lines"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_options_have_sentences_and_names_of_values(words: tuple[str, ...]) -> None:
    text = help_of(words)
    options = text.partition("\nOptions:\n")[2].partition("\n\n")[0]
    assert not re.search(r"INTEGER|FLOAT|TEXT|RANGE", options)
    entries = re.split(r"\n(?=  -)", options)
    assert all(entry.rstrip().endswith((".", "]")) for entry in entries), entries


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_examples_are_valid_command_lines(words: tuple[str, ...]) -> None:
    examples = re.findall(r"^    trt-build (.+)$", help_of(words), re.MULTILINE)
    assert examples or words == ("farm",)
    for example in examples:
        parse(shlex.split(example))
