"""Writes a `.pt2` file with the torch that runs this module.

    python3.11 -m venv /tmp/old && /tmp/old/bin/pip install torch==2.7.1 numpy
    /tmp/old/bin/python tests/export/formats.py

The file is kept beside this module. It needs no GPU, and nothing of trt-build.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

FILES = Path(__file__).with_name("formats")
BATCH, LENGTH = 8, 16
"""The largest sizes of the dynamic axes."""
UNREAD = "2.6.0"
"""The version whose calls of torch.cond later versions do not read."""


class Network(nn.Module):
    """Parameters, half weights, buffers of both kinds, constants of the module and of `forward`, a
    count that nothing reads, computed sizes, a branch and a dictionary.
    """

    def __init__(self, branches: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = branches
        self.linear = nn.Linear(4, 3)
        self.branch = nn.Linear(3, 3)
        self.half_weights = nn.Linear(3, 2).half()
        self.register_buffer("shift", torch.randn(3))
        self.register_buffer("scratch", torch.randn(3), persistent=False)
        self.register_buffer("calls", torch.zeros(1))
        self.constant = torch.ones(3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.calls.add_(1)
        rows = self.linear(x) + self.shift * self.scratch + self.constant
        rows = rows.reshape(x.shape[0] * x.shape[1], 3) * torch.tensor([1.0, 0.5, 0.25])
        chosen = rows
        if self.branches:
            chosen = torch.cond(y.sum() > 0, self.branch, torch.neg, (rows,))
        half = self.half_weights(rows.half()).float()
        return {
            "sum": chosen + y,
            "first": rows[: x.shape[0]].softmax(-1),
            "half": half,
        }


def file_of(version: str) -> Path:
    """The kept file of one version of torch."""
    return FILES / f"torch-{version}.pt2"


def program(branches: bool = True) -> torch.export.ExportedProgram:
    """The network with two dynamic axes."""
    axes = {0: Dim("batch", min=1, max=BATCH), 1: Dim("length", min=2, max=LENGTH)}
    inputs = torch.randn(3, 5, 4), torch.randn(3)
    return torch.export.export(
        Network(branches).eval(), inputs, dynamic_shapes=(axes, {})
    )


if __name__ == "__main__":
    version = str(torch.__version__).partition("+")[0]
    torch.export.save(program(), file_of(version))
    if version == UNREAD:
        torch.export.save(
            program(branches=False), file_of(f"{version}-without-branches")
        )
