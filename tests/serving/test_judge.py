"""Triton's parser and validator accept the generated tensorrt_plan configs, also without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.manifest.spec import Batching, Sequences, State
from builder.triton import ModelArtifact, config, config_text
from tests.serving.judge import Judge, judging
from tests.triton.artifacts import TENSORRT, Affine, artifact, cell, scorer, tensor

pytestmark = pytest.mark.live

PLAN: dict[str, Any] = {"plan": b"plan", "facts": TENSORRT}


class AffineWithState(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x + a * b, a + 1, b + 1


IMAGE = tensor("image", "float32", "batch", 3, "h", "w", h=(8, 16, 32), w=(8, 16, 32))


def affine(
    dtype: str, *shape: int | str, dynamic: tuple[int, ...] = (0,), **more: Any
) -> ModelArtifact:
    return artifact(
        Affine(),
        (tensor("x", dtype, *shape),),
        ("y",),
        dynamic=dynamic,
        **{**PLAN, **more},
    )


CONFIGS = {
    "batched, with a column": lambda: scorer(**PLAN),
    "images of any size": lambda: artifact(
        Affine(), (IMAGE,), ("y",), dynamic=(0, 2, 3), **PLAN
    ),
    "static": lambda: affine("float32", 2, 3, dynamic=()),
    "dynamic, not batched": lambda: affine(
        "float32", "batch", 3, batching=Batching(enabled=False)
    ),
    "half": lambda: affine("float16", "batch", 3),
    "bfloat16": lambda: affine("bfloat16", "batch", 3),
    "int32": lambda: affine("int32", "batch", 3),
    "uint8": lambda: affine("uint8", "batch", 3),
    "only a batch": lambda: affine("float32", "batch"),
    "two profiles": lambda: scorer(
        profiles=[{"batch": (1, 1, 1)}, {"batch": (2, 4, 8)}], **PLAN
    ),
    "preferred sizes and a delay": lambda: scorer(
        batching=Batching(None, 100, (4, 8)), **PLAN
    ),
    "graphs": lambda: scorer(
        profiles=[{"batch": (1, 1, 4)}, {"batch": (2, 4, 8)}],
        batching=Batching(graphs=(1, 4, 8)),
        **PLAN,
    ),
    "graphs of images": lambda: artifact(
        Affine(),
        (IMAGE,),
        ("y",),
        dynamic=(0, 2, 3),
        batching=Batching(graphs=(1, 8)),
        **PLAN,
    ),
    "graphs, and state": lambda: cell(batching=Batching(graphs=(2,)), **PLAN),
    "several instances": lambda: scorer(instances=3, **PLAN),
    "state": lambda: cell(**PLAN),
    "state with batching options": lambda: cell(
        sequences=Sequences(max=4),
        batching=Batching(None, 500, (2, 8)),
        instances=2,
        **PLAN,
    ),
    "a batch of one": lambda: affine(
        "float32", "batch", 3, profiles=[{"batch": (1, 1, 1)}]
    ),
}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with judging() as running:
        yield running


@pytest.mark.parametrize("name", CONFIGS)
def test_triton_accepts_every_generated_config(judge: Judge, name: str) -> None:
    message = config(CONFIGS[name]())
    assert message.platform == "tensorrt_plan"
    assert judge(config_text(message)) is None


def test_triton_accepts_unbatched_state_with_an_initial_value(
    judge: Judge, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 5), np.float32))
    inputs = tuple(tensor(name, "float32", 2, 5) for name in ("x", "a", "b"))
    states = (State("a", "a_next", tmp_path / "a.npy"), State("b", "b_next"))
    message = config(
        artifact(
            AffineWithState(),
            inputs,
            ("y", "a_next", "b_next"),
            dynamic=(),
            state=states,
            **PLAN,
        )
    )
    assert message.max_batch_size == 0 and list(
        message.sequence_batching.state[0].dims
    ) == [2, 5]
    assert judge(config_text(message)) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("dims: 3", "dims: 0", "dimension must be integer >= 1"),
        (
            'platform: "tensorrt_plan"',
            'platform: "onnxruntime_onnx"',
            "unexpected 'platform' and 'backend' pair",
        ),
        (
            "dynamic_batching {\n",
            "dynamic_batching {\n preferred_batch_size: 9\n",
            "must be <= max batch size",
        ),
        ("max_batch_size: 8", "max_batch_size: 0", "cannot have empty reshape"),
    ],
)
def test_refusal_of_triton_has_the_reason(
    judge: Judge, old: str, new: str, reason: str
) -> None:
    text = config_text(config(scorer(**PLAN)))
    assert old in text
    assert reason in (judge(text.replace(old, new)) or "")
