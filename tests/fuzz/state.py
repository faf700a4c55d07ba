"""Random modules that write attributes, called several times in a row.

A lowered graph has no state. So it must give the outputs of each call, or lowering must refuse the
module.
"""

from __future__ import annotations

import io
import linecache
import random
from dataclasses import dataclass
from typing import Any

import torch

import builder
from builder import TensorSpec
from builder.errors import TrtBuildError

SIZES = (3, 3, 2, 4, 3)
"""The rows of the input in each call."""
_HEAD = '''"""Attributes of each type; `c` is a buffer, which may share memory with another one."""

from typing import Dict, List, Optional

import torch
from torch import Tensor, nn


class Program(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.ones(4))
        self.register_buffer("b", torch.arange(4.0))
        self.register_buffer("m", torch.zeros(3, 4))
        self.register_buffer("c", {c})
        self.count: int = 0
        self.scale: float = 1.0
        self.flag: bool = False
        self.items: List[Tensor] = [torch.zeros(4), torch.ones(4)]
        self.nums: List[int] = [1, 2]
        self.table: Dict[str, Tensor] = {{"k": torch.zeros(4)}}
        self.last: Optional[Tensor] = None
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Tensor):
        y = x * 2
        z = x + 1
        n = x.size(0)
'''
_BUFFERS = ("torch.zeros(4)", "torch.zeros(4)", "self.a", "self.m[0]")
_WRITES = (
    "self.count += 1",
    "self.count = n",
    "self.count = self.count * 2 + 1",
    "self.a = {v}.mean(0)",
    "self.b = self.a + 1",
    "self.a += 1",
    "self.a.copy_({v}[0])",
    "self.b.add_({v}.sum(0))",
    "self.b.zero_()",
    "self.a.mul_(0.5).add_(self.b)",
    "self.a, self.b = self.b, self.a",
    "self.a.view(2, 2)[0].zero_()",
    "self.m[self.count % 3] = {v}[0]",
    "self.m[0].add_(1)",
    "self.m.t()[0].add_(1)",
    "self.c.add_(1)",
    "self.c = {v}[0]",
    "self.items[0] = {v}[0]",
    "self.items[1].add_(1)",
    "self.items.append({v}[0])",
    "self.nums[0] = n",
    "self.nums.append(self.count)",
    "self.table['k'] = {v}[0]",
    "self.table['k'].add_(1)",
    "self.last = {v}",
    "self.scale = self.scale * 2",
    "self.flag = not self.flag",
    "u = self.a\nu.add_(1)",
    "u = self.m[0]\nu.copy_({v}[0])",
    "u = self.items[0]\nu.add_(2)",
)
_READS = (
    "y = y + self.a",
    "z = z + self.b",
    "z = z + self.c",
    "y = y + self.m.sum(0)",
    "y = y * self.scale",
    "y = y + self.count",
    "z = z + self.items[0]",
    "z = z + self.items[1]",
    "y = y + len(self.items)",
    "y = y + self.nums[0]",
    "y = y + self.table['k']",
    "y = y + z",
    "z = z.relu()",
    "y = self.bn(y)",
)
_BLOCKS = (
    "if self.count > 1:",
    "if self.flag:",
    "if self.last is not None:",
    "if self.training:",
    "if len(self.items) > 2:",
    "if float(self.a.sum()) > 3:",
    "if bool(x.sum() > 0):",
    "if n > 2:",
    "for i in range(2):",
    "for i in range(n):",
)
_RETURNS = ("return y", "return y, z", "return y, n", "return y, self.a", "return z")


@dataclass(frozen=True)
class Calls:
    """The outcome of a program: invalid (torch fails), refused, equal or wrong. `leaves_out` tells
    whether the graph lacks writes of the module.
    """

    verdict: str
    reason: str = ""
    leaves_out: bool = False


def source(seed: int) -> str:
    """The source of the program `Program` for a seed."""
    rng = random.Random(f"state {seed}")
    lines = list[str]()
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.3:
            lines.append(rng.choice(_BLOCKS))
            inner = [line for _ in range(rng.randint(1, 2)) for line in _statement(rng)]
            lines += [f"    {line}" for line in inner]
        else:
            lines += _statement(rng)
    lines.append(rng.choice(_RETURNS))
    body = "".join(f"        {line}\n" for line in lines)
    return _HEAD.format(c=rng.choice(_BUFFERS)) + body


def _statement(rng: random.Random) -> list[str]:
    pool = _WRITES if rng.random() < 0.6 else _READS
    return rng.choice(pool).format(v=rng.choice("xyz")).split("\n")


def check_calls(text: str, name: str) -> Calls:
    """Compare the lowered graph of a program with the module in each of several calls."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, 4, generator=generator) for size in SIZES]
    try:
        file = _saved(text, name)
        module = _loaded(file)
        with torch.no_grad():
            expected = [_tensors(module(x.clone())) for x in inputs]
    except Exception as error:  # torch raises many types
        return Calls("invalid", str(error))
    spec = TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 8)})
    try:
        lowered = builder.lower(_loaded(file), specs=(spec,))
    except TrtBuildError as error:
        return Calls("refused", str(error))
    leaves_out = bool(lowered.unread_attributes)
    for number, (x, tensors) in enumerate(zip(inputs, expected, strict=True)):
        try:
            torch.testing.assert_close(_tensors(lowered.run(x.clone())), tensors)
        except AssertionError as error:
            return Calls("wrong", f"call {number} of {name}: {error}\n{text}")
    return Calls("equal", leaves_out=leaves_out)


def _saved(text: str, name: str) -> io.BytesIO:
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(text, file, "exec"), scope)
    saved = io.BytesIO()
    torch.jit.save(torch.jit.script(scope["Program"]().eval()), saved)
    return saved


def _loaded(file: io.BytesIO) -> Any:
    file.seek(0)
    return torch.jit.load(file).eval()


def _tensors(outputs: Any) -> tuple[torch.Tensor, ...]:
    """Copies of the outputs, because the next call may write them. Numbers are tensors, too."""
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return tuple(torch.as_tensor(output).clone() for output in outputs)
