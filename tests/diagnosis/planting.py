"""Models with a manifest, and converters replaced by wrong ones."""

from __future__ import annotations

import inspect
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

Arguments = dict[str, Any]


def order(folder: Path, module: nn.Module, inputs: str, more: str = "") -> Order:
    """The module, scripted, as the model `m` with this manifest."""
    folder.mkdir(parents=True, exist_ok=True)
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


def change(
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    changed: Callable[[Any, Arguments], Arguments],
) -> None:
    """Call the converter of the operator `key` with the arguments that `changed` returns."""
    entry = CONVERTERS[key]
    names = [argument.name for argument in entry.schema.arguments]

    def wrong(ctx: Any, *values: Any) -> Any:
        arguments = changed(ctx, dict(zip(names, values, strict=True)))
        return entry.signature.call(entry.build, ctx, ctx.node, arguments)

    plant(monkeypatch, key, wrong)


def marked_line(module: nn.Module) -> str:
    """`file.py:12`, the line of the module's source that ends in `# here`."""
    lines, first = inspect.getsourcelines(type(module))
    (number,) = (
        n for n, line in enumerate(lines, first) if line.rstrip().endswith("# here")
    )
    return f"{Path(inspect.getfile(type(module))).name}:{number}"
