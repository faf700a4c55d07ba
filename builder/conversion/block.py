"""Walking a block: every node is evaluated, converted, or reported, in order."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from builder.conversion import lists, packing, precision, refusals
from builder.conversion.arguments import bind
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.deciding import DECIDES, FIX, DecidingInputs
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_tensor
from builder.conversion.naming import LayerNames
from builder.conversion.registry import CONVERTERS, EVALUATORS, Converter, key_of
from builder.conversion.sizes import propagate
from builder.errors import ConversionError, UnsupportedOperator, UnsupportedOperators
from builder.lowering.places import where

NO_SCHEMA = "(no schema)"
MOST_METADATA = 4000
"""Characters: TensorRT drops metadata of 4096 or more without a word, and a trace's stack can be as
long.
"""
MISSING = object()
"""The value of an output whose node could not be converted; whoever reads it is skipped."""


FALLBACK_FIX = (
    "rewrite the line for one whole engine; `trt-build repo` runs it in torch unless"
    " fallback.require_full"
)
"""What a user can do about an operator that TensorRT does not run."""


class BlockConverter:
    """Converts blocks into one context's network; collects every operator that cannot be, instead
    of stopping.
    """

    def __init__(
        self,
        ctx: ConversionContext,
        policy: precision.Policy = precision.Policy(),  # noqa: B008
        names: LayerNames | None = None,
    ) -> None:
        self.ctx, self.policy = ctx, policy
        self.names = names or LayerNames()
        self.unsupported: list[UnsupportedOperator] = []
        self.deciding = DecidingInputs()
        ctx.blocks = self

    def convert(self, block: Any) -> list[Any]:
        """The values of the block's outputs (a torch._C.Graph or Block); MISSING where a node
        failed.
        """
        for node in block.nodes():
            self.node(node)
        return [self.value(v) for v in block.outputs()]

    def value(self, value: Any) -> Any:
        """What is known of a graph value."""
        return self.ctx.values[value.debugName()]

    def node(self, node: Any) -> None:
        """Evaluate or convert one node and record its outputs."""
        values = [self.value(v) for v in node.inputs()]
        if any(_missing(v) for v in values):
            self._skip(node)
            return
        first = self.ctx.net.num_layers
        self.ctx.node = node
        try:
            results = self._results(node, values)
            if self.ctx.net.num_layers > first and self.deciding.are_new(self.ctx.net):
                self._lose_numbers(node)
                raise Unconvertible(DECIDES, FIX)
        except Unconvertible as refusal:
            self.refuse(node, refusal.reason, refusal.fix)
            return
        except (ConversionError, UnsupportedOperators):
            raise
        except Exception as defect:
            raise self._defect(node, defect) from defect
        self.bind_outputs(node, results)
        self._finish(node, first)

    def _lose_numbers(self, node: Any) -> None:
        """What else reads the numbers that decided a size here would do so too, which TensorRT no
        longer tells.
        """
        for value in node.inputs():
            known = self.value(value)
            if any(
                isinstance(number, DynamicScalar)
                for number in (known if isinstance(known, list) else [known])
            ):
                self.ctx.values[value.debugName()] = MISSING

    def _results(self, node: Any, values: list[Any]) -> list[Any]:
        key = key_of_node(node)
        if packing.is_packed(values) and not self._takes_packed(key, values):
            return _listed(
                packing.answer(self.ctx, node, key, values, partial(self._results, node)), node
            )
        if lists.is_list(values) and key not in ("prim::If", "prim::Loop"):
            return _listed(lists.answer(self.ctx, node, key, values), node)
        if key in EVALUATORS and (
            key not in CONVERTERS or not _any_tensor(values) or _traced_scalars(values)
        ):
            return _listed(EVALUATORS[key](self.ctx, node, *values), node)
        if node.schema() == NO_SCHEMA:
            raise Unconvertible(f"{node.kind()} is not a registered operator")
        folds = key not in CONVERTERS or CONVERTERS[key].folds
        if folds and _all_static(values) and not node.isNondeterministic():
            return _listed(fold(key, values), node)
        if key not in CONVERTERS:
            raise Unconvertible(refusals.reason(key), FALLBACK_FIX)
        return self._converted(CONVERTERS[key], node, values)

    def _takes_packed(self, key: str, values: list[Any]) -> bool:
        """Whether the node is one that knows what to do with a part of a packed sequence wherever
        it reads one.
        """
        if key not in CONVERTERS:
            return key in packing.HOLDERS
        converter = CONVERTERS[key]
        names = (
            name
            for (name, _), v in zip(converter.arguments, values, strict=False)
            if packing.is_packed(v)
        )
        return all(name in converter.packed for name in names)

    def _converted(self, converter: Converter, node: Any, values: list[Any]) -> list[Any]:
        bound = bind(self.ctx, converter, values)
        # no other policy asks for it
        name = self.names.peek(node) if self.policy.half is not None else ""
        dtype = self.policy.dtype(converter.operator, name, bound)
        if dtype is not None:
            precision.apply(self.ctx, bound, dtype)
        for predicate in converter.when:
            reason = predicate(self.ctx, bound)
            if reason:
                raise Unconvertible(reason, FALLBACK_FIX)
        first = self.ctx.net.num_layers
        chosen = self.policy.leaves_to_tensorrt(converter.operator, name)
        beyond = chosen and precision.overflows(self.ctx, converter.operator, bound, torch.float16)
        results = _listed(converter.build(self.ctx, node, *vars(bound).values()), node)
        if beyond or self.policy.constrains(converter.operator, name):
            precision.constrain(self.ctx.net, first, () if beyond else self.policy.spared(name))
        return results

    def bind_outputs(self, node: Any, results: list[Any]) -> None:
        """Record the results as the values of the node's outputs, and name the tensors after
        them.
        """
        for value, result in zip(node.outputs(), results, strict=True):
            name = value.debugName()
            self.ctx.values[name] = result
            if is_tensor(result) and result.name.startswith("(Unnamed"):
                self.ctx.rename(result, f"%{name}")

    def refuse(self, node: Any, reason: str, fix: str | None) -> None:
        """Note that the node cannot be converted; its outputs are MISSING."""
        schema = node.schema() if node.schema() != NO_SCHEMA else node.kind()
        fix = fix or FALLBACK_FIX
        self.unsupported.append(
            UnsupportedOperator(schema, _output_name(node), where(node), reason, fix)
        )
        self._skip_outputs(node)

    def _skip(self, node: Any) -> None:
        """An input is missing: nothing can be said but whether the operator is known at all."""
        key = key_of_node(node)
        if key not in CONVERTERS and key not in EVALUATORS:
            self.refuse(node, refusals.reason(key), None)
        else:
            self._skip_outputs(node)

    def _skip_outputs(self, node: Any) -> None:
        for value in node.outputs():
            self.ctx.values[value.debugName()] = MISSING

    def _finish(self, node: Any, first: int) -> None:
        """Name the layers that this node brought, give them its source line, and follow the sizes
        through them.
        """
        last = self.ctx.net.num_layers
        if first == last:
            return
        stem, source = self.names.stem(node), node.sourceRange()
        for index in range(first, last):
            layer = self.ctx.net.get_layer(index)
            if not layer.name.startswith("(Unnamed"):
                continue  # the node's blocks named their own
            propagate(self.ctx, layer)
            self._name(layer, stem if index == first else f"{stem}.{index - first}")
            if hasattr(layer, "metadata"):
                layer.metadata = source[:MOST_METADATA]

    def _name(self, layer: Any, name: str) -> None:
        """Name a layer, and its tensors that have no name yet: TensorRT would rename those with the
        layer.
        """
        for index in range(layer.num_outputs):
            output = layer.get_output(index)
            if output.name.startswith("(Unnamed"):
                self.ctx.rename(output, f"{name}:{index}")
        layer.name = name

    def _defect(self, node: Any, defect: Exception) -> ConversionError:
        words = "; ".join(self.ctx.messages[-3:])
        return ConversionError(
            f"the converter of {node.kind()} failed: {type(defect).__name__}: {defect}"
            + (f" (TensorRT says: {words})" if words else ""),
            where=f"%{_output_name(node)} at {where(node)}",
            fix=(
                "this is a defect of trt-build: please report it with the model's graph (`trt-build"
                " lower`)"
            ),
        )


def key_of_node(node: Any) -> str:
    """The registry's key: the schema's name and overload, or the kind of a node that has no
    schema.
    """
    schema = node.schema()
    return node.kind() if schema == NO_SCHEMA else key_of(schema)


def fold(key: str, values: list[Any]) -> Any:
    """The operator's result on static values, computed by torch itself."""
    namespace, _, rest = key.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    with torch.no_grad():
        operator = getattr(packet, overload or "default")
        keyword_only = [a.name for a in operator._schema.arguments if a.kwarg_only]
        split = len(values) - len(keyword_only)
        return operator(*values[:split], **dict(zip(keyword_only, values[split:], strict=True)))


def _listed(result: Any, node: Any) -> list[Any]:
    """The results, one for each output of the node: a node of one output has the value itself, a
    layer its output.
    """
    if node.outputsSize() == 1:
        return [_output(result)]
    return [_output(r) for r in result] if node.outputsSize() else []


def _output(result: Any) -> Any:
    return result.get_output(0) if hasattr(result, "get_output") else result


def _missing(value: Any) -> bool:
    return value is MISSING or (isinstance(value, list) and any(_missing(v) for v in value))


def _all_static(values: list[Any]) -> bool:
    return all(_static(v) for v in values)


def _static(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_static(v) for v in value)
    return not (isinstance(value, DynamicScalar | packing.Packed) or is_tensor(value))


def _any_tensor(values: list[Any]) -> bool:
    return any(is_tensor(v) or isinstance(v, torch.Tensor) for v in values)


def _traced_scalars(values: list[Any]) -> bool:
    """Whether every tensor is 0-d and known as a number, and some only to the engine: arithmetic on
    traced sizes.
    """
    tensors = [v for v in values if is_tensor(v) or isinstance(v, torch.Tensor)]
    zero_dim = all(isinstance(v, torch.Tensor) and v.dim() == 0 for v in tensors)
    return zero_dim and any(isinstance(v, DynamicScalar) for v in values)


def _output_name(node: Any) -> str:
    return str(node.outputsAt(0).debugName() if node.outputsSize() else node.kind())
