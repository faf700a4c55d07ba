"""Writes `.pt2` files with the serializers of earlier versions of torch.

    pip download --no-deps --only-binary=:all: --python-version 3.11 \
        --platform macosx_11_0_arm64 torch==2.6.0
    unzip torch-2.6.0-*.whl 'torch/export/*' 'torch/_export/*' -d torch-2.6.0
    python -m tests.export.formats 2.6.0 torch-2.6.0

The installed torch exports the program. The Python files of the earlier one write it: its layout
of the archive, its version of the format and its fields. The file is kept beside this module.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import sys
import typing
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.export.pt2_archive._package  # loads what the earlier files import
from torch import Tensor, nn
from torch.export import Dim

FILES = Path(__file__).with_name("formats")
_PACKAGES = ("torch._export.serde", "torch.export.pt2_archive")
"""The packages of torch that write the file. The second one exists from torch 2.8 on."""
BATCH, LENGTH = 8, 16
"""The largest sizes of the dynamic axes."""


class Network(nn.Module):
    """Parameters, buffers of both kinds, a constant, computed sizes and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.register_buffer("shift", torch.randn(3))
        self.register_buffer("scratch", torch.randn(3), persistent=False)
        self.constant = torch.ones(3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        rows = self.linear(x) + self.shift * self.scratch + self.constant
        rows = rows.reshape(x.shape[0] * x.shape[1], 3)
        return {"sum": rows.relu() + y, "first": rows[: x.shape[0]].softmax(-1)}


def file_of(version: str) -> Path:
    """The kept file in the format of one version of torch."""
    return FILES / f"torch-{version}.pt2"


def program() -> torch.export.ExportedProgram:
    """The network with two dynamic axes."""
    axes = {0: Dim("batch", min=1, max=BATCH), 1: Dim("length", min=2, max=LENGTH)}
    inputs = torch.randn(3, 5, 4), torch.randn(3)
    return torch.export.export(Network().eval(), inputs, dynamic_shapes=(axes, {}))


def write(version: str, folder: Path) -> Path:
    """Save the program as this version of torch does, whose Python files are in `folder`."""
    exported = program()
    _replace_packages(folder)
    torch.__version__ = version  # type: ignore[assignment]
    FILES.mkdir(exist_ok=True)
    _save_of(folder)(exported, file_of(version))
    return file_of(version)


def _replace_packages(folder: Path) -> None:
    """Import the packages from the folder instead of the installed torch."""
    for name in [name for name in sys.modules if name.startswith(_PACKAGES)]:
        del sys.modules[name]
    for name in _PACKAGES:
        source = folder / name.replace(".", "/")
        if source.is_dir():
            spec = importlib.util.spec_from_file_location(
                name, source / "__init__.py", submodule_search_locations=[str(source)]
            )
            assert spec and spec.loader
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            parent, _, last = name.rpartition(".")
            setattr(sys.modules[parent], last, module)


def _save_of(folder: Path) -> Any:
    """The earlier `torch.export.save`. Its module cannot be imported beside the installed one."""
    tree = ast.parse((folder / "torch/export/__init__.py").read_text())
    tree.body = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "save"
    ]
    names = {**vars(torch.export), **vars(typing)}
    names |= {"os": os, "zipfile": zipfile, "DEFAULT_PICKLE_PROTOCOL": 2}
    exec(compile(tree, "save", "exec"), names)
    return names["save"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="the version of torch")
    parser.add_argument("folder", type=Path, help="the folder with its package `torch`")
    options = parser.parse_args()
    print(write(options.version, options.folder))
