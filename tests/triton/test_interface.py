"""Changes of a model's inputs and outputs: which of them its clients survive."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.triton import refuse_incompatible
from builder.triton.config import parse_config
from builder.triton.interface import incompatible

CONFIG = """
name: "net" backend: "python" max_batch_size: 8
input [{{ name: "x" data_type: {dtype} dims: [{x}] }}{inputs}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [{y}] }}{outputs}]
"""


def config(**changes: str) -> str:
    usual = {"dtype": "TYPE_FP32", "x": "4", "y": "3", "inputs": "", "outputs": ""}
    return CONFIG.format(**{**usual, **changes})


OTHER = ', { name: "z" data_type: TYPE_FP32 dims: [1] }'
OPTIONAL = ', { name: "z" data_type: TYPE_FP32 dims: [1] optional: true }'


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"outputs": OTHER}, []),
        ({"inputs": OPTIONAL}, []),
        ({"x": "-1"}, []),
        ({"inputs": OTHER}, ["input 'z' is new, and required"]),
        ({"dtype": "TYPE_FP16"}, ["input 'x' is FP16, and was FP32"]),
        ({"x": "5"}, ["input 'x' takes the shape [-1, 5], and took [-1, 4]"]),
        ({"y": "3, 1"}, ["output 'y' has the shape [-1, 3, 1], and had [-1, 3]"]),
        ({"y": "-1"}, ["output 'y' has the shape [-1, -1], and had [-1, 3]"]),
    ],
)
def test_incompatible_config_changes_are_reported(
    changes: dict[str, str], found: list[str]
) -> None:
    before, after = (
        parse_config(config(), "before"),
        parse_config(config(**changes), "after"),
    )
    assert list(incompatible(before, after)) == found


def test_removed_tensors_and_new_required_inputs_are_reported() -> None:
    before = parse_config(config(inputs=OPTIONAL, outputs=OTHER), "before")
    assert list(incompatible(before, parse_config(config(), "after"))) == [
        "input 'z' is no longer there",
        "output 'z' is no longer there",
    ]
    after = parse_config(config(inputs=OTHER, outputs=OTHER), "after")
    assert list(incompatible(before, after)) == ["input 'z' is now required"]


def test_output_that_becomes_optional_is_incompatible() -> None:
    stated = (
        ' parameters { key: "trt_build.optional_outputs" value { string_value: "y" } }'
    )
    always, sometimes = (
        parse_config(config(), "a"),
        parse_config(config() + stated, "b"),
    )
    assert list(incompatible(always, sometimes)) == ["output 'y' may now be None"]
    assert list(incompatible(sometimes, always)) == []


def test_smaller_batch_and_sequence_batching_are_incompatible() -> None:
    before = parse_config(config(), "before")
    smaller = parse_config(
        config().replace("max_batch_size: 8", "max_batch_size: 4"), "after"
    )
    assert list(incompatible(before, smaller)) == ["the maximum batch is 4, and was 8"]
    sequence = parse_config(f"{config()} sequence_batching {{}}", "after")
    assert list(incompatible(before, sequence)) == ["requests now belong to sequences"]


def test_incompatible_change_is_refused_unless_accepted(tmp_path: Path) -> None:
    former, new = tmp_path / "former", tmp_path / "new"
    new.mkdir()
    (new / "config.pbtxt").write_text(config(y="7"))
    assert refuse_incompatible(former, new, accept=False) == ()
    former.mkdir()
    (former / "config.pbtxt").write_text(config())
    with pytest.raises(UsageError, match="output 'y' has the shape") as no:
        refuse_incompatible(former, new, accept=False)
    assert no.value.exit_code == 2
    (change,) = refuse_incompatible(former, new, accept=True)
    assert "output 'y'" in change
