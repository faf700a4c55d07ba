"""The manifest's `triton:` section: ModelConfig fields that the generator does not set.

The section is parsed as protobuf JSON. Every field of ModelConfig can be written, by its name in
config.pbtxt. Fields that follow from the model are rejected by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2 as pb

from builder.errors import UsageError
from builder.manifest import ModelSpec, did_you_mean, manifest_location

OWNED: Mapping[str, str] = {
    "name": "the name of the model file sets it",
    "platform": "--serve-as sets it",
    "backend": "--serve-as sets it",
    "runtime": "the backend sets it",
    "input": "the model sets it, and `default` makes an input optional",
    "output": "the model sets it",
    "batch_input": "neither plans nor trt-build's runtime use it",
    "batch_output": "neither plans nor trt-build's runtime use it",
    "max_batch_size": "the profiles and `batching` set it",
    "default_model_filename": "the published plan or code sets it",
    "cc_model_filenames": "`trt-build merge` sets it",
    "ensemble_scheduling": "--layout ensemble sets it",
    "sequence_batching": "`state` and `sequences` set it",
    "model_warmup": "the goldens are the samples",
    "model_transaction_policy": "each request has one response",
}
"""Fields that the generator writes, and why the section may not."""
OWNED_WITHIN: Mapping[str, Mapping[str, str]] = {
    "dynamic_batching": {
        "preferred_batch_size": "`batching.preferred` writes it",
        "max_queue_delay_microseconds": "`batching.max_queue_delay_us` writes it",
    },
    "optimization": {"cuda": "`batching.graphs` writes it"},
}
WHOLE_ONLY = ("version_policy", "response_cache")
"""Fields of an ensemble that its steps do not have: a step has one version, and only complete
responses are cached.
"""
OF_ENSEMBLES = (*WHOLE_ONLY, "metric_tags", "parameters")
"""All fields that apply to the ensemble. The others apply to its steps."""
PREFIX = "trt_build."


def merge(message: pb.ModelConfig, spec: ModelSpec, *, step: bool = False) -> None:
    """Merge the section of a model, or of an ensemble's step, into its generated config.

    Raises UsageError with the manifest's line.
    """
    _merge(message, spec, lambda name: not (step and name in WHOLE_ONLY))


def merge_ensemble(message: pb.ModelConfig, spec: ModelSpec) -> None:
    """Merge the fields of the section that apply to the ensemble."""
    _merge(message, spec, lambda name: name in OF_ENSEMBLES)


_WORD = re.compile(r"\w+")
_UNKNOWN = re.compile(
    r'has no field named "(?P<name>[^"]*)" at "ModelConfig\.(?P<at>[^"]*)"'
    r".*?\[(?P<known>[^\]]*)\]\W*$",
    re.DOTALL,
)
"""protobuf's message for a field that a message does not have."""


def _explained(field: str, text: str) -> tuple[str, str | None]:
    """protobuf's message `text` about the field in our words, and the fix."""
    unknown = _UNKNOWN.search(text)
    if unknown is None:
        return f"triton.{field}: {text.rstrip('.')}", None
    known = [
        re.sub(r"(?=[A-Z])", "_", word).lower()
        for word in _WORD.findall(unknown["known"])
    ]
    problem = f"triton.{unknown['at']} has no field {unknown['name']!r}"
    return problem, did_you_mean(unknown["name"], known)


def parsed(spec: ModelSpec) -> Any:
    """Parse the section as a ModelConfig message.

    Raises UsageError for an unknown field, an invalid value, or a field that the generator writes.
    """
    part = pb.ModelConfig()
    for field, value in spec.triton.items():
        _check_field(spec, field, value)
        try:
            json_format.ParseDict({field: value}, part)
        except (json_format.ParseError, ValueError, TypeError) as error:
            problem, fix = _explained(field, str(error))
            where = manifest_location(spec, "triton", field)
            raise UsageError(problem, where=where, fix=fix) from error
        if unknown := next(_unknown_numbers(part), None):
            raise UsageError(
                f"triton.{unknown}", where=manifest_location(spec, "triton", field)
            )
    versions = list(part.version_policy.specific.versions)
    if part.version_policy.HasField("specific") and 1 not in versions:
        raise UsageError(
            f"triton.version_policy: {versions} does not include version 1, which is published",
            where=manifest_location(spec, "triton", "version_policy"),
        )
    for field, broken in refused(part).items():
        raise UsageError(
            "\n  ".join(f"triton.{field}: {text}" for text in broken),
            where=manifest_location(spec, "triton", field),
        )
    bad = [key for key in part.parameters if key.startswith(PREFIX)]
    if bad:
        raise _owned(spec, "provenance is written there", "parameters", bad[0])
    return part


def _unknown_numbers(message: Message) -> Iterator[str]:
    """Numbers of enumerations that have no name, which protobuf accepts."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in _messages(value):
                yield from (f"{field.name}.{text}" for text in _unknown_numbers(inner))
        elif (
            field.enum_type is not None
            and value not in field.enum_type.values_by_number
        ):
            names = ", ".join(sorted(field.enum_type.values_by_name))
            yield f"{field.name}: {value} is none of {names}"


def _messages(value: Any) -> list[Message]:
    """The messages of a field: one, a list, or a mapping."""
    if isinstance(value, Message):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value
    return [item for item in items if isinstance(item, Message)]


def refused(config: pb.ModelConfig) -> dict[str, list[str]]:
    """By field of a whole or partial config: the values that Triton refuses when it loads the
    model, or that crash it.
    """
    broken_by_field = {field: list(rule(config)) for field, rule in RULES.items()}
    return {field: broken for field, broken in broken_by_field.items() if broken}


def _batching(part: pb.ModelConfig) -> Iterator[str]:
    """The values that Triton refuses when it loads the model."""
    batching = part.dynamic_batching
    levels = batching.priority_levels
    level = batching.default_priority_level
    if levels and not 1 <= level <= levels:
        yield f"default_priority_level is {level}, and must be 1 to {levels} (priority_levels)"
    unknown = sorted(
        key for key in batching.priority_queue_policy if not 1 <= key <= levels
    )
    if levels and unknown:
        yield f"priority_queue_policy has {unknown}, and the levels are 1 to {levels}"
    if not batching.preserve_ordering:
        return
    if levels > 1:
        yield "with preserve_ordering, priority_levels is at most 1"
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(policy.timeout_action == pb.ModelQueuePolicy.DELAY for policy in policies):
        yield "with preserve_ordering, timeout_action is REJECT, not DELAY"


def _groups(part: pb.ModelConfig) -> Iterator[str]:
    """A resource is counted for the server or for each device, and not both. Requests need an
    instance that is not passive: without one Triton 24.10 crashes at the first request.
    """
    if part.instance_group and all(group.passive for group in part.instance_group):
        yield "all instances are passive, and Triton sends no requests to those"
    kinds: dict[str, set[bool]] = {}
    for group in part.instance_group:
        for resource in group.rate_limiter.resources:
            kinds.setdefault(resource.name, set()).add(getattr(resource, "global"))
    for name in sorted(name for name, scopes in kinds.items() if len(scopes) > 1):
        yield f"the resource {name!r} is global in one group, and not in another"


def _metric_tags(part: pb.ModelConfig) -> Iterator[str]:
    """Triton writes `_` before each name. A name that Prometheus refuses crashes the whole server
    (24.10).
    """
    for name in sorted(part.metric_tags):
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_]*", name):
            yield (
                f"{name!r} is not a valid name of a label in Prometheus: use letters, digits and _,"
                " without _ at the start"
            )


RULES: Mapping[str, Callable[[pb.ModelConfig], Iterator[str]]] = {
    "dynamic_batching": _batching,
    "instance_group": _groups,
    "metric_tags": _metric_tags,
}
"""Triton's own rules for fields, which it checks when it loads a model, or never."""


def _check_field(spec: ModelSpec, field: str, value: object) -> None:
    """Raise UsageError for a field that Triton does not have or trt-build writes."""
    known = pb.ModelConfig.DESCRIPTOR.fields_by_name
    if field not in known:
        raise UsageError(
            f"triton.{field}: Triton's ModelConfig has no such field",
            where=manifest_location(spec, "triton", field),
            fix=f"use one of {', '.join(sorted(set(known) - set(OWNED)))}",
        )
    if field in OWNED:
        raise _owned(spec, OWNED[field], field)
    for inner, why in OWNED_WITHIN.get(field, {}).items():
        if isinstance(value, Mapping) and inner in value:
            raise _owned(spec, why, field, inner)


def _merge(message: pb.ModelConfig, spec: ModelSpec, takes: Any) -> None:
    if not spec.triton:
        return
    part = parsed(spec)
    for field, _ in part.ListFields():
        if not takes(field.name):
            part.ClearField(field.name)
    if part.HasField("dynamic_batching") and not message.HasField("dynamic_batching"):
        raise UsageError(
            f"triton.dynamic_batching: Triton does not batch model {message.name!r}",
            where=manifest_location(spec, "triton", "dynamic_batching"),
            fix="remove it, or use batching: {enabled: true}",
        )
    if part.instance_group:
        _instances(message, part)
    message.MergeFrom(part)


def _instances(message: pb.ModelConfig, part: pb.ModelConfig) -> None:
    """Replace the generated instance group with the section's groups. Their unset fields have its
    values.
    """
    (usual,) = message.instance_group
    del message.instance_group[:]
    for group in part.instance_group:
        group.kind = group.kind or usual.kind
        group.count = group.count or usual.count
        if not group.profile:
            group.profile.extend(usual.profile)


def _owned(spec: ModelSpec, why: str, *route: str) -> UsageError:
    return UsageError(
        f"triton.{'.'.join(route)} cannot be set in the manifest: {why}",
        where=manifest_location(spec, "triton", *route),
        fix="remove it",
    )
