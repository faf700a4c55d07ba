"""Mutated manifests: `check` reads each with a small model."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.hostile.counts import EXECUTED, Case, command, outcome

ATTEMPT = "tests.hostile.manifests:attempt"

VALID = (
    """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 4]}
dims:
  batch: {min: 1, opt: 2, max: 8}
outputs: [y]
""",
    """\
inputs:
  - name: x
    dtype: float32
    shape: [batch, 4]
profiles:
  - batch: {min: 1, opt: 2, max: 4}
  - batch: {min: 4, opt: 4, max: 8}
outputs: [y]
precision: fp16
tolerance: {rtol: 1.0e-2, atol: 1.0e-2}
batching: {enabled: true, preferred: [2, 4], max_queue_delay_us: 100}
goldens: sample.npz
limits: {stage_seconds: 30}
""",
    """\
inputs:
  - {name: x, dtype: float32, shape: [2, 4]}
outputs: [scores]
unroll_limit: 8
instances: 1
keep_fp32: [linear]
fallback: {min_block_size: 1}
runtime: {cuda_graphs: false}
calibration: {data: [sample.npz], method: max}
build: {optimization_level: 1}
""",
)
VALUES = (
    "null",
    "true",
    "-1",
    "0",
    "9223372036854775808",
    "1e400",
    ".nan",
    "[]",
    "{}",
    "[[[[[[[[]]]]]]]]",
    '""',
    '"\\0"',
    '"\\x1b[2J"',
    "../../secret.txt",
    "/etc/passwd",
    "/dev/zero",
    "pipe",
    "secret.txt",
    "pickled.npz",
    "notes.npz",
    "$(touch {executed})",
    "!!python/object/apply:os.system ['touch {executed}']",
    "!!python/name:os.system",
    "!!binary aGVsbG8=",
    "&a [*a]",
    "*missing",
    "2026-11-23",
    "0x10",
    "1_000",
    "'" + "n" * 300 + "'",
    "'" + "n" * 5000 + ".npz'",
    "float64",
    "int8",
    "x",
    "batch",
    "[batch, batch]",
    "[{name: x}]",
    "<<",
    "\u202e",
    "\ufeff",
)
KEYS = (
    *(
        "module",
        "goldens",
        "state",
        "sequences",
        "plugins",
        "triton",
        "constants",
        "limits",
        "io",
    ),
    *(
        "__class__",
        "dims",
        "profiles",
        "calibration",
        "warmup",
        "precision",
        "build",
        "<<",
    ),
)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Executes:
    """Its pickle creates the folder `path` when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def prepare(folder: Path) -> bytes:
    """Write the model, and return its bytes."""
    torch.manual_seed(0)
    model = folder / "model.pt"
    torch.jit.script(Small().eval()).save(str(model))
    return model.read_bytes()


def write(folder: Path, seed: int, model: bytes, executed: Path) -> Case:
    """A folder with the model and the manifest of that seed."""
    chance = random.Random(seed)
    folder.mkdir()
    (folder / "m.pt").write_bytes(model)
    np.savez(folder / "sample.npz", x=np.ones((2, 4), np.float32))
    np.savez(folder / "pickled.npz", x=np.array([Executes(executed)], object))
    (folder / "notes.npz").write_text("no arrays")
    (folder / "secret.txt").write_text("text")
    os.mkfifo(folder / "pipe")
    mutation = chance.choice(MUTATIONS)
    data = mutation(chance, chance.choice(VALID).encode())
    (folder / "m.yaml").write_bytes(data.replace(b"{executed}", str(executed).encode()))
    return Case(mutation.__name__, (str(folder),))


def change_value(chance: random.Random, data: bytes) -> bytes:
    lines = data.decode().splitlines()
    index = chance.randrange(len(lines))
    head, colon, _ = lines[index].rpartition(":")
    lines[index] = f"{head}{colon} {chance.choice(VALUES)}" + (
        "}" if "{" in head else ""
    )
    return "\n".join(lines).encode()


def change_word(chance: random.Random, data: bytes) -> bytes:
    words = data.decode().split(" ")
    words[chance.randrange(len(words))] = chance.choice(VALUES)
    return " ".join(words).encode()


def add_key(chance: random.Random, data: bytes) -> bytes:
    return data + f"{chance.choice(KEYS)}: {chance.choice(VALUES)}\n".encode()


def change_lines(chance: random.Random, data: bytes) -> bytes:
    lines = data.splitlines()
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    if chance.random() < 0.4:
        del lines[at]
    elif chance.random() < 0.5:
        lines.insert(at, lines[to])
    else:
        lines[at], lines[to] = lines[to], lines[at]
    return b"\n".join(lines)


def change_bytes(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 10))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def change_number(chance: random.Random, data: bytes) -> bytes:
    positions = [index for index, byte in enumerate(data) if chr(byte).isdigit()]
    at = chance.choice(positions)
    number = str(chance.choice((0, 1, 2, 3, 5, 8, 9, 100, -1, 2**31, 2**63, 10**30)))
    return data[:at] + number.encode() + data[at + 1 :]


def indent(chance: random.Random, data: bytes) -> bytes:
    lines = data.splitlines()
    at = chance.randrange(len(lines))
    lines[at] = chance.choice((b" ", b"\t", b"- ", b"? ", b"# ", b"    ")) + lines[at]
    return b"\n".join(lines)


def whole(chance: random.Random, data: bytes) -> bytes:
    """Change the file as a whole."""
    laughs = "".join(
        f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12)
    )
    return chance.choice(
        (
            b"",
            b"\xff\xfe" + data.decode().encode("utf-16-le"),
            b"\xef\xbb\xbf" + data,
            data.replace(b"\n", b"\r\n"),
            data[: chance.randrange(len(data))],
            data + b"---\n" + data,
            data * 2,
            data + b"#" * (2 << 20),
            b"a0: &a0 [x]\n" + laughs.encode(),
            b"[" * 100_000,
            b"{a: " * 5000,
            b"? " * 5000,
            b"%YAML 9.9\n---\n" + data,
            b"- " + data,
            b"!!python/object/new:os.mkdir ['{executed}']\n",
            data.replace(b"x", b"\xc3\xa9"),
        )
    )


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(change_value, change_value, change_word, add_key, change_lines),
    *(change_bytes, change_number, indent, whole),
)


def attempt(folder: str, report: Any) -> tuple[str, str]:
    """`check` of the folder: it records goldens and compares the network with them."""
    report(Path(folder).name, "check")
    assert EXECUTED  # the caller watches the file of the payloads
    return outcome(*command("check", folder, "--json", "--no-isolate"))
