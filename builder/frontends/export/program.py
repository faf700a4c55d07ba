"""An exported program with the graph of TorchScript nodes for lowering."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
)
from torch.utils import _pytree as pytree

from builder.errors import LoweringError, UsageError
from builder.frontends.export import autocast, numbers, structure
from builder.frontends.export.axes import Axes
from builder.frontends.export.memory import Writes
from builder.frontends.export.origins import Origins, location
from builder.frontends.export.walker import Walker
from builder.frontends.export.walker import signature as signature_of

log = logging.getLogger(__name__)

_NUMBERS = {SymIntArgument: numbers.INT, SymFloatArgument: numbers.FLOAT}
_NUMBERS[SymBoolArgument] = numbers.BOOL
_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class ExportedModule:
    """A torch.export.ExportedProgram in the form that trt-build uses.

    `graph` has flat tensors as inputs and outputs, named `inputs` and `outputs`. Parameters,
    buffers and constants are constants in it. `axes` has the dynamic axes, `script` the names and
    classes of the modules, `unchecked` the source locations of conditions on values that the
    program asserts and its graph does not, `other_autocast` the devices other than the CPU for
    which the program switches autocast on. Call it with the tensors of `inputs`, with numbers as
    tensors of one element: torch runs the exported program and returns the flat outputs.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        """Write the program's graph.

        Raises LoweringError if TorchScript cannot express it, or if the program was exported in
        training mode or changes its buffers.
        """
        _refuse_changes(program)
        self.program = program
        self._module: Any = None
        self._leaves: list[Any] = []
        self.fixed: dict[str, str] = {}
        """Arguments that the program fixes, with the reason why they are not inputs."""
        self._write()

    def __call__(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Run the exported program and return its flat outputs.

        Raises RuntimeError for sizes that its guards reject.
        """
        if self._module is None:
            self._module = autocast.callable_module(self.program)
        remaining = iter(tensors)
        leaves = []
        for leaf in self._leaves:
            if leaf is TENSOR:
                leaves.append(next(remaining))
            else:
                leaves.append(_number(leaf, remaining))
        args, kwargs = pytree.tree_unflatten(leaves, self._in_spec)
        try:
            output = self._module(*args, **kwargs)
        except AssertionError as error:
            raise RuntimeError(str(error)) from error
        return tuple(leaf for leaf in pytree.tree_leaves(output) if leaf is not None)

    def flat(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        """Return the tensors of a call as inputs of the graph; numbers become tensors.

        Raises TypeError for a structure other than the exported one, and UsageError for another
        value of an argument that the program fixes.
        """
        ordered = {name: kwargs[name] for name in self._keywords if name in kwargs}
        leaves, spec = pytree.tree_flatten((tuple(args), {**ordered, **kwargs}))
        if spec != self._in_spec:
            raise TypeError(
                f"the program was exported for arguments of the structure {self._in_spec}"
            )
        tensors = []
        for leaf, kind in zip(leaves, self._leaves, strict=True):
            if not isinstance(kind, _Constant):
                if not isinstance(leaf, torch.Tensor):
                    leaf = torch.tensor(leaf)
                tensors.append(leaf)
            elif leaf != kind.value:
                raise UsageError(
                    f"the program was exported with {kind.value!r}, this call has {leaf!r}",
                    fix="export it again with that value, or with a tensor instead",
                )
        return tensors

    @property
    def result(self) -> tuple[list[Any], Any]:
        """Return the leaves of the result (tensors, numbers or None) and their structure."""
        node = next(iter(reversed(self.program.graph.nodes)))
        metas = [_example(item) for item in node.args[0]]
        return metas, structure.signature(self.program).out_spec

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers among the example arguments of the export, by input."""
        examples = self.program.example_inputs
        leaves = [] if examples is None else pytree.tree_leaves(examples)
        kinds = [kind for kind in self._leaves if not isinstance(kind, _Constant)]
        values = [
            leaf
            for leaf, kind in zip(leaves, self._leaves, strict=False)
            if not isinstance(kind, _Constant)
        ]
        named_values = zip(self.inputs, kinds, values, strict=False)
        return {name: value for name, kind, value in named_values if kind is not TENSOR}

    @property
    def _keywords(self) -> Sequence[str]:
        """The names of the keyword arguments, in order."""
        _, keywords = self._in_spec.children()
        return list(keywords.context)

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        """The path and module of each module that the program's nodes name. `original_name` of a
        module is its class name.
        """
        yield from self.script.named_modules()

    @property
    def _in_spec(self) -> Any:
        return structure.signature(self.program).in_spec

    def _write(self) -> None:
        program = self._with_casts = autocast.with_explicit_casts(self.program)
        self.other_autocast = autocast.other_devices(self.program)
        module = program.graph_module
        graphs = [part.graph for part in autocast.graph_modules(module)]
        origins = Origins(graphs)
        self.script = origins.script
        walker = Walker(origins)
        metas: dict[str, Any] = {}
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        arguments = self._arguments(placeholders, walker, metas)
        walker.skipped = _dead_writes(self.program)
        if program is not self.program:  # its writes to buffers are outputs instead
            walker.skipped = _dead_writes(program)
        writes = Writes(graphs, walker.skipped, signature_of)
        walker.functional = writes.functional
        walker.has_writes = writes.remain
        results = self._results(walker.walk(module, arguments, {}))
        walker.finish([value for _, value in results])
        self.graph = walker.graph
        self.unchecked = tuple(walker.unchecked)
        self.inputs = tuple(metas)
        self.outputs = tuple(name for name, _ in results)
        self.axes = Axes(metas, program)

    def _arguments(
        self,
        placeholders: Sequence[torch.fx.Node],
        walker: Walker,
        metas: dict[str, Any],
    ) -> list[Any]:
        """The value of each placeholder. `metas` gets the example of each input by name."""
        names = iter(structure.input_names(self.program))
        values: list[Any] = []
        specs = self._with_casts.graph_signature.input_specs
        for node, spec in zip(placeholders, specs, strict=True):
            if spec.kind in _LIFTED:
                # one value for all uses, so that each use sees a write to it
                tensor = self._constant(str(spec.target))
                values.append(walker.value(tensor) if node.users else tensor)
            elif spec.kind is InputKind.USER_INPUT:
                values.append(
                    self._user_input(next(names), node, spec.arg, walker, metas)
                )
            else:
                raise LoweringError(
                    f"the program's input {node.name} is a {spec.kind.name.lower()}, and a graph"
                    " holds tensors only"
                )
        return values

    def _results(self, outputs: Sequence[Any]) -> list[tuple[str, Any]]:
        """The name and value of each tensor that the program returns."""
        user_outputs = [
            output
            for output, spec in zip(
                outputs, self._with_casts.graph_signature.output_specs, strict=True
            )
            if spec.kind is OutputKind.USER_OUTPUT
        ]
        labels = structure.output_names(structure.signature(self.program).out_spec)
        named_outputs = [
            (label, output)
            for label, output in zip(labels, user_outputs, strict=True)
            if output is not None
        ]
        if not named_outputs:
            raise LoweringError(
                "the program returns nothing",
                fix="return a tensor, or a tuple, list or dictionary of them",
            )
        return named_outputs

    def _constant(self, target: str) -> torch.Tensor:
        weight = self._with_casts.state_dict.get(target)
        if weight is None:
            weight = self._with_casts.constants[target]
        tensor: torch.Tensor = weight.detach()
        return tensor

    def _user_input(
        self,
        name: str,
        node: torch.fx.Node,
        argument: Any,
        walker: Walker,
        metas: dict[str, Any],
    ) -> Any:
        if isinstance(argument, ConstantArgument):
            self._leaves.append(_Constant(argument.value))
            self.fixed[name] = f"exported with {argument.value!r}"
            return argument.value
        kind = _NUMBERS.get(type(argument))
        self._leaves.append(TENSOR if kind is None else kind)
        metas[name] = node.meta["val"]
        if kind is None:
            return walker.input(name)
        return walker.input(name, kind)


def _example(item: Any) -> Any:
    """An example value of an output's type."""
    meta = item
    if isinstance(item, torch.fx.Node):
        meta = item.meta["val"]
    if isinstance(meta, torch.Tensor):
        return torch.empty(0)
    if meta is None:
        return None
    kinds = {"IntType": 0, "FloatType": 0.0, "BoolType": False}
    return kinds[numbers.type_of(meta).kind()]


TENSOR = object()
"""A tensor leaf of the arguments."""


class _Constant:
    """An argument leaf with a value that the program fixes."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _number(leaf: Any, remaining: Iterator[torch.Tensor]) -> Any:
    if isinstance(leaf, _Constant):
        return leaf.value
    return next(remaining).item()


def _dead_writes(program: torch.export.ExportedProgram) -> set[torch.fx.Node]:
    """Return writes to buffers that are never read, such as a call counter.

    Raises LoweringError for a write to a buffer that is read.
    """
    dead = set()
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind not in _LIFTED:
            continue
        writes = [user for user in node.users if _writes(user, node)]
        if (
            writes
            and len(node.users) == len(writes)
            and not any(write.users for write in writes)
        ):
            dead.update(writes)
        elif writes:
            raise _keeps_state(
                f"keeps state in the buffer {spec.target!r}", location(writes[0])
            )
    return dead


def _writes(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether an operator writes to the tensor of this node."""
    if not isinstance(user.target, torch._ops.OpOverload):
        return False
    positions = signature_of(user.target).written
    return any(
        arg is node and index in positions for index, arg in enumerate(user.args)
    )


def _keeps_state(problem: str, where: str | None = None) -> LoweringError:
    return LoweringError(
        f"the program {problem}; a served model has none",
        where=where,
        fix="take it as an argument and return its new value; `state` in the manifest lets the"
        " server keep it",
    )


def _refuse_changes(program: torch.export.ExportedProgram) -> None:
    """Raise LoweringError for buffers and arguments that the program changes."""
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            continue
        problem = {
            OutputKind.BUFFER_MUTATION: f"keeps state in the buffer {spec.target!r}",
            OutputKind.USER_INPUT_MUTATION: f"writes to its argument {spec.target!r}",
        }.get(spec.kind, f"has an output of kind {spec.kind.name.lower()}")
        raise _keeps_state(problem)
