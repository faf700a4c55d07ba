"""Writes programs with an earlier torch, and compares what trt-build makes of them.

    python3.11 -m venv /tmp/old && /tmp/old/bin/pip install torch==2.7.1 numpy
    /tmp/old/bin/python tests/export/earlier.py /tmp/programs
    python -m tests.export.earlier /tmp/programs --check

A folder of each version holds the programs, exported in strict mode and without it, and the
answers of their modules. The check also compares answers at other sizes with those of the program.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

VOCABULARY = 50


class Encoder(nn.Module):
    """An encoder layer, sizes in a reshape, and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.layer(self.table(ids))
        return {"tokens": x, "mean": x.mean(1).reshape(ids.shape[0], 4, 4).flatten(1)}


class Counter(nn.Module):
    """A buffer that is written and never read, and one that is not saved with the module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("shift", torch.randn(8, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return torch.relu(self.norm(self.conv(x)) + self.shift)


class State(nn.Module):
    """A buffer that is written and read, which is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x.sum(0))
        return x + self.total


class Branch(nn.Module):
    """A branch with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(
            x.sum() > 0, lambda v: self.linear(v).relu(), lambda v: v - 1.0, (x,)
        )


class Lifted(nn.Module):
    """Constants of the module and of `forward`, and a number among the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        steps = torch.tensor([0.5, 0.25, 0.125, 1.0])
        return x * self.scale + steps, (x[:, :k] + torch.tensor(2.0)).sum(-1)


class Half(nn.Module):
    """Half weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)
        ).half()

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.layers(x.half()).float(), -1)


class Writes(nn.Module):
    """Writes to slices, with computed sizes."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.zeros(x.shape[0], x.shape[1] * 2)
        z[:, : x.shape[1]] = x
        z[:, x.shape[1] :] = y.flip(-1)
        return z[:, ::2].cumsum(1), (z > 0).any(1)


def cases() -> dict[str, tuple[nn.Module, tuple[Any, ...], Any]]:
    """By name: the module, its arguments, and its dynamic axes."""
    torch.manual_seed(0)
    batch, length = Dim("batch", min=1, max=32), Dim("length", min=2, max=64)
    rows, both = {0: batch}, {0: batch, 1: length}
    return {
        "encoder": (Encoder(), (torch.randint(0, VOCABULARY, (3, 7)),), (both,)),
        "counter": (Counter(), (torch.randn(2, 3, 8, 8),), (rows,)),
        "state": (State(), (torch.randn(2, 4),), (rows,)),
        "branch": (Branch(), (torch.randn(3, 4),), (rows,)),
        "lifted": (Lifted(), (torch.randn(3, 4), 2), (rows, None)),
        "half": (Half(), (torch.randn(3, 8),), (rows,)),
        "writes": (Writes(), (torch.randn(3, 5), torch.randn(3, 5)), (both, both)),
    }


def write(folder: Path) -> None:
    """Export and save every program with this torch; what torch refuses is printed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (module, arguments, axes) in cases().items():
        for mode, strict in (("strict", True), ("loose", False)):
            file = folder / f"{name}-{mode}.pt2"
            try:
                program = torch.export.export(
                    module.eval(), arguments, dynamic_shapes=axes, strict=strict
                )
            except Exception as error:  # torch raises errors of many classes
                print(f"{file.name}: not exported: {type(error).__name__}")
                continue
            torch.export.save(program, file)
            with torch.no_grad():
                answers = flat(module(*arguments)) if name != "state" else []
            torch.save(
                {"arguments": arguments, "answers": answers},
                file.with_suffix(".answers"),
            )


def flat(result: Any) -> list[Tensor]:
    """The tensors of a result."""
    if isinstance(result, Tensor):
        return [result]
    return list(result.values() if isinstance(result, dict) else result)


def check(file: Path) -> str:
    """What trt-build makes of one program: equal answers, or its error."""
    import builder
    from builder import frontends
    from builder.errors import TrtBuildError

    tensors = torch.load(file.with_suffix(".answers"))
    try:
        module = frontends.load(file)
        assert isinstance(module, frontends.ExportedModule)
        conversion = builder.convert(module.program)
    except TrtBuildError as error:
        return f"refused: {error.message}"
    inputs = module.flat(tensors["arguments"], {})
    compare(builder.reference.run(conversion, inputs), tensors["answers"])
    inputs = [
        torch.cat([tensor, tensor.flip(0)]) if tensor.dim() else tensor
        for tensor in inputs
    ]
    compare(builder.reference.run(conversion, inputs), list(module(*inputs)))
    return "equal"


def compare(answers: list[Tensor], wanted: list[Tensor]) -> None:
    """Raises AssertionError for other answers. Half weights are known to three digits."""
    torch.testing.assert_close(answers, wanted, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of all versions")
    parser.add_argument(
        "--check", action="store_true", help="load and compare existing files"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.check:
        for found in sorted(options.folder.glob("*/*.pt2")):
            print(found.parent.name, found.stem, check(found), flush=True)
    else:
        write(options.folder / str(torch.__version__).partition("+")[0])
