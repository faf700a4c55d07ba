"""Minimizes a program by delta debugging over its statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.programs import Program

Lines = tuple[str, ...]


def minimized(
    program: Program, fails: Callable[[Program], bool], attempts: int = 400
) -> Program:
    """Return the smallest failing program found.

    Within a number of attempts, no statement can be removed from it, and no if or loop replaced by
    its body.
    """
    smaller = True
    while smaller:
        smaller = False
        for lines in _smaller(program.lines):
            if attempts == 0:
                return program
            attempts -= 1
            candidate = replace(program, lines=lines)
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller(lines: Lines) -> Iterator[Lines]:
    """Yield programs with one statement less, from the end to the start, the largest statement
    first.
    """
    for start in sorted(
        range(len(lines)), key=lambda start: (start - _end(lines, start), -start)
    ):
        end = _end(lines, start)
        yield lines[:start] + lines[end:]
        if end > start + 1:
            body = tuple(line[4:] for line in lines[start + 1 : end])
            yield lines[:start] + body + lines[end:]


def _end(lines: Lines, start: int) -> int:
    """The index after the statement that starts at a line. An `else` belongs to its `if`."""
    depth, end = _depth(lines[start]), start + 1
    while end < len(lines) and (
        _depth(lines[end]) > depth
        or (
            _depth(lines[end]) == depth
            and lines[end].strip() == "else:" != lines[start].strip()
        )
    ):
        end += 1
    return end


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
