"""Evaluate or convert one node: by its evaluator, by torch on constants, or by its converter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion import extension, lists, packing, precision, refusals
from builder.conversion.arguments import bind
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_any_tensor, is_tensor
from builder.conversion.registry import (
    CONVERTERS,
    EVALUATORS,
    NO_SCHEMA,
    WITH_NODE,
    Converter,
    key_of_node,
)
from builder.conversion.sizes import propagate_sizes
from builder.engine import ITensor
from builder.graph_types import Node

FALLBACK_FIX = (
    "rewrite the line to build one engine; `trt-build repo` runs it in torch unless "
    "fallback.require_full"
)
"""The fix for an operator that TensorRT does not support."""


class Operators:
    """The common base of backends (see walker.Backend): nodes are evaluated and converted by the
    registries, in the precisions of `policy`.
    """

    def __init__(self, ctx: ConversionContext, policy: precision.Policy) -> None:
        self.ctx = ctx
        self.policy = policy

    def evaluate(self, node: Node, values: list[Any]) -> list[Any] | None:
        """See `evaluate` of this module."""
        return evaluate(self.ctx, node, values)

    def convert(self, node: Node, values: list[Any]) -> list[Any]:
        """See `convert` of this module."""
        # without half precision no policy reads the name
        name = ""
        if self.policy.half is not None:
            name = self.layer_name(node)
        return convert(self.ctx, node, values, self.policy, name)

    def layer_name(self, node: Node) -> str:
        """The name of the node's first layer."""
        return ""

    def follow_sizes(self, first: int) -> None:
        """Follow the sizes through the layers from index `first` on."""
        for index in range(first, self.ctx.net.num_layers):
            propagate_sizes(self.ctx, self.ctx.net.get_layer(index))


def evaluate(ctx: ConversionContext, node: Node, values: list[Any]) -> list[Any] | None:
    """The node's outputs from an evaluator or from torch; None if a converter is required. Raises
    Unconvertible.
    """
    key = key_of_node(node)
    if packing.is_packed(values) and not _takes_packed(key, values):
        return None
    if lists.is_list(values) and key not in ("prim::If", "prim::Loop"):
        return _listed(lists.result(ctx, node, key, values), node)
    if key in EVALUATORS and (
        key not in CONVERTERS or not _any_tensor(values) or _traced_scalars(values)
    ):
        first = (ctx, node) if key in WITH_NODE else (ctx,)
        results = EVALUATORS[key](*first, *values)
        if node.outputsSize() > 1:
            extension.check_results(results, node, EVALUATORS[key])
        return _listed(results, node)
    if node.schema() == NO_SCHEMA:
        raise Unconvertible(f"{node.kind()} is not a registered operator")
    folds = key not in CONVERTERS or CONVERTERS[key].folds
    if (
        folds
        and all(_static(value) for value in values)
        and not node.isNondeterministic()
    ):
        return _listed(fold_static(key, values), node)
    return None


def convert(
    ctx: ConversionContext,
    node: Node,
    values: list[Any],
    policy: precision.Policy,
    name: str = "",
) -> list[Any]:
    """The node's outputs from its converter, in the precisions of `policy`. `name` is the name of
    its first layer. Raises Unconvertible.
    """
    key = key_of_node(node)
    if packing.is_packed(values) and not _takes_packed(key, values):

        def by_row(values: list[Any]) -> list[ITensor]:
            results = evaluate(ctx, node, values)
            if results is None:
                return convert(ctx, node, values, policy, name)
            return results

        return _listed(packing.result(ctx, node, key, values, by_row), node)
    if key not in CONVERTERS:
        raise Unconvertible(refusals.reason(key), FALLBACK_FIX)
    return _converted(ctx, CONVERTERS[key], node, values, policy, name)


def _converted(
    ctx: ConversionContext,
    converter: Converter,
    node: Node,
    values: list[Any],
    policy: precision.Policy,
    name: str,
) -> list[Any]:
    if converter.is_users:
        extension.check_node(converter.schema, node, converter.build)
    bound = bind(ctx, converter, values)
    operator = converter.operator
    dtype = precision.computed(ctx, policy, operator, name, bound)
    chosen = policy.leaves_to_tensorrt(operator, name)
    joins_mask = chosen and precision.joins_mask(ctx, node, values, policy)
    is_half = dtype is not None and dtype == policy.half
    if is_half and precision.adds_masks(node, policy):
        dtype = torch.float32
    elif joins_mask or (policy.masks and is_half):
        bound = bind(ctx, converter, precision.limit_masks(ctx, node, values, policy))
    if dtype is not None:
        precision.apply(ctx, bound, dtype)
    _check_supported(ctx, converter, bound)
    first = ctx.net.num_layers
    is_beyond_half = chosen and (
        precision.overflows(ctx, operator, bound, torch.float16)
        or (precision.touches_mask(node, policy) and not joins_mask)
    )
    output = converter.signature.call(converter.build, ctx, node, vars(bound))
    extension.check_results(output, node, converter.build)
    results = _listed(output, node)
    if is_beyond_half or policy.constrains(operator, name):
        spared = () if is_beyond_half else policy.spared(name)
        precision.constrain(ctx.net, first, spared)
    return results


def _check_supported(
    ctx: ConversionContext, converter: Converter, bound: SimpleNamespace
) -> None:
    """Raise Unconvertible with the first reason against these arguments."""
    for predicate in converter.when:
        reason = predicate(ctx, bound)
        if reason:
            raise Unconvertible(reason, FALLBACK_FIX)


def fold_static(key: str, values: list[Any]) -> Any:
    """The operator's result on static values, computed by torch itself."""
    namespace, _, qualified = key.partition("::")
    name, _, overload = qualified.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    with torch.no_grad():
        operator = getattr(packet, overload or "default")
        keyword_only = [
            argument.name
            for argument in operator._schema.arguments
            if argument.kwarg_only
        ]
        split = len(values) - len(keyword_only)
        return operator(
            *values[:split], **dict(zip(keyword_only, values[split:], strict=True))
        )


def _takes_packed(key: str, values: list[Any]) -> bool:
    """Whether the operator takes a part of a packed sequence in every argument that is one."""
    if key not in CONVERTERS:
        return key in packing.HOLDERS
    converter = CONVERTERS[key]
    arguments = zip(converter.arguments, values, strict=False)
    return all(
        name in converter.packed
        for (name, _), value in arguments
        if packing.is_packed(value)
    )


def _listed(result: Any, node: Node) -> list[Any]:
    """The results as a list, one for each output of the node."""
    if node.outputsSize() == 1:
        return [_output(result)]
    if node.outputsSize():
        return [_output(element) for element in result]
    return []


def _output(result: object) -> Any:
    if hasattr(result, "get_output"):
        return result.get_output(0)
    return result


def _static(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_static(element) for element in value)
    return not (isinstance(value, DynamicScalar | packing.Packed) or is_tensor(value))


def _any_tensor(values: list[Any]) -> bool:
    return any(map(is_any_tensor, values))


def _traced_scalars(values: list[Any]) -> bool:
    """Whether every tensor is a 0-d number and at least one is known only at run time: arithmetic
    on traced sizes.
    """
    tensors = [value for value in values if is_any_tensor(value)]
    zero_dim = all(
        isinstance(value, torch.Tensor) and value.dim() == 0 for value in tensors
    )
    return zero_dim and any(isinstance(value, DynamicScalar) for value in values)
