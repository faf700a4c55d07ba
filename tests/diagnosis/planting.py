"""Models with a manifest, and converters replaced by wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from builder import manifest
from builder.conversion import CONVERTERS
from builder.pipeline import Order


def order(folder: Path, module: nn.Module, inputs: str, more: str = "") -> Order:
    """The module, scripted, as the model `m` with this manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    path = folder / "m.pt"
    torch.jit.script(module.eval()).save(str(path))
    path.with_suffix(".yaml").write_text(f"inputs:\n  - {{name: x, {inputs}}}\n{more}")
    (spec,) = manifest.load(path)
    return Order(spec, folder / "out")


def plant(monkeypatch: pytest.MonkeyPatch, key: str, build: Callable[..., Any]) -> None:
    """Replace the converter of the operator `key`; `build` may take other arguments of its
    schema.
    """
    monkeypatch.setitem(CONVERTERS, key, replace(CONVERTERS[key], build=build))
