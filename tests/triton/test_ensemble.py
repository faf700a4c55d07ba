"""The offline check of the graph of an ensemble refuses what Triton would refuse, with its
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import PublishError
from builder.triton import ensemble

FIRST = """name: "m.0" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "h" data_type: TYPE_FP32 dims: [ 4 ] }"""
SECOND = """name: "m.1" max_batch_size: 8
input { name: "h" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }"""
WHOLE = """name: "m" platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 5 ] }
ensemble_scheduling {
  step { model_name: "m.0" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "h" value: "h" } }
  step { model_name: "m.1" model_version: -1 input_map { key: "h" value: "h" } output_map { key: "y" value: "y" } }
}"""


def parsed(text: str) -> Any:
    return text_format.Parse(text, pb.ModelConfig())


def check(change: Callable[[Any, Any, Any], None]) -> None:
    whole, first, second = map(parsed, (WHOLE, FIRST, SECOND))
    change(whole, first, second)
    ensemble.check(whole, {"m.0": first, "m.1": second})


def test_valid_ensemble_with_dynamic_dims_passes() -> None:
    check(lambda whole, first, second: None)


def test_unbatched_step_may_have_the_batch_in_its_dims() -> None:
    def change(whole: Any, first: Any, second: Any) -> None:
        second.max_batch_size = 0
        second.input[0].dims[:] = [-1, 4]
        second.output[0].dims[:] = [-1, 5]

    check(change)


def wrong_type(whole: Any, first: Any, second: Any) -> None:
    second.input[0].data_type = pb.TYPE_FP16


def wrong_shape(whole: Any, first: Any, second: Any) -> None:
    second.input[0].dims[:] = [5]


def small_batch(whole: Any, first: Any, second: Any) -> None:
    second.max_batch_size = 4


def unused(whole: Any, first: Any, second: Any) -> None:
    first.output.add(name="z", data_type=pb.TYPE_FP32, dims=[1])
    whole.ensemble_scheduling.step[0].output_map["z"] = "z"


def produced_twice(whole: Any, first: Any, second: Any) -> None:
    whole.ensemble_scheduling.step[1].output_map["y"] = "h"


def unmapped(whole: Any, first: Any, second: Any) -> None:
    second.input.add(name="k", data_type=pb.TYPE_FP32, dims=[1])


def missing_output(whole: Any, first: Any, second: Any) -> None:
    whole.output.add(name="w", data_type=pb.TYPE_FP32, dims=[1])


def instances(whole: Any, first: Any, second: Any) -> None:
    whole.instance_group.add(count=1)


def missing_input_map(whole: Any, first: Any, second: Any) -> None:
    whole.ensemble_scheduling.step[0].input_map.clear()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            wrong_type,
            "inconsistent data type: TYPE_FP32 is inferred from model m.0 while TYPE_FP16",
        ),
        (
            wrong_shape,
            r"inconsistent shape: \[4\] is inferred from model m.0 while \[5\]",
        ),
        (
            small_batch,
            "allows maximum batch size 8, but it contains model m.1 which only allows .* 4",
        ),
        (unused, "ensemble tensor 'z' is unused"),
        (produced_twice, "can appear in an output map only once"),
        (unmapped, "does not map its input 'k'"),
        (missing_output, "ensemble output 'w' is not made"),
        (instances, "instance_group must not be set"),
        (missing_input_map, "must specify 'input_map'"),
    ],
)
def test_invalid_ensemble_is_refused(
    change: Callable[[Any, Any, Any], None], words: str
) -> None:
    with pytest.raises(PublishError, match=words):
        check(change)
