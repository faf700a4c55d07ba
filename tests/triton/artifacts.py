"""Real artifacts made by hand: a small module, scripted, with recorded goldens, and no plan."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from builder.manifest.spec import ModelSpec, State, TensorSpec
from builder.parity.recording import record
from builder.store import published
from builder.triton import IO, EnsembleArtifact, ModelArtifact
from builder.triton.dtypes import by_numpy

BATCH = {"batch": (1, 4, 8)}
RTX = {"flavor": "tensorrt-rtx", "tensorrt": "1.7.1.116"}
TENSORRT = {"flavor": "tensorrt", "tensorrt": "10.13.3.9"}


def tensor(
    name: str, dtype: str, *shape: int | str, **dims: tuple[int, int, int]
) -> TensorSpec:
    used = {axis: span for axis, span in {**BATCH, **dims}.items() if axis in shape}
    return TensorSpec(dtype, shape, used, name)


def lowered(module: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module.eval()), buffer)
    return buffer.getvalue()


def artifact(
    module: torch.nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    *,
    name: str = "model",
    profiles: Sequence[Any] | None = None,
    plan: bytes | None = None,
    facts: dict[str, Any] | None = None,
    serve_as: str = "auto",
    dynamic: Sequence[int] | None = None,
    **spec: Any,
) -> ModelArtifact:
    """`dynamic`: the output axes that vary; by default the first where the first input's first axis
    is named.
    """
    dims = {axis: span for one in inputs for axis, span in one.dims.items()}
    chosen = tuple(profiles) if profiles is not None else (dims,)
    model = ModelSpec(
        name, Path("/nowhere/model.pt"), tuple(inputs), chosen, tuple(outputs), **spec
    )
    goldens = record(module.eval(), model)
    moving = (
        dynamic
        if dynamic is not None
        else ([0] if inputs and isinstance(inputs[0].shape[:1], tuple) else [])
    )
    return ModelArtifact(
        spec=model,
        inputs=tuple(
            IO(
                t.name or "",
                t.dtype,
                tuple(-1 if isinstance(n, str) else n for n in t.shape),
            )
            for t in inputs
        ),
        outputs=tuple(_output(n, goldens[0].outputs[n], moving) for n in outputs),
        profiles=chosen,
        plan=plan,
        plan_facts=facts if facts is not None else RTX,
        lowered=lowered(module),
        goldens=goldens,
        serve_as=serve_as,
    )


def _output(name: str, array: Any, dynamic: Sequence[int]) -> IO:
    known = by_numpy(array.dtype)
    assert known is not None
    return IO(
        name,
        known.name,
        tuple(-1 if axis in dynamic else size for axis, size in enumerate(array.shape)),
    )


class Scorer(torch.nn.Module):
    """Two inputs, an embedding with ids below 20, outputs of rank 2 and 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(20, 6)
        self.head = torch.nn.Linear(9, 4)

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(torch.cat([x, self.table(ids)], 1))
        return scores, scores.argmax(1)


def scorer(**more: Any) -> ModelArtifact:
    inputs = (tensor("x", "float32", "batch", 3), tensor("ids", "int64", "batch"))
    return artifact(Scorer(), inputs, ("scores", "best"), **{"name": "scorer", **more})


class Affine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


class Centered(torch.nn.Module):
    """Its rows depend on each other, although its shapes look like a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Cell(torch.nn.Module):
    """Two states of one shape, so that a swap of them would pass every check of shapes."""

    def forward(
        self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        new = a + x.unsqueeze(1)
        return x + a[:, 0] - b[:, 1], new, b * 2


CELL_INPUTS = (
    tensor("x", "float32", "batch", 5),
    tensor("a", "float32", "batch", 2, 5),
    tensor("b", "float32", "batch", 2, 5),
)


def cell(*outputs: str, initial: Path | None = None, **more: Any) -> ModelArtifact:
    names = outputs or ("y", "a_next", "b_next")
    state = (State("a", names[1], initial), State("b", names[2]))
    return artifact(Cell(), CELL_INPUTS, names, name="cell", **{"state": state, **more})


class Raise(torch.nn.Module):
    """The first step of a generation: adds the generation's number."""

    def __init__(self, generation: int) -> None:
        super().__init__()
        self.generation = generation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.generation


class Lower(torch.nn.Module):
    """The second step: subtracts the number, and returns the generation to which it belongs."""

    def __init__(self, generation: int) -> None:
        super().__init__()
        self.generation = generation

    def forward(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return h - self.generation, torch.zeros_like(h) + self.generation


def pair(generation: int, name: str = "pair", **more: Any) -> EnsembleArtifact:
    """An ensemble of two torch steps whose output `y` equals its input `x` exactly where both steps
    are of one generation; `g` is the second step's generation.
    """
    fields = {"serve_as": "python", **more}
    first = artifact(
        Raise(generation),
        (tensor("x", "float32", "batch", 2),),
        ("h",),
        name=f"{name}.0.torch",
        **fields,
    )
    second = artifact(
        Lower(generation),
        (tensor("h", "float32", "batch", 2),),
        ("y", "g"),
        name=f"{name}.1.torch",
        **fields,
    )
    goldens = tuple(
        replace(golden, outputs=_passed(golden, generation)) for golden in first.goldens
    )
    steps = tuple(replace(step, step_of=name) for step in (first, second))
    spec = replace(first.spec, name=name, outputs=("y", "g"))
    return EnsembleArtifact(
        spec, first.inputs, second.outputs, first.profiles, steps, goldens
    )


def _passed(golden: Any, generation: int) -> dict[str, Any]:
    x = golden.inputs["x"]
    return {"y": x, "g": x * 0 + generation}


def reseal(folder: Path) -> None:
    """Record the digests of a model's files as they are, after a test has edited one."""
    recorded = published.read(folder / "trt-build.json")
    files = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in recorded["files"]
    }
    published.write(folder, {**recorded, "files": files})
