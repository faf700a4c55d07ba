"""Generates random programs of a kind, and their source."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import statements as st

KINDS = (
    "inplace",
    "shapes",
    "scalars",
    "integers",
    "containers",
    "control",
    "traced",
    "export",
)
_STATEMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "inplace": (st.VALUES, st.WRITES, st.WRITES),
    "shapes": (st.VALUES, st.SHAPES, st.SHAPES),
    "scalars": (st.VALUES, st.SCALARS, st.SCALARS),
    "integers": (st.VALUES, st.INTEGERS, st.INTEGERS, st.INTEGERS),
    "containers": (st.VALUES, st.CONTAINERS, st.CONTAINERS),
    "control": (st.VALUES, st.WRITES, st.SHAPES, st.SCALARS),
    "traced": (st.VALUES, st.WRITES, st.SHAPES, st.SCALARS, st.CONTAINERS),
    "export": (st.VALUES, st.WRITES, st.SHAPES, st.SCALARS, st.CONTAINERS),
}
_BLOCKS = {
    "inplace": 0.2,
    "shapes": 0.1,
    "scalars": 0.1,
    "integers": 0.15,
    "containers": 0.15,
    "control": 0.45,
    "traced": 0.0,
    "export": 0.0,
}
_START = (
    "a = x.clone()",
    "b = y.clone()",
    "c = x - y",
    "p = a",
    "v = b.view(-1)",
    "r = ids * 1.0",
    "n = x.size(0)",
    "m = 1",
    "k = 2",
    "s = 0.5",
    "held = [a]",
    "named = {'p': a, 'q': b}",
    "pair = (a, b)",
)
_END = "return a, b, c, r, ids"
_HEAD = '''"""{note}"""

import torch  # noqa: F401
from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = {traced}
EXPORTED = {exported}


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
'''


@dataclass(frozen=True)
class Program:
    """The lines of a program's `forward`, without base indentation, and the method by which torch
    exports it.
    """

    kind: str
    seed: int
    lines: tuple[str, ...]
    traced: bool
    exported: bool = False

    def text(self, note: str) -> str:
        """Return the content of a file that `source_of` reads."""
        method = (
            "exported" if self.exported else "traced" if self.traced else "scripted"
        )
        return "\n".join((note, method, *self.lines)) + "\n"

    def source(self, note: str = "") -> str:
        """Return a Python file with a module `Program`."""
        note = (
            note
            or f"python -m tests.fuzz --kind {self.kind} --seed {self.seed} --programs 1"
        )
        body = "\n".join(f"        {line}" for line in self.lines)
        head = _HEAD.format(note=note, traced=self.traced, exported=self.exported)
        return head + body + "\n"


def source_of(file: Path) -> str:
    """Return the Python source of a saved program. The first line of the file is a note, the
    second how torch exports the program; the others are the lines of `forward`.
    """
    note, method, *lines = file.read_text().splitlines()
    saved = Program(
        file.stem, 0, tuple(lines), method == "traced", method == "exported"
    )
    return saved.source(note)


def program(kind: str, seed: int, length: int = 9) -> Program:
    """Return the program of a kind for a seed."""
    rng = random.Random(f"{kind} {seed}")
    traced = kind == "traced" or (
        kind in ("scalars", "shapes", "integers") and rng.random() < 0.5
    )
    exported, body = kind == "export", list[str]()
    for _ in range(rng.randint(2, length)):
        body += _statement(rng, kind, 0 if traced or exported else 2)
    if kind == "control" and rng.random() < 0.3:
        index = rng.randrange(len(body) + 1)
        early = [f"if {_fill(rng, rng.choice(st.CONDITIONS))}:", f"    {_END}"]
        while index < len(body) and body[index].startswith((" ", "else")):
            index += 1
        body[index:index] = early
    return Program(kind, seed, (*_START, *body, _END), traced, exported)


def _statement(rng: random.Random, kind: str, depth: int) -> list[str]:
    """Generate one statement, or an if or a loop around a few."""
    if depth and rng.random() < _BLOCKS[kind]:
        return _block(rng, kind, depth - 1)
    return _fill(rng, rng.choice(rng.choice(_STATEMENTS[kind]))).split("\n")


def _block(rng: random.Random, kind: str, depth: int) -> list[str]:
    def body_lines(count: int) -> list[str]:
        return [
            f"    {line}"
            for _ in range(rng.randint(1, count))
            for line in _statement(rng, kind, depth)
        ]

    shape = rng.random()
    if shape < 0.5:
        lines = [f"if {_fill(rng, rng.choice(st.CONDITIONS))}:", *body_lines(2)]
        return [*lines, "else:", *body_lines(2)] if rng.random() < 0.6 else lines
    if shape < 0.9:
        return [
            f"for t in range({_fill(rng, rng.choice(st.TRIP_COUNTS))}):",
            *body_lines(3),
        ]
    index, name = rng.randrange(len(st.WHILES)), rng.choice("abc")
    # a data-dependent loop, with a limit in case a statement keeps its condition true
    head = [
        "for step in range(5):",
        f"    if not {st.WHILES[index].format(x=name)}:",
        "        break",
    ]
    return [*head, f"    {st.WHILE_STEPS[index].format(x=name)}", *body_lines(1)]


def _fill(rng: random.Random, statement: str) -> str:
    x, y, z = (rng.choice("abc") for _ in range(3))
    threshold, number = rng.choice([0.0, 0.5, 30.0, -30.0]), rng.choice([0, 1, 2.5, -1])
    return statement.format(x=x, y=y, z=z, t=threshold, s=number, i=rng.choice([0, 1]))
