"""LoweredGraph: the result of lowering. It can be run and saved, and has a canonical text."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch

from builder import files
from builder.errors import EngineError
from builder.graph_types import Graph, Value
from builder.lowering import fp8, integer_division, ir
from builder.lowering.containers import Containers
from builder.lowering.emit import Emit
from builder.lowering.executor import keep_constants_tensors
from builder.lowering.lazy_attributes import CachedAttribute
from builder.lowering.paranoid import execute_graph, packed
from builder.lowering.passes.decompose import expand
from builder.lowering.passes.outputs import TOO_LONG, flag_names
from builder.lowering.trace import PassRecord
from builder.lowering.unread_writes import UnreadAttribute
from builder.names import served_name, unique_name


@dataclass(frozen=True)
class LoweredGraph:
    """One block of nodes over tensors.

    Weights are `prim::Constant` tensors. `inputs` are the names of forward's arguments, and
    `outputs` the names from the structure of its result, both in the graph's order.
    """

    graph: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    trace: tuple[PassRecord, ...] = field(default=(), compare=False)
    containers: Containers = field(default_factory=dict, compare=False, repr=False)
    """The paths of layers in lists, for the names of layers and segments."""
    as_written: str = field(default="", compare=False)
    """The reason why the graph still writes in place. Only torch can run such a graph, and only as
    a whole. Empty for all other graphs.
    """
    flags: Mapping[str, str] = field(default_factory=dict)
    """By the name of an output that may be None: its flag, an output that is true if it is a
    tensor. Flags follow all other outputs, and clients do not see them.
    """
    decided_at: Mapping[str, str] = field(default_factory=dict, compare=False)
    """By the name of an output that may be None: the source line that decides it."""
    too_long: Mapping[str, str] = field(default_factory=dict)
    """By the name of a list with a declared largest length, the output that is true where the list
    is longer. These outputs follow the flags.
    """
    groups: Mapping[str, str] = field(default_factory=dict)
    """By the name of an output in such a list, the group of those that have the same position in
    its elements (`boxes_*`): their dtypes and ranks are assumed to be the same.
    """
    unchecked: tuple[str, ...] = field(default=(), compare=False)
    """The source lines of conditions on the values of inputs for which forward raises, and the
    graph does not.
    """
    cached_attributes: tuple[CachedAttribute, ...] = field(default=(), compare=False)
    """The attributes in which the module keeps a value of sizes for later calls. The graph starts
    each call with their values in the file.
    """
    unread_attributes: tuple[UnreadAttribute, ...] = field(default=(), compare=False)
    """The attributes that the module writes, on which no output depends. The graph does not write
    them.
    """

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the module's outputs: all except the flags."""
        flags = len(self.flags) + len(self.too_long)
        return self.outputs[: len(self.outputs) - flags]

    def distinct(self, used: Collection[str]) -> tuple[str, ...]:
        """The names of the `results`, each different and one that Triton and TensorRT accept.

        A name that an input already has is changed: `x_out` for `x`. So are a name that no endpoint
        accepts (`served_name`), and one that an earlier result has: `my_key2`.
        """
        all_names = {*used, *self.outputs}
        names = list[str]()
        for result in self.results:
            name = served_name(result)
            if name in used:
                name = f"{name}_out"
            if name in names or (name != result and name in all_names):
                # without `_`: `my_key_2` is also the third element of a list
                name = unique_name(name, all_names, separator="")
            all_names.add(name)
            names.append(name)
        return tuple(names)

    def named(self, names: Sequence[str]) -> LoweredGraph:
        """The graph with other names of the `results`."""
        new = dict(zip(self.results, names, strict=True))
        flags = flag_names([new[name] for name in self.flags], names)
        too_long = flag_names(self.too_long, [*names, *flags.values()], TOO_LONG)
        return replace(
            self,
            outputs=(*names, *flags.values(), *too_long.values()),
            flags=flags,
            too_long=too_long,
            decided_at={new[name]: where for name, where in self.decided_at.items()},
            groups={new[name]: group for name, group in self.groups.items()},
        )

    def named_outputs(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors that the graph returned, by name, without flags and without outputs that are
        None. Raises EngineError if a list is longer than declared.
        """
        return present(
            dict(zip(self.outputs, tensors, strict=True)), self.flags, self.too_long
        )

    def run(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Execute the graph with torch: tensors in the order of `inputs`, outputs in the order of
        `outputs`.
        """
        with torch.no_grad():
            return tuple(execute_graph(self.graph, tensors))

    def values(
        self, *tensors: torch.Tensor, names: Collection[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Execute the graph and return the tensor that every top-level node computed, or those of
        `names`, by debug name, in program order.
        """
        # A copy renumbers its values, so the names are those of the graph itself.
        graph = self.graph.copy()
        debug_names = []
        twins = []
        for value, twin in zip(_computed(self.graph), _computed(graph), strict=True):
            if names is None or value.debugName() in names:
                debug_names.append(value.debugName())
                twins.append(twin)
        ir.return_tuple(graph, twins)
        with torch.no_grad():
            return dict(
                zip(debug_names, ir.C._jit_interpret_graph(graph, tensors), strict=True)
            )

    def save(self, target: str | Path | BinaryIO | io.BytesIO) -> None:
        """Write a TorchScript file that runs this graph: flat tensors in, a tuple of tensors
        out.
        """
        data = self.function().save_to_buffer()
        if isinstance(target, str | Path):
            files.write(Path(target), data)
        else:
            target.write(data)

    def function(self) -> Any:
        """A ScriptFunction of this graph: flat tensors in, a tuple of tensors out."""
        graph = packed(self.graph)
        for node in ir.nodes_of(graph, fp8.FP8_KIND):
            # the file must run without trt-build
            expand(graph, node, fp8.FORMULA)
        integer_division.guard(graph)
        keep_constants_tensors(graph)
        return ir.C._create_function_from_graph("forward", graph)

    @property
    def text(self) -> str:
        """The canonical text: equal for equal files, byte for byte. Large weights are printed as
        `<Tensor>`; see `digest`.
        """
        return canonical(self.graph)

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical text and the weights, in hexadecimal.

        The text alone does not state a weight's dtype and shape where it is an element of a list.
        """
        return hashlib.sha256(
            f"{self.text}{weights_digest(self.graph)}".encode()
        ).hexdigest()


def weights_digest(graph: Graph) -> str:
    """SHA-256 over dtype, shape and content of every weight, in the graph's order."""
    total = hashlib.sha256()
    for node in ir.nodes_of(graph, "prim::Constant"):
        for tensor in _tensors(node.output().toIValue()):
            _hash(total, tensor)
    return total.hexdigest()


def present(
    values: Mapping[str, torch.Tensor],
    flags: Mapping[str, str],
    too_long: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, torch.Tensor]:
    """The outputs without the flags, and without those whose flag is false: they are None. Raises
    EngineError where a list is longer than declared, which `too_long` shows.
    """
    for name, flag in too_long.items():
        if bool(values[flag]):
            raise EngineError(
                f"the list {name!r} has more tensors than the manifest declares",
                fix=f"increase max_lengths: {{{name}: N}} and build the model again",
            )
    absent = {name for name, flag in flags.items() if not bool(values[flag])}
    hidden = absent | set(flags.values()) | set(too_long.values())
    return {name: tensor for name, tensor in values.items() if name not in hidden}


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from _tensors(item)


def _hash(total: Any, tensor: torch.Tensor) -> None:
    """Hash a tensor's content; for a quantized tensor, the integers and the quantization
    parameters.
    """
    total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.is_quantized:
        total.update(_scales(tensor).encode())
        tensor = tensor.int_repr()
    total.update(ir.bytes_of(tensor).numpy().data)


def _scales(tensor: torch.Tensor) -> str:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.q_scale()!r} {tensor.q_zero_point()} "
    scales = tensor.q_per_channel_scales().tolist()
    zero_points = tensor.q_per_channel_zero_points().tolist()
    return f"{scales} {zero_points} {tensor.q_per_channel_axis()} "


def canonical(graph: Graph) -> str:
    """The text of a graph with its values renumbered in order and without source ranges."""
    return str(ir.C._jit_pass_canonicalize(graph).str(False))


def _computed(graph: Graph) -> list[Value]:
    """The tensors that the top-level nodes compute, in program order, without constants and without
    values that a branch may leave uninitialized.
    """
    tensors = (
        value
        for node in graph.nodes()
        for value in node.outputs()
        if str(value.type()) == "Tensor"
    )
    return [value for value in tensors if not ir.is_constant(value) and _is_set(value)]


def _is_set(value: Value) -> bool:
    """Whether a value is a tensor on every path. torch compiles an early return to a value that is
    not initialized on the other paths.
    """
    node = value.node()
    if node.kind() == "prim::Uninitialized":
        return False
    if node.kind() != "prim::If":
        return True
    return all(map(_is_set, ir.branch_ends(value)))


def in_double(lowered: LoweredGraph) -> LoweredGraph:
    """The graph with floating-point weights, dtype arguments and inputs in float64."""
    graph = lowered.graph.copy()
    for node in list(ir.nodes_of(graph, "prim::Constant")):
        value = node.output().toIValue()
        if not any(tensor.is_floating_point() for tensor in _tensors(value)):
            continue
        weights = []
        for tensor in _tensors(value):
            if tensor.is_floating_point():
                tensor = tensor.double()
            weights.append(ir.insert_constant(graph, tensor, node))
        if isinstance(value, list):
            weights = [Emit(graph, node).list(weights, ir.TENSOR)]
        if isinstance(value, torch.Tensor | list):
            node.output().replaceAllUsesWith(weights[0])
    for node in ir.walk(graph):
        schema = ir.schema(node)
        if schema is None:
            continue
        for index, argument in enumerate(schema.arguments):
            if argument.name != "dtype":
                continue
            if ir.constant(node.inputsAt(index)) in _FLOATS:
                node.replaceInput(index, ir.insert_constant(graph, _DOUBLE, node))
    return replace(lowered, graph=graph)


_FLOATS, _DOUBLE = (5, 6, 15), 7
"""torch's numbers for float16, float32 and bfloat16, and for float64."""
