"""Triton's own parser and validator on the tensorrt_plan configs that we generate, on a machine with no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from builder.manifest.spec import Batching
from builder.serving import Judge, judging
from builder.triton import ModelArtifact, config, config_text
from tests.triton.artifacts import TENSORRT, Affine, artifact, scorer, tensor

pytestmark = pytest.mark.live

PLAN: dict[str, Any] = {"plan": b"plan", "facts": TENSORRT}
IMAGE = tensor("image", "float32", "batch", 3, "h", "w", h=(8, 16, 32), w=(8, 16, 32))


def affine(dtype: str, *shape: int | str, dynamic: tuple[int, ...] = (0,), **more: Any) -> ModelArtifact:
    return artifact(Affine(), (tensor("x", dtype, *shape),), ("y",), dynamic=dynamic, **{**PLAN, **more})


CONFIGS = {
    "batched, with a column": lambda: scorer(**PLAN),
    "images of any size": lambda: artifact(Affine(), (IMAGE,), ("y",), dynamic=(0, 2, 3), **PLAN),
    "static": lambda: affine("float32", 2, 3, dynamic=()),
    "dynamic, not batched": lambda: affine("float32", "batch", 3, batching=Batching(enabled=False)),
    "half": lambda: affine("float16", "batch", 3),
    "bfloat16": lambda: affine("bfloat16", "batch", 3),
    "int32": lambda: affine("int32", "batch", 3),
    "uint8": lambda: affine("uint8", "batch", 3),
    "only a batch": lambda: affine("float32", "batch"),
    "two profiles": lambda: scorer(profiles=[{"batch": (1, 1, 1)}, {"batch": (2, 4, 8)}], **PLAN),
    "preferred sizes and a delay": lambda: scorer(batching=Batching(None, 100, (4, 8)), **PLAN),
    "several instances": lambda: scorer(instances=3, **PLAN),
    "a batch of one": lambda: affine("float32", "batch", 3, profiles=[{"batch": (1, 1, 1)}]),
}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with judging() as running:
        yield running


@pytest.mark.parametrize("name", CONFIGS)
def test_triton_takes_every_config_that_we_generate(judge: Judge, name: str) -> None:
    message = config(CONFIGS[name]())
    assert message.platform == "tensorrt_plan"
    assert judge(config_text(message)) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("dims: 3", "dims: 0", "dimension must be integer >= 1"),
        ('platform: "tensorrt_plan"', 'platform: "onnxruntime_onnx"', "unexpected 'platform' and 'backend' pair"),
        ("dynamic_batching {\n", "dynamic_batching {\n preferred_batch_size: 9\n", "must be <= max batch size"),
        ("max_batch_size: 8", "max_batch_size: 0", "cannot have empty reshape"),
    ],
)
def test_triton_tells_why_it_refuses(judge: Judge, old: str, new: str, reason: str) -> None:
    text = config_text(config(scorer(**PLAN)))
    assert old in text
    assert reason in (judge(text.replace(old, new)) or "")
