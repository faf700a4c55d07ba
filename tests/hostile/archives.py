"""Mutated and crafted TorchScript archives."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

Members = dict[str, bytes]
Mutation = Callable[[random.Random, Members], None]


class Dense(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.scale


class Loops(torch.nn.Module):
    def forward(self, x: torch.Tensor, count: int = 3) -> torch.Tensor:
        for index in range(count):
            x = torch.cat([x, x[:1] * index]) if index % 2 == 0 else x.relu()
        return x


class State(torch.nn.Module):
    """`torch.jit.load` runs its `__setstate__`."""

    def __init__(self) -> None:
        super().__init__()
        self.path = "victim"
        self.size = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.size

    @torch.jit.export
    def __getstate__(self) -> tuple[str, int, bool]:
        return self.path, self.size, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, int, bool]) -> None:
        self.path, self.size, self.training = state


def seeds() -> list[Members]:
    """The archives that are mutated: scripted, traced and frozen ones."""
    torch.manual_seed(0)
    x = torch.ones(2, 4)
    modules = [
        torch.jit.script(module.eval()) for module in (Dense(), Loops(), State())
    ]
    modules += [torch.jit.trace(Dense().eval(), x), torch.jit.freeze(modules[0])]
    return [_members(module) for module in modules]


def _members(module: torch.jit.ScriptModule) -> Members:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _pick(chance: random.Random, members: Members, *endings: str) -> str:
    names = [name for name in members if not endings or name.endswith(endings)]
    return chance.choice(names or list(members))


def _bytes(chance: random.Random, members: Members, *endings: str) -> None:
    name = _pick(chance, members, *endings)
    data = bytearray(members[name])
    for _ in range(chance.choice((1, 1, 2, 8))):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    members[name] = bytes(data)


def change_pickle(chance: random.Random, members: Members) -> None:
    _bytes(chance, members, ".pkl")


def change_code(chance: random.Random, members: Members) -> None:
    _bytes(chance, members, ".py")


def change_any(chance: random.Random, members: Members) -> None:
    _bytes(chance, members)


def drop(chance: random.Random, members: Members) -> None:
    del members[_pick(chance, members)]


def shorten(chance: random.Random, members: Members) -> None:
    name = _pick(chance, members)
    members[name] = members[name][: chance.choice((0, len(members[name]) // 2))]


def lengthen(chance: random.Random, members: Members) -> None:
    members[_pick(chance, members)] += chance.randbytes(chance.choice((1, 64, 4096)))


def swap(chance: random.Random, members: Members) -> None:
    one, other = _pick(chance, members), _pick(chance, members)
    members[one], members[other] = members[other], members[one]


def rename(chance: random.Random, members: Members) -> None:
    name = _pick(chance, members)
    new = chance.choice(
        (name.upper(), "../" + name, name + "\\x", name.replace("/", "//"), "x")
    )
    members[new] = members.pop(name)


def add(chance: random.Random, members: Members) -> None:
    name = _pick(chance, members)
    members[chance.choice((name.swapcase(), f"{name}/x", "other/data.pkl"))] = members[
        name
    ]


def cut_code(chance: random.Random, members: Members) -> None:
    """Leave out, repeat or exchange lines."""
    name = _pick(chance, members, ".py")
    lines = members[name].split(b"\n")
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    if chance.random() < 0.5:
        lines.insert(at, lines[to])
    else:
        lines[at], lines[to] = lines[to], lines[at]
    members[name] = b"\n".join(lines)


EXPRESSIONS = (
    'torch.from_file("{victim}", True, 4)',
    'torch.from_file("{victim}", True, 4, dtype=0)',
    'ops.aten.from_file("{victim}", True, 4)',
    'getattr(torch, "from_file")("{victim}", True, 4)',
    'torch.save(1, "{victim}")',
    'ops.aten.save((1, 2), "{victim}")',
    "ops.c10d.barrier_(1)",
    "ops.inductor.resize_storage_bytes_(torch.ones([1]), 1)",
    'ops.debugprims.load_tensor("{victim}", [1], [1], dtype=6, device=torch.device("cpu"))',
    "ops.prim.rpc_sync(1)",
    "ops.unknown.operator(1)",
    "torch.empty([1 << 40])",
    "torch.ones([8, 268435456])",
    "torch.as_strided(torch.ones([1]), [1000000], [1], 0)",
    "[1] * 1000000000000",
    '"a" * 1000000000000',
    "torch.tensor(9223372036854775807)",
)
STATEMENTS = (
    "_h = {expression}",
    "_h = [{expression}]",
    "while True:\n      pass",
    "while True:\n      _h = torch.ones([1])",
    "return {expression}",
    "f = torch.from_file\n    _h = f('{victim}', True, 4)",
    "raise AssertionError('{victim}')",
    "print('among the answers', '{victim}')",
)


def craft(chance: random.Random, members: Members) -> None:
    """A hostile statement at the beginning of a method."""
    name = _pick(chance, members, ".py")
    lines = members[name].decode().split("\n")
    ends = [
        n
        for n, line in enumerate(lines)
        if line.startswith("    ") and "return" in line
    ]
    starts = [
        n
        for n, line in enumerate(lines)
        if line.rstrip().endswith(":") and "->" in line
    ]
    at = chance.choice([n + 1 for n in starts] + ends or [0])
    statement = chance.choice(STATEMENTS).replace(
        "{expression}", chance.choice(EXPRESSIONS)
    )
    lines.insert(at, f"    {statement}")
    members[name] = "\n".join(lines).encode()


MUTATIONS: tuple[Mutation, ...] = (
    change_pickle,
    change_code,
    change_any,
    drop,
    shorten,
    lengthen,
    swap,
    rename,
    add,
    cut_code,
    craft,
    craft,
    craft,
)


def write(path: Path, seed: int, originals: list[Members], victim: Path) -> str:
    """Write the archive of that seed, and return the mutation's name."""
    chance = random.Random(seed)
    members = dict(chance.choice(originals))
    mutation = chance.choice(MUTATIONS)
    mutation(chance, members)
    compression = zipfile.ZIP_DEFLATED if chance.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"{victim}", str(victim).encode()))
    if chance.random() < 0.1:
        _damage(chance, path)
        return f"{mutation.__name__} and damage"
    return mutation.__name__


def _damage(chance: random.Random, path: Path) -> None:
    """Change or remove bytes of the zip file itself."""
    data = bytearray(path.read_bytes())
    if chance.random() < 0.5:
        del data[chance.randrange(len(data)) :]
    else:
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(bytes(data))
