"""Sequence batching in a generated config: implicit state for plans, the state of the Python
runtime, and refusals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.errors import PublishError
from builder.manifest.spec import Batching, Sequences, State
from builder.triton import config, publish
from tests.triton.artifacts import TENSORRT, artifact, cell, tensor

PLAN: dict[str, Any] = {"plan": b"plan", "facts": TENSORRT}


def test_state_of_plan_is_implicit_state_of_triton() -> None:
    message = config(cell(**PLAN))
    assert [t.name for t in (*message.input, *message.output)] == ["x", "y"]
    assert message.max_batch_size == 8 and not message.HasField("dynamic_batching")
    batching = message.sequence_batching
    assert batching.HasField("oldest") and not batching.control_input
    assert [(s.input_name, s.output_name, list(s.dims)) for s in batching.state] == [
        ("a", "a_next", [2, 5]),
        ("b", "b_next", [2, 5]),
    ]
    assert all(
        s.initial_state[0].zero_data and list(s.initial_state[0].dims) == [2, 5]
        for s in batching.state
    )
    assert not message.model_warmup


def test_state_of_python_runtime_is_not_in_config() -> None:
    message = config(cell())
    assert message.backend == "python" and message.HasField("sequence_batching")
    assert [t.name for t in (*message.input, *message.output)] == ["x", "y"]
    assert not message.sequence_batching.state


def test_sequence_options_are_written_to_config() -> None:
    wishes = {
        "sequences": Sequences(max=4, idle_us=7_000_000),
        "batching": Batching(None, 500, (2, 8)),
    }
    batching = config(cell(**wishes)).sequence_batching
    assert batching.max_sequence_idle_microseconds == 7_000_000
    assert batching.oldest.max_candidate_sequences == 4
    assert batching.oldest.max_queue_delay_microseconds == 500
    assert list(batching.oldest.preferred_batch_size) == [2, 8]


def test_explicit_state_is_served_as_input_and_output() -> None:
    message = config(cell(sequences=Sequences("explicit")))
    assert [t.name for t in message.input] == ["x", "a", "b"] and message.HasField(
        "dynamic_batching"
    )
    assert not message.HasField("sequence_batching")


@pytest.mark.parametrize("serving", [PLAN, {}], ids=["tensorrt_plan", "python"])
def test_initial_state_is_published_with_the_model(
    tmp_path: Path, serving: dict[str, Any]
) -> None:
    start = np.arange(10, dtype=np.float32).reshape(1, 2, 5)
    np.save(tmp_path / "a.npy", start)
    folder = publish(
        cell(initial=tmp_path / "a.npy", **serving), tmp_path / "repository"
    )
    assert (folder / "initial_state" / "a").read_bytes() == start.tobytes()
    record = json.loads((folder / "trt-build.json").read_text())["state"]
    assert [(s["input"], s["output"], s["shape"], s["initial"]) for s in record] == [
        ("a", "a_next", [2, 5], "initial_state/a"),
        ("b", "b_next", [2, 5], "zeros"),
    ]


def test_state_pairs_with_mismatched_name_order_are_refused() -> None:
    """It pairs them by the order of their names, in which the outputs' is the other one here."""
    with pytest.raises(
        PublishError,
        match="pairs states by the order of their names, a, b with b_next, z_next",
    ):
        config(cell("y", "z_next", "b_next", **PLAN))
    assert config(cell("y", "z_next", "b_next")).backend == "python"


class Sum(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = total + x.sum(1)
        return x * new.unsqueeze(1), new


def test_state_of_plan_needs_an_axis_besides_the_batch() -> None:
    inputs = (tensor("x", "float32", "batch", 5), tensor("total", "float32", "batch"))
    given: dict[str, Any] = {"state": (State("total", "new"),)}
    with pytest.raises(PublishError, match="'total' has no axis other than the batch"):
        config(artifact(Sum(), inputs, ("y", "new"), **given, **PLAN))
    assert config(artifact(Sum(), inputs, ("y", "new"), **given)).max_batch_size == 8


def test_state_of_dynamic_shape_is_refused_with_reason() -> None:
    """Without a batch of Triton's the sequences' number is an axis of the state like any other."""
    with pytest.raises(
        PublishError, match=r"'a' has shape \[-1, 2, 5\].*batching.enabled: false"
    ):
        config(cell(batching=Batching(enabled=False)))
