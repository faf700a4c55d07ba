"""The models of `push --plans`: engines, with a PyTorch step between two of them.

Triton's TensorRT backend serves them if the server has it, else the Python runtime, with or without
a GPU.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn

from builder.serving import find

MANIFEST = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 2]}
dims: {batch: {min: 1, opt: 2, max: 4}}
outputs: [y, g]
build: {optimization_level: 0}
instances: 1
"""
SPLIT = 'fallback: {ops: ["aten::floor"], min_block_size: 1}\nlayout: ensemble\n'
"""Torch runs the step between two engines."""


class Generation(nn.Module):
    """A generation. `y` equals `x` if all steps are of one generation; `g` is the last step's
    generation.
    """

    def __init__(self, generation: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.full((2,), float(generation)))
        self.register_buffer("scale", torch.full((2,), 2.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raised = torch.floor((x + self.shift) * self.scale)
        lowered = raised / self.scale - self.shift
        return lowered, lowered * 0 + self.shift


def write(model: str, generation: int, repository: Path) -> Path:
    """Build and publish one generation. Returns the model's folder. `pair` is an ensemble."""
    from builder.repository import build_repository

    models = repository.with_name(f"{repository.name}.models")
    models.mkdir(parents=True, exist_ok=True)
    for old in models.iterdir():
        old.unlink()
    torch.jit.script(Generation(generation).eval()).save(str(models / f"{model}.pt"))
    (models / f"{model}.yaml").write_text(MANIFEST + (SPLIT if model == "pair" else ""))
    backends = find().backends() or ()
    serve_as = "tensorrt_plan" if "tensorrt" in backends else "python"
    (result,) = build_repository(
        models, repository, serve_as=serve_as, isolate=False, jobs=1
    )
    assert result.ok, result.error
    assert result.layout == ("ensemble" if model == "pair" else "single"), result.layout
    return repository / model


def prepare(
    models: tuple[str, ...], folder: Path, generations: range, processes: int = 4
) -> None:
    """Build every generation before the load begins, each into a separate repository."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_prepare, models, folder), generations))


def _prepare(models: tuple[str, ...], folder: Path, generation: int) -> None:
    write(models[generation % len(models)], generation, folder / str(generation))
