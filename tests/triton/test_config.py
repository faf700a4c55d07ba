"""The generated ModelConfig: the batch in Triton, stated fields, and refusals before Triton would
refuse.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import PublishError, UsageError
from builder.manifest.spec import Batching
from builder.triton import config, config_text, ensemble, graphs, lost_batches, section
from builder.triton.config import parse_config
from tests.triton.artifacts import (
    TENSORRT,
    Affine,
    Centered,
    artifact,
    pair,
    scorer,
    tensor,
)

PLAN = {"plan": b"plan", "facts": TENSORRT}


def test_shared_dynamic_first_axis_is_the_batch_axis() -> None:
    message = config(scorer())
    assert message.max_batch_size == 8
    assert [list(t.dims) for t in message.input] == [[3], [1]]
    assert message.HasField("dynamic_batching")


def test_batch_only_tensor_is_reshaped_to_one_column() -> None:
    message = config(scorer())
    ids, best = message.input[1], message.output[1]
    assert ids.HasField("reshape") and list(ids.reshape.shape) == []
    assert list(best.dims) == [1] and best.HasField("reshape")


def test_config_text_round_trips() -> None:
    message = config(scorer())
    assert parse_config(config_text(message), "text") == message


def test_max_batch_size_zero_is_written_without_a_batch() -> None:
    model = artifact(Affine(), (tensor("x", "float32", 2, 3),), ("y",), dynamic=())
    message = config(model)
    text = config_text(message)
    assert "\nmax_batch_size: 0\n" in text and "dynamic_batching" not in text
    assert list(message.input[0].dims) == [2, 3]
    assert parse_config(text, "text") == message


def test_model_with_dependent_rows_is_not_batched() -> None:
    model = artifact(Centered(), (tensor("x", "float32", "batch", 3),), ("y",))
    assert config(model).max_batch_size == 0


def test_output_with_another_batch_size_disables_batching() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x])

    assert (
        config(
            artifact(Twice(), (tensor("x", "float32", "batch", 3),), ("y",))
        ).max_batch_size
        == 0
    )


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(1, 1, 1), (2, 4, 8), (9, 16, 32)], 32),
        ([(1, 1, 2), (4, 4, 8)], 2),
        ([(2, 4, 8)], 0),
    ],
)
def test_max_batch_size_is_covered_by_profiles_from_one(
    spans: list[tuple[int, int, int]], expected: int
) -> None:
    profiles = [{"batch": span} for span in spans]
    model = artifact(
        Affine(), (tensor("x", "float32", "batch", 3),), ("y",), profiles=profiles
    )
    assert config(model).max_batch_size == expected


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([((1, 4, 8), (1, 8, 16)), ((1, 1, 2), (17, 32, 64))], 2),
        ([((1, 1, 1), (1, 8, 16)), ((1, 4, 8), (1, 16, 64))], 8),
    ],
    ids=["every length", "wider lengths cover narrower ones"],
)
def test_max_batch_size_is_covered_for_every_length(
    spans: list[tuple[tuple[int, int, int], ...]], expected: int
) -> None:
    spec = tensor("x", "float32", "batch", "length", length=(1, 8, 64))
    profiles = [{"batch": batch, "length": length} for batch, length in spans]
    model = artifact(Affine(), (spec,), ("y",), profiles=profiles, dynamic=(0, 1))
    assert config(model).max_batch_size == expected


BY_LENGTH = ((1, 8, 16), (17, 32, 64))


@pytest.mark.parametrize(
    ("batches", "size", "words"),
    [
        (
            [(1, 4, 32), (1, 2, 8)],
            8,
            ["p0 (batch 1 to 32) and p1 (batch 1 to 8)", "up to 8 only", "1 to 32"],
        ),
        (
            [(1, 2, 8), (1, 4, 16), (1, 4, 32)],
            8,
            ["p0 (batch 1 to 8) and p2 (batch 1 to 32)", "up to 8 only"],
        ),
        (
            [(1, 2, 8), (9, 16, 32)],
            0,
            ["p0 (batch 1 to 8) and p1 (batch 9 to 32)", "does not batch the model"],
        ),
        (
            [(2, 4, 32), (1, 2, 8)],
            0,
            ["p0 (batch 2 to 32) and p1 (batch 1 to 8)", "does not batch the model"],
        ),
        ([(1, 2, 8), (1, 4, 8)], 8, []),
        ([(2, 2, 8), (2, 4, 8)], 0, []),
    ],
)
def test_lost_batches_of_profiles_are_reported(
    batches: list[tuple[int, int, int]], size: int, words: list[str]
) -> None:
    lengths = [*BY_LENGTH, (65, 80, 96)][: len(batches)]
    spec = tensor("x", "float32", "batch", "length", length=(1, 8, 96))
    profiles = [
        {"batch": batch, "length": length}
        for batch, length in zip(batches, lengths, strict=True)
    ]
    model = artifact(Affine(), (spec,), ("y",), profiles=profiles, dynamic=(0, 1))
    assert config(model).max_batch_size == size
    lost = lost_batches(model)
    assert len(lost) == bool(words)
    assert all(word in lost[0] for word in words)
    chosen = replace(model, spec=replace(model.spec, batching=Batching(enabled=False)))
    assert (
        lost_batches(chosen)
        == lost_batches(replace(model, row_dependence="its rows depend on each other"))
        == ()
    )


def test_complementary_profiles_lose_no_batches() -> None:
    spans = [(1, 1, 1), (2, 4, 8), (9, 16, 32)]
    profiles = [{"batch": span} for span in spans]
    assert not lost_batches(
        artifact(
            Affine(), (tensor("x", "float32", "batch", 3),), ("y",), profiles=profiles
        )
    )


def test_required_batching_of_unbatchable_model_is_usage_error() -> None:
    model = artifact(
        Affine(),
        (tensor("x", "float32", 2, 3),),
        ("y",),
        dynamic=(),
        batching=Batching(enabled=True),
    )
    with pytest.raises(UsageError, match="first axis"):
        config(model)


def test_disabled_batching_keeps_all_dims() -> None:
    message = config(scorer(batching=Batching(enabled=False)))
    assert message.max_batch_size == 0
    assert [list(t.dims) for t in message.input] == [[-1, 3], [-1]]


def test_static_batch_sizes_are_the_default_preferred_sizes() -> None:
    own = scorer(batch_sizes=(1, 4))
    assert list(config(own).dynamic_batching.preferred_batch_size) == [4]
    other = scorer(batch_sizes=(1, 4), batching=Batching(preferred=(2,)))
    assert list(config(other).dynamic_batching.preferred_batch_size) == [2]


def test_preferred_size_beyond_profiles_is_usage_error() -> None:
    with pytest.raises(UsageError, match="16"):
        config(scorer(batching=Batching(preferred=(4, 16))))


def test_batching_options_are_written_to_config() -> None:
    batcher = config(
        scorer(batching=Batching(max_queue_delay_us=500, preferred=(4,)))
    ).dynamic_batching
    assert (
        list(batcher.preferred_batch_size),
        batcher.max_queue_delay_microseconds,
    ) == ([4], 500)


def test_auto_serves_plan_only_if_triton_supports_its_flavor() -> None:
    assert config(scorer(**PLAN)).platform == "tensorrt_plan"
    assert config(scorer(plan=b"plan")).backend == "python"


def test_gpu_instances_of_plan_list_every_profile() -> None:
    profiles = [{"batch": (1, 1, 1)}, {"batch": (2, 4, 8)}]
    (group,) = config(scorer(profiles=profiles, instances=2, **PLAN)).instance_group
    assert (group.kind, group.count, list(group.profile)) == (1, 2, ["0", "1"])


def test_cuda_graphs_are_configured_for_named_batch_sizes() -> None:
    """One spec for each size and profile that has it, with all inputs without their batch, and each
    warmed up.
    """
    spec = tensor("x", "float32", "batch", "length", length=(1, 8, 64))
    profiles = [
        {"batch": (1, 2, 4), "length": (1, 8, 16)},
        {"batch": (1, 4, 8), "length": (1, 16, 64)},
    ]
    model = artifact(
        Affine(),
        (spec,),
        ("y",),
        profiles=profiles,
        dynamic=(0, 1),
        batching=Batching(graphs=(8, 2, 2)),
        **PLAN,
    )
    message = config(model)
    assert message.optimization.cuda.graphs
    specs = [
        (s.batch_size, list(s.input["x"].dim))
        for s in message.optimization.cuda.graph_spec
    ]
    assert specs == [(2, [8]), (2, [16]), (8, [16])]
    warmed = {sample.name: sample.batch_size for sample in message.model_warmup}
    assert warmed == {
        "p0-opt": 2,
        "p1-opt": 4,
        "p1-opt-graph-2": 2,
        "p1-opt-graph-8": 8,
    }
    assert not config(replace(model, serve_as="python")).HasField("optimization")
    assert not config(scorer(**PLAN)).HasField("optimization")


def test_cuda_graph_beyond_max_batch_size_is_usage_error() -> None:
    with pytest.raises(
        UsageError,
        match=r"batching.graphs \[9\] exceeds the model's maximum batch size, 8",
    ):
        config(scorer(batching=Batching(graphs=(1, 9)), **PLAN))
    single = artifact(
        Affine(),
        (tensor("x", "float32", 2, 3),),
        ("y",),
        dynamic=(),
        batching=Batching(graphs=(1,)),
        **PLAN,
    )
    with pytest.raises(UsageError, match=r"exceeds the model's maximum batch size, 0"):
        config(single)


def test_cuda_graphs_are_refused_for_old_tensorrt_else_warned() -> None:
    old = scorer(
        batching=Batching(graphs=(1,)),
        plan=b"plan",
        facts={**TENSORRT, "tensorrt": "8.6.1"},
    )
    with pytest.raises(
        UsageError, match=r"return wrong outputs with TensorRT 8\.6\.1"
    ) as refused:
        config(old)
    assert "--serve-as python" in str(refused.value.fix)
    assert graphs.warnings(replace(old, serve_as="python"), "python") == ()
    newer = scorer(batching=Batching(graphs=(1,)), **PLAN)
    assert config(newer).optimization.cuda.graphs
    (warning,) = graphs.warnings(newer, "tensorrt_plan")
    assert "trt-build verify" in warning and TENSORRT["tensorrt"] in warning
    assert graphs.warnings(scorer(**PLAN), "tensorrt_plan") == ()


def test_python_runtime_instances_are_auto_without_profiles() -> None:
    profiles = [{"batch": (1, 1, 1)}, {"batch": (2, 4, 8)}]
    (group,) = config(scorer(profiles=profiles)).instance_group
    assert (group.kind, list(group.profile)) == (0, [])


def test_missing_plan_is_refused() -> None:
    with pytest.raises(PublishError, match="no plan"):
        config(scorer(serve_as="tensorrt_plan"))


def test_plan_dtypes_override_module_dtypes() -> None:
    facts = {
        **TENSORRT,
        "inputs": [{"name": "ids", "dtype": "INT32"}],
        "outputs": [{"name": "best", "dtype": "INT32"}],
    }
    message = config(scorer(plan=b"plan", facts=facts))
    assert [t.data_type for t in (message.input[1], message.output[1])] == [8, 8]


def test_unsupported_dtype_is_refused_for_plan_only() -> None:
    spec = (tensor("x", "float64", "batch", 3),)
    with pytest.raises(PublishError, match="float64"):
        config(artifact(Affine(), spec, ("y",), **PLAN))
    assert config(artifact(Affine(), spec, ("y",))).input[0].data_type == 12


def test_scalar_tensor_is_refused_for_plan_only() -> None:
    spec = (tensor("x", "float32"),)
    assert list(config(artifact(Affine(), spec, ("y",), dynamic=())).input[0].dims) == [
        1
    ]
    with pytest.raises(PublishError, match="no axes"):
        config(artifact(Affine(), spec, ("y",), dynamic=(), **PLAN))


@pytest.mark.parametrize("name", ["a b", "x/y", "ä"])
def test_invalid_tensor_name_is_refused(name: str) -> None:
    with pytest.raises(PublishError, match="tensor name"):
        config(artifact(Affine(), (tensor(name, "float32", "batch", 3),), ("y",)))


def test_all_violations_are_reported_together() -> None:
    model = artifact(
        Affine(), (tensor("a b", "float32", "batch", 3),), ("a b",), name="../up"
    )
    with pytest.raises(PublishError) as caught:
        config(model)
    assert "folder name" in str(caught.value) and "two tensors" in str(caught.value)


def test_config_without_provenance_hashes_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = scorer(**PLAN)
    monkeypatch.setattr(hashlib, "sha256", None)  # takes seconds for large files
    message = config(model, provenance=False)
    assert "trt_build.plan_sha256" not in message.parameters


def test_provenance_is_written_to_parameters() -> None:
    parameters = config(scorer(**PLAN)).parameters
    assert parameters["trt_build.tensorrt_version"].string_value == "10.13.3.9"
    assert len(parameters["trt_build.plan_sha256"].string_value) == 64


def test_triton_section_is_merged_and_overrides_instances() -> None:
    section = {
        "instance_group": [{"kind": "KIND_CPU", "count": 3}],
        "version_policy": {"all": {}},
        "metric_tags": {"t": "v"},
    }
    message = config(scorer(triton=section))
    assert [(g.kind, g.count) for g in message.instance_group] == [(2, 3)]
    assert message.version_policy.HasField("all") and dict(message.metric_tags) == {
        "t": "v"
    }


FIELDS: dict[str, Any] = {
    "version_policy": {"specific": {"versions": ["1"]}},
    "response_cache": {"enable": True},
    "metric_tags": {"team": "search"},
    "model_operations": {"op_library_filename": ["ops.so"]},
    "model_metrics": {
        "metric_control": [
            {
                "metric_identifier": {
                    "family": "nv_inference_first_response_histogram_ms"
                },
                "histogram_options": {"buckets": [0.5, 1.0]},
            }
        ]
    },
    "parameters": {
        "execution_context_allocation_strategy": {"string_value": "ON_PROFILE_CHANGE"}
    },
    "optimization": {
        "priority": "PRIORITY_MAX",
        "input_pinned_memory": {"enable": False},
        "output_pinned_memory": {"enable": False},
        "gather_kernel_buffer_threshold": 4,
        "eager_batching": True,
        "graph": {"level": 1},
        "execution_accelerators": {"gpu_execution_accelerator": [{"name": "tensorrt"}]},
    },
    "dynamic_batching": {
        "priority_levels": "3",
        "default_priority_level": "2",
        "default_queue_policy": {
            "timeout_action": "DELAY",
            "default_timeout_microseconds": "1000",
            "allow_timeout_override": True,
            "max_queue_size": 4,
        },
        "priority_queue_policy": {"1": {"max_queue_size": 8}},
    },
    "instance_group": [
        {
            "name": "cpus",
            "kind": "KIND_CPU",
            "count": 2,
            "host_policy": "numa0",
            "passive": False,
            "rate_limiter": {
                "resources": [{"name": "R1", "global": True, "count": 3}],
                "priority": 2,
            },
        },
        {"kind": "KIND_GPU", "count": 1, "gpus": [0, 1]},
    ],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [*FIELDS.items(), ("dynamic_batching", {"preserve_ordering": True})],
)
def test_each_field_of_the_triton_section_round_trips(field: str, value: Any) -> None:
    if field not in pb.ModelConfig.DESCRIPTOR.fields_by_name:
        pytest.skip(f"tritonclient's ModelConfig has no {field}")
    text = config_text(config(scorer(triton={field: value})))
    message = parse_config(text, "config.pbtxt")
    wanted = json_format.ParseDict({field: value}, pb.ModelConfig())
    found = pb.ModelConfig()
    found.CopyFrom(message)
    if field == "parameters":
        (key,) = value
        assert found.parameters[key] == wanted.parameters[key]
        return
    for other, _ in message.ListFields():
        if other.name != field:
            found.ClearField(other.name)
    found.dynamic_batching.ClearField("max_queue_delay_microseconds")
    if field != "dynamic_batching":
        found.ClearField("dynamic_batching")
    assert found == wanted


@pytest.mark.parametrize("field", list(section.OWNED))
def test_generated_field_in_triton_section_is_refused(field: str) -> None:
    if field not in pb.ModelConfig.DESCRIPTOR.fields_by_name:
        pytest.skip(f"tritonclient's ModelConfig has no {field}")
    with pytest.raises(
        UsageError, match=(f"triton.{field} cannot be set in the manifest")
    ):
        config(scorer(triton={field: {}}))


LEVELS = {"priority_levels": 2, "default_priority_level": 1}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"max_batchsize": 4}, "has no such field"),
        ({"metric_tags": 4}, "triton.metric_tags"),
        ({"instance_group": [{"kind": "KIND_TPU"}]}, "KIND_TPU"),
        (
            {"instance_group": [{"cuont": 1}]},
            "triton.instance_group[0] has no field 'cuont'\n"
            "  where: /nowhere/model.pt\n  fix:   did you mean 'count'?",
        ),
        ({"dynamic_batching": {"preferred_batch_size": [4]}}, "batching.preferred"),
        ({"optimization": {"cuda": {"graphs": True}}}, "batching.graphs"),
        ({"parameters": {"trt_build.version": {"string_value": "0"}}}, "provenance"),
        ({"version_policy": {"specific": {"versions": [3]}}}, "version 1"),
        (
            {"dynamic_batching": {"default_queue_policy": {"timeout_action": 7}}},
            "default_queue_policy.timeout_action: 7 is none of DELAY, REJECT",
        ),
        ({"instance_group": [{"kind": 9}]}, "kind: 9 is none of KIND_AUTO"),
        ({"dynamic_batching": {"priority_levels": 2}}, "default_priority_level is 0"),
        (
            {"dynamic_batching": {"priority_levels": 2, "default_priority_level": 3}},
            "must be 1 to 2 (priority_levels)",
        ),
        (
            {"dynamic_batching": {**LEVELS, "priority_queue_policy": {3: {}, 0: {}}}},
            "priority_queue_policy has [0, 3]",
        ),
        ({"dynamic_batching": {**LEVELS, "preserve_ordering": True}}, "is at most 1"),
        (
            {
                "dynamic_batching": {
                    "preserve_ordering": True,
                    "default_queue_policy": {"timeout_action": "DELAY"},
                }
            },
            "timeout_action is REJECT",
        ),
        (
            {
                "instance_group": [
                    {
                        "rate_limiter": {
                            "resources": [{"name": "R", "global": True, "count": 1}]
                        }
                    },
                    {"rate_limiter": {"resources": [{"name": "R", "count": 1}]}},
                ]
            },
            "the resource 'R' is global in one group",
        ),
        ({"instance_group": [{"passive": True}]}, "all instances are passive"),
        (
            {"metric_tags": {"cost-center": "a"}},
            "'cost-center' is not a valid name of a label",
        ),
        ({"metric_tags": {"_team": "a"}}, "'_team' is not a valid name of a label"),
        ({"metric_tags": {"équipe": "a"}}, "'équipe' is not a valid name of a label"),
    ],
)
def test_invalid_triton_section_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        config(scorer(triton=section))


def test_dynamic_batching_section_needs_a_batched_model() -> None:
    model = scorer(
        triton={"dynamic_batching": {"preserve_ordering": True}},
        batching=Batching(enabled=False),
    )
    with pytest.raises(UsageError, match="does not batch"):
        config(model)


def test_triton_section_is_split_between_ensemble_and_steps() -> None:
    section = {"response_cache": {"enable": True}, "instance_group": [{"count": 2}]}
    whole = pair(1, triton=section)
    steps = {step.spec.name: config(step) for step in whole.steps}
    message = ensemble.ensemble_config(whole, steps)
    assert message.response_cache.enable and not message.instance_group
    for step in steps.values():
        assert not step.HasField("response_cache") and step.instance_group[0].count == 2


def test_warmup_uses_golden_inputs_and_optimum_batch_of_plan() -> None:
    (sample,) = config(scorer(**PLAN)).model_warmup
    assert sample.batch_size == 4 and list(sample.inputs["ids"].dims) == [1]
    assert config(scorer()).model_warmup[0].batch_size == 1


def test_warmup_batch_is_limited_to_max_batch_size() -> None:
    """Long inputs in small batches: Triton may batch 8, although the optimum batch of short inputs
    is 16.
    """
    spec = tensor("x", "float32", "batch", "length", length=(1, 8, 64))
    profiles = [
        {"batch": (1, 16, 32), "length": (1, 8, 16)},
        {"batch": (1, 4, 8), "length": (17, 32, 64)},
    ]
    message = config(
        artifact(Affine(), (spec,), ("y",), profiles=profiles, dynamic=(0, 1), **PLAN)
    )
    assert message.max_batch_size == 8
    assert [sample.batch_size for sample in message.model_warmup] == [8, 4]


def test_max_batch_size_beyond_profiles_is_refused() -> None:
    from builder.triton.check import validate

    model = scorer()
    message = config(model)
    message.max_batch_size = 9
    with pytest.raises(PublishError, match="beyond"):
        validate(message, model)
    validate(config(model), replace(model))
