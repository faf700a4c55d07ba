"""Writes an exported program as a graph of TorchScript nodes: a node for each call of an ATen
operator, an If for `cond`, a Loop for `while_loop`, `scan` and `map`.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from builder.errors import LoweringError
from builder.frontends.export import (
    assertions,
    convolutions,
    masks,
    memory,
    numbers,
    quantized,
    torchao,
)
from builder.frontends.export.contents import TORCHAO
from builder.frontends.export.origins import Origins, location

C: Any = torch._C
TENSOR = C.TensorType.get()
_MAX_TRIP_COUNT = 2**63 - 1
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
_SAME = frozenset(["aten.alias", "aten.lift_fresh", "aten.detach", "aten.detach_"])
"""Operators that return their input."""
_VIEWS = frozenset([torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default])
"""Operators that are a reshape if no memory is written."""
_NUMBERS = (int, float, bool)
_SEQUENCES = (list, tuple)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_RESULTS = (*_NUMBERS, *_SYMBOLIC)
"""Tuples of types: a union of types would be created for every value that is checked."""
_PLAIN_ELEMENTS = {"IntType": int, "FloatType": float, "BoolType": bool}
"""The elements of lists that form one constant, and their Python type."""
_NO_SCHEMA = "(no schema)"
_NUMBER_KINDS = ("IntType", "FloatType", "BoolType", "NumberType")

_DECOMPOSE = "export the program again with program.run_decompositions()"

Result = Any
"""The result of a node of the program while the graph is written: a value of the graph, a Python
constant or a tuple of these, a submodule for `get_attr`.
"""


class Argument(NamedTuple):
    """An argument of a schema, with the kind of its type without Optional."""

    name: str
    default: Any
    is_optional: bool
    form: str
    element: Any


class Signature(NamedTuple):
    """Cached properties of an operator's schema: torch creates new objects for each query.

    `name` is `aten.add`, `kind` is `aten::add`.
    """

    name: str
    kind: str
    arguments: tuple[Argument, ...]
    returns: tuple[Any, ...]
    written: frozenset[int]
    """The positions of the arguments that the operator writes to."""
    number: str | None
    """TorchScript's operator for one that reads a number, such as `sym_size`."""
    returns_list: bool

    def by_name(
        self, args: Sequence[Result], kwargs: dict[str, Result]
    ) -> dict[str, Result]:
        """The arguments of a call by their names in the schema."""
        names = [argument.name for argument in self.arguments]
        return dict(zip(names, args, strict=False)) | kwargs


@functools.lru_cache(maxsize=4096)
def signature(target: Any) -> Signature:
    """The signature of an OpOverload."""
    schema = target._schema
    arguments = []
    for argument in schema.arguments:
        kind = argument.type
        is_optional = argument.type.kind() == "OptionalType"
        if is_optional:
            kind = kind.getElementType()
        form = kind.kind()
        element = kind.getElementType() if form == "ListType" else None
        default = argument.default_value if argument.has_default_value() else None
        arguments.append(Argument(argument.name, default, is_optional, form, element))
    returns = tuple(returned.type for returned in schema.returns)
    name = str(target).rpartition(".")[0]
    written_positions = [
        index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return Signature(
        name,
        schema.name,
        tuple(arguments),
        returns,
        frozenset(written_positions),
        numbers.KINDS.get(target),
        any(returned.kind() == "ListType" for returned in returns),
    )


def _returns_bool_of_number(
    meta: Any, schema: Signature, arguments: Mapping[str, Result]
) -> bool:
    """Whether the call returns a bool tensor because a number is a bool (`full(size, True)`).
    TorchScript has no bool as a Scalar, so it is written as an integer.
    """
    if schema.written or not isinstance(meta, torch.Tensor) or meta.dtype != torch.bool:
        return False
    return any(
        argument.form == "NumberType" and isinstance(arguments.get(argument.name), bool)
        for argument in schema.arguments
    )


class Walker:
    """Writes the nodes of a program into a new `torch._C.Graph`."""

    skipped: set[torch.fx.Node]
    """Nodes that are not written, because their writes are never read."""
    functional: dict[torch.fx.Node, Any]
    """Calls of in-place operators that are written as calls of these operators."""
    unchecked: list[str]
    """The source locations of conditions on values that the program asserts."""
    has_writes = True
    """Whether other calls write to memory: then views and copies are kept."""
    results: dict[Any, Result]
    """The results of the nodes of the graph that is being written."""
    _sized: dict[Any, tuple[int, tuple[Any, int]]]
    """For each computed size expression: a tensor of the graph and its axis, and the number of
    nodes that read the tensor.
    """
    _rewrites: dict[str, Callable[[dict[str, Result]], Result]]
    """Operators that have no counterpart with their arguments."""
    _node: torch.fx.Node | None = None
    _described: tuple[Any, ...] = ()
    """Nodes with the metadata of `_node`."""
    _plain: dict[tuple[type, str], Any]
    """Non-tensor constants outside of blocks, by type and text."""
    _computes_sizes = False
    """Whether the program computes a size from others."""
    _rounds = False
    """Whether the program contains torchao's rounding."""

    def __init__(self, origins: Origins) -> None:
        self.graph = C.Graph()
        self.origins = origins
        self.skipped = set()
        self.functional = {}
        self.unchecked = []
        self.results = {}
        self._ends = [self.graph.return_node()]
        self._sized = {}
        self._rewrites = {
            "aten._native_batch_norm_legit_no_training": self._batch_norm,
            "aten._to_copy": self._to_copy,
            "aten.lift_fresh_copy": self._clone,
        }
        self._plain = {}

    def input(self, name: str, kind: Any = TENSOR) -> Any:
        """Add an input of the graph. A number is read from a tensor of one element."""
        value = self.graph.addInput(re.sub(r"\W", "_", name))
        if kind is TENSOR:
            return value
        return self._item(value, kind)

    def walk(
        self,
        module: torch.fx.GraphModule,
        arguments: Sequence[Result],
        results: dict[Any, Result],
    ) -> list[Result]:
        """Write the nodes of a graph module whose placeholders are `arguments`. Returns its
        outputs.

        Raises LoweringError for a node without a TorchScript operator.
        """
        values = iter(arguments)
        if not self._computes_sizes:
            self._computes_sizes = any(map(_computes, module.graph.nodes))
        for node in module.graph.nodes:
            self._begin(node)
            self.results = results
            if node.op == "output":
                (returned,) = node.args
                outputs = returned
                if not isinstance(returned, list | tuple):
                    outputs = [returned]
                return [self._resolved(item, results) for item in outputs]
            if node.op == "placeholder":
                results[node] = next(values)
            elif node.op == "get_attr":
                results[node] = _attribute(module, str(node.target))
            elif node.op == "call_function":
                results[node] = self._result(node, results)
            else:
                raise self.error(
                    f"a node of kind {node.op} has no counterpart in TorchScript"
                )
        return []

    def _result(self, node: torch.fx.Node, results: dict[Any, Result]) -> Result:
        """Write a call; None if the call is left out."""
        if node in self.skipped:
            return None
        result = self._call(node, results)
        if self._computes_sizes:
            self._remember_sizes(node, result)
        return result

    def finish(self, outputs: Sequence[Result]) -> None:
        """Set the outputs of the graph: tensors, and numbers converted to tensors."""
        for item in outputs:
            value = self.value(item)
            if value.type().kind() in _NUMBER_KINDS:
                value = self.emit("prim::NumToTensor", [value])
            self.graph.registerOutput(value)

    def emit(self, kind: str, args: Sequence[Any], *types: Any) -> Any:
        """Add one node with one output for each of `types` (default: one tensor).

        Returns its value, or a tuple of several.
        """
        node = self._create(kind, [self.value(arg) for arg in args], types or (TENSOR,))
        outputs = tuple(node.outputs())
        if len(outputs) == 1:
            return outputs[0]
        return outputs

    def value(self, item: Result, kind: Any = None) -> Any:
        """Return the graph value of an argument whose type in the schema is `kind`."""
        if kind is None:
            return self._value(item, "", None)
        if kind.kind() == "OptionalType":
            if item is None:
                return self._constant(None)
            kind = kind.getElementType()
        form = kind.kind()
        return self._value(
            item, form, kind.getElementType() if form == "ListType" else None
        )

    def _value(self, item: Result, form: str, element: Any) -> Any:
        if isinstance(item, C.Value):
            if form == "FloatType" and item.type().kind() == "IntType":
                return self.emit("aten::Float", [item], numbers.FLOAT)
            if form == "NumberType" and item.type().kind() == "BoolType":
                return self.emit("aten::Int", [item], numbers.INT)
            return item
        if type(item) is bool and form == "NumberType":
            return self._constant(int(item))
        if type(item) in _NUMBERS and form != "ListType":
            return self._constant(float(item) if form == "FloatType" else item)
        if isinstance(item, quantized.Quantized):
            raise LoweringError(
                "a quantized tensor is read by another operator than dequantize",
                where=location(item.node),
                fix="export the model with a dequantize behind each quantize",
            )
        if isinstance(item, torchao.Waiting):
            raise torchao.error_of(item)
        if form == "ListType" and not isinstance(item, _SEQUENCES):
            item = [item]
        if isinstance(item, _SEQUENCES):
            return self._list(item, element)
        if isinstance(item, torch.memory_format):
            return self._constant(_MEMORY_FORMATS[item])
        return self._constant(item)

    def constant_of(self, item: Result) -> Any:
        """Return the constant number or tensor of a value; None if it is computed."""
        if not isinstance(item, C.Value):
            return item
        if item.node().kind() == "prim::Constant":
            return item.toIValue()
        return None

    def _list(self, items: Sequence[Result], element: Any) -> Any:
        python_type = None
        if element is not None and items:
            python_type = _PLAIN_ELEMENTS.get(element.kind())
        if python_type is not None and all(type(item) is python_type for item in items):
            return self._constant(list(items))
        values = [self.value(item, element) for item in items]
        if element is None:
            element = values[0].type() if values else TENSOR
        return self.emit("prim::ListConstruct", values, C.ListType(element))

    def _constant(self, item: Any) -> Any:
        if isinstance(item, _SYMBOLIC):
            raise self.error(f"the size {item} is not computed in the graph")
        if isinstance(item, torch.Tensor):
            item = item.detach()
        else:
            key = (type(item), repr(item))
            existing = self._plain.get(key)
            if existing is not None:
                return existing
        self.graph.setInsertPoint(self._ends[-1])
        try:
            value = self.graph.insertConstant(item)
        except (TypeError, RuntimeError) as error:
            raise self.error(f"a {type(item).__name__} cannot be a constant") from error
        self._describe(value.node())
        if len(self._ends) == 1 and not isinstance(item, torch.Tensor):
            self._plain[key] = value
        return value

    def _create(self, kind: str, values: Sequence[Any], types: Sequence[Any]) -> Any:
        node = self.graph.create(kind, list(values), len(types))
        node.insertBefore(self._ends[-1])
        if any(result_type is not TENSOR for result_type in types):
            for output, result_type in zip(node.outputs(), types, strict=True):
                output.setType(result_type)
        self._describe(node)
        return node

    def _begin(self, node: torch.fx.Node | None) -> None:
        """Attribute the nodes that are emitted from here on to this node of the program."""
        self._node = node
        self._described = () if node is None else self.origins.described(node)

    def _describe(self, created: Any) -> None:
        for source in self._described:
            created.copyMetadata(source)

    def error(self, message: str, fix: str | None = None) -> LoweringError:
        """Return the error of the node that is being written, with its source location."""
        where = None
        if self._node is not None:
            where = location(self._node)
        return LoweringError(message, where=where, fix=fix)

    def _resolved(self, item: Any, results: dict[Any, Result]) -> Result:
        """Return an argument of a node, with the nodes in it replaced by their results."""
        if isinstance(item, torch.fx.Node):
            return results[item]
        if isinstance(item, _SEQUENCES):
            return [self._resolved(part, results) for part in item]
        return item

    def _call(self, node: torch.fx.Node, results: dict[Any, Result]) -> Result:
        target = self.functional.get(node, node.target)
        args = [self._resolved(arg, results) for arg in node.args]
        kwargs = {
            name: self._resolved(arg, results) for name, arg in node.kwargs.items()
        }
        if isinstance(target, torch._ops.OpOverload):
            return self._overload(node, target, args, kwargs)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(target, args, kwargs)
        if target in assertions.PYTHON_ASSERTIONS:
            self._leave_out(node)
            return None
        if target is operator.getitem:
            return self._item_of(args[0], args[1])
        return self._number(node, target, args)

    def _overload(
        self,
        node: torch.fx.Node,
        target: Any,
        args: Sequence[Result],
        kwargs: dict[str, Result],
    ) -> Result:
        schema = signature(target)
        if schema.name in assertions.ASSERTIONS:
            self._leave_out(node)
            return None
        if schema.number:
            return self.emit(schema.number, args, numbers.type_of(node.meta["val"]))
        if schema.name in _SAME:
            return args[0]
        if schema.name in memory.IDENTITIES and not self.has_writes:
            return args[0]
        if schema.name in ("aten.item", "aten._local_scalar_dense"):
            return self._item(args[0], numbers.type_of(node.meta["val"]))
        namespace, _, name = schema.name.partition(".")
        if namespace == quantized.NAMESPACE:
            return quantized.call(self, node, name, schema.by_name(args, kwargs))
        if namespace == torchao.NAMESPACE and name in TORCHAO:
            self._rounds = True
            return torchao.call(self, node, name, schema.by_name(args, kwargs))
        if self._rounds and any(isinstance(arg, torchao.Waiting) for arg in args):
            result = torchao.read(self, node, schema.name, args)
            if result is not None:
                return result
        return self._operator(node, target, schema, args, kwargs)

    def _leave_out(self, assertion: torch.fx.Node) -> None:
        if assertions.depends_on_data(assertion):
            self.unchecked.append(location(assertion))

    def _item(self, tensor: Any, kind: Any) -> Any:
        """Read the number of this type in a tensor of one element."""
        cast = {
            "IntType": "aten::Int",
            "FloatType": "aten::Float",
            "BoolType": "aten::Bool",
        }
        return self.emit(cast[kind.kind()], [tensor], kind)

    def _item_of(self, container: Result, index: Any) -> Result:
        if isinstance(container, list | tuple) and isinstance(index, int):
            return container[index]
        raise self.error("an element of this value cannot be read in TorchScript")

    def _number(
        self, node: torch.fx.Node, target: Any, args: Sequence[Result]
    ) -> Result:
        if not isinstance(node.meta.get("val"), _RESULTS):
            raise self.error(
                f"the function {_named(target)} has no counterpart in TorchScript",
                fix=_DECOMPOSE,
            )
        if all(not isinstance(arg, C.Value | list | tuple) for arg in args):
            return target(*args)
        result = numbers.type_of(node.meta["val"])
        sized = self._sized.get(_computed(node.meta["val"]))
        if sized is not None:
            _, tensor_and_axis = sized
            return self.emit("aten::size", tensor_and_axis, result)
        if target in (operator.pow, operator.rshift, operator.lshift, torch.sym_ite):
            return self._less_common(target, args, result)
        if target is getattr(torch, "sym_sum", None):
            (items,) = args
            total = items[0]
            for item in items[1:]:
                total = self.emit("aten::add", [total, item], result)
            return total
        kind = numbers.KINDS.get(target)
        if kind is None:
            name = _named(target)
            raise self.error(
                f"the function {name} of numbers has no counterpart in TorchScript"
            )
        return self.emit(kind, args, result)

    def _remember_sizes(self, node: torch.fx.Node, value: Result) -> None:
        """Record the computed sizes of a tensor: reading a size takes fewer layers than computing
        it.

        A value inside a block is not visible after the block. The tensor with the most readers is
        chosen. A tensor whose layer may be merged with another, such as a convolution before its
        normalization, is never chosen.
        """
        meta = node.meta.get("val")
        if len(self._ends) > 1 or not isinstance(meta, torch.Tensor):
            return
        readers = len(node.users)
        for axis, size in enumerate(meta.shape):
            expression = None
            if type(size) is not int:
                expression = _computed(size)
            if expression is None:
                continue
            previous_readers = 0
            if expression in self._sized:
                previous_readers, _ = self._sized[expression]
            if readers >= previous_readers:
                self._sized[expression] = readers, (value, axis)

    def _less_common(self, target: Any, args: Sequence[Result], result: Any) -> Any:
        if target is torch.sym_ite:
            condition, yes, no = args
            return self._if(condition, lambda: [yes], lambda: [no])[0]
        if target is operator.pow:
            power = self.emit("aten::pow", args, numbers.FLOAT)
            whole = result.kind() == "IntType"
            if whole:
                return self.emit("aten::Int", [power], numbers.INT)
            return power
        kind = "aten::__lshift__" if target is operator.lshift else "aten::__rshift__"
        return self.emit(kind, args, result)

    def _operator(
        self,
        node: torch.fx.Node,
        target: Any,
        schema: Signature,
        args: Sequence[Result],
        kwargs: dict[str, Result],
    ) -> Result:
        """Write a call with all arguments of its schema, including defaults."""
        arguments = schema.by_name(args, kwargs)
        _refuse_training(self, schema.name, arguments)
        if memory.leaves_input(schema.name, args, arguments):
            return args[0]
        if rewrite := self._rewrites.get(schema.name):
            return rewrite(arguments)
        if schema.name == masks.ATTENTION and not self.has_writes:
            arguments["attn_mask"] = self._mask(node, schema)
        values = self._values(schema, arguments)
        meta = node.meta.get("val")
        reshapes = target in _VIEWS and not self.has_writes
        kind = "aten::reshape" if reshapes else schema.kind
        if convolution := convolutions.arranged(kind, values, meta, self._constant):
            kind, values = convolutions.KIND, convolution
        created = self._create(kind, values, schema.returns)
        if created.schema() == _NO_SCHEMA:
            self._find_schema(created, target, schema)
        results = self._results(node, created, schema)
        if _returns_bool_of_number(meta, schema, arguments):
            return self.emit("aten::to", [results, torch.bool, False, False, None])
        return results

    def _values(
        self, schema: Signature, arguments: Mapping[str, Result]
    ) -> list[Result]:
        """The values of all arguments in the order of the schema."""
        return [
            self._argument(argument, arguments.get(argument.name, argument.default))
            for argument in schema.arguments
        ]

    def _mask(self, node: torch.fx.Node, schema: Signature) -> Result:
        """The mask that a call of attention needs."""
        mask = schema.by_name(node.args, node.kwargs).get("attn_mask")
        if not isinstance(mask, torch.fx.Node) or masks.is_without_effect(node, mask):
            return None
        return self.results[masks.before_expansion(node, mask)]

    def _results(self, node: torch.fx.Node, created: Any, schema: Signature) -> Result:
        """The output of the created node, a tuple of several outputs, or None without outputs."""
        outputs = list(created.outputs())
        if schema.returns_list:
            metas = _metas(node, len(outputs))
            pairs = zip(outputs, metas, strict=True)
            outputs = [self._unpacked(*pair) for pair in pairs]
        if len(outputs) == 1:
            return outputs[0]
        return tuple(outputs) if outputs else None

    def _argument(self, argument: Argument, item: Result) -> Any:
        if item is None and argument.is_optional:
            return self._constant(None)
        return self._value(item, argument.form, argument.element)

    def _find_schema(self, created: Any, target: Any, schema: Signature) -> None:
        """Convert numbers for tensor arguments to tensors, if the operator has no overload for
        numbers.

        torch finds the overload by the types of the values.
        """
        pairs = zip(schema.arguments, list(created.inputs()), strict=True)
        for index, (argument, value) in enumerate(pairs):
            is_tensor = argument.form == "TensorType" and not argument.is_optional
            if is_tensor and value.type().kind() in _NUMBER_KINDS:
                as_tensor = self._create("prim::NumToTensor", [value], [TENSOR])
                as_tensor.moveBefore(created)
                created.replaceInput(index, as_tensor.output())
        if created.schema() == _NO_SCHEMA:
            raise self.error(
                f"{target} has no operator in TorchScript with these arguments",
                fix=_DECOMPOSE,
            )

    def _unpacked(self, value: Any, meta: Any) -> Result:
        """Return a list of tensors as a tuple of values: the program defines its length."""
        if value.type().kind() != "ListType" or not isinstance(meta, list | tuple):
            return value
        element = value.type().getElementType()
        return tuple(
            self._create("prim::ListUnpack", [value], [element] * len(meta)).outputs()
        )

    def _batch_norm(self, arguments: dict[str, Result]) -> tuple[Result, ...]:
        """Write the form that `run_decompositions` produces. Its other results are used only in
        training.
        """
        tensors = [
            arguments[name]
            for name in ("input", "weight", "bias", "running_mean", "running_var")
        ]
        options = [False, arguments["momentum"], arguments["eps"], False]
        return self.emit("aten::batch_norm", [*tensors, *options]), None, None

    def _to_copy(self, arguments: dict[str, Result]) -> Any:
        dtype = arguments.get("dtype")
        if dtype is None:
            return self.emit(
                "aten::clone", [arguments["self"], arguments.get("memory_format")]
            )
        return self.emit(
            "aten::to",
            [arguments["self"], dtype, False, True, arguments.get("memory_format")],
        )

    def _clone(self, arguments: dict[str, Result]) -> Result:
        return self.emit("aten::clone", [arguments["self"], None])

    def _higher_order(
        self, target: Any, args: Sequence[Result], kwargs: dict[str, Result]
    ) -> Result:
        name = target.name() if callable(getattr(target, "name", None)) else str(target)
        writers: dict[str, Callable[..., Result]] = {
            "cond": self._cond,
            "while_loop": self._while_loop,
            "scan": self._scan,
            "map_impl": lambda body, xs, others=(): self._scan(body, (), xs, others),
            "wrap_with_set_grad_enabled": lambda enabled, body, *operands: self._inline(
                body, operands
            ),
            # a block with disabled autocast, which changes no dtype: `autocast` has made the
            # casts of other blocks explicit
            "wrap_with_autocast": lambda device, dtype, enabled, cached, body, *operands: (
                self._inline(body, operands)
            ),
        }
        write = writers.get(name)
        if write is None:
            raise self.error(
                f"the higher-order operator {name} has no counterpart in TorchScript",
                fix=_DECOMPOSE,
            )
        return write(*args, **kwargs)

    def _inline(
        self, body: torch.fx.GraphModule, operands: Sequence[Result]
    ) -> tuple[Result, ...]:
        """Write the nodes of a submodule here and return its outputs."""
        caller = self._node
        outputs = self.walk(body, operands, {})
        self._begin(caller)
        return tuple(outputs)

    def _cond(
        self, condition: Result, yes: Any, no: Any, operands: Sequence[Result] = ()
    ) -> tuple[Result, ...]:
        if isinstance(condition, bool):
            return self._inline(yes if condition else no, operands)
        if condition.type().kind() == "TensorType":
            condition = self.emit("aten::Bool", [condition], numbers.BOOL)
        return self._if(
            condition,
            lambda: self._inline(yes, operands),
            lambda: self._inline(no, operands),
        )

    def _if(
        self,
        condition: Any,
        yes: Callable[[], Sequence[Result]],
        no: Callable[[], Sequence[Result]],
    ) -> tuple[Any, ...]:
        node = self._create("prim::If", [self.value(condition)], [])
        for write in (yes, no):
            block = node.addBlock()
            for output in self._within(block, write):
                block.registerOutput(output)
        first, _ = node.blocks()
        for value in first.outputs():
            node.addOutput().setType(value.type())
        return tuple(node.outputs())

    def _within(self, block: Any, write: Callable[[], Sequence[Result]]) -> list[Any]:
        """Return the values that are emitted into a block."""
        self._ends.append(block.returnNode())
        values = [self.value(item) for item in write()]
        self._ends.pop()
        return values

    def _loop(
        self,
        trip_count: Any,
        condition: Any,
        carried: Sequence[Result],
        body: Callable[[Any, list[Any]], tuple[Any, Sequence[Result]]],
    ) -> tuple[Any, ...]:
        """Write a Loop. `body` writes one iteration from its number and the loop-carried values,
        and returns the next condition and loop-carried values.
        """
        first = [self.value(item) for item in carried]
        node = self._create(
            "prim::Loop", [self.value(trip_count), self.value(condition), *first], []
        )
        block = node.addBlock()
        number = block.addInputToBlock()
        number.setType(numbers.INT)
        inner = []
        for value in first:
            inner.append(block.addInputToBlock())
            inner[-1].setType(value.type())

        def write() -> list[Result]:
            continues, carried_on = body(number, inner)
            return [continues, *carried_on]

        for output in self._within(block, write):
            block.registerOutput(output)
        for value in first:
            node.addOutput().setType(value.type())
        return tuple(node.outputs())

    def _while_loop(
        self,
        condition: Any,
        body: Any,
        carried: Sequence[Result],
        others: Sequence[Result] = (),
    ) -> tuple[Any, ...]:
        def holds(values: Sequence[Result]) -> Any:
            (output,) = self._inline(condition, [*values, *others])
            if isinstance(output, C.Value) and output.type().kind() == "TensorType":
                return self.emit("aten::Bool", [output], numbers.BOOL)
            return output

        def iteration(number: Any, values: list[Any]) -> tuple[Any, Sequence[Result]]:
            outputs = self._inline(body, [*values, *others])
            return holds(outputs), outputs

        return self._loop(_MAX_TRIP_COUNT, holds(carried), carried, iteration)

    def _scan(
        self,
        combine: Any,
        init: Sequence[Result],
        xs: Sequence[Result],
        others: Sequence[Result] = (),
    ) -> tuple[Any, ...]:
        """Write a scan: it carries `init`, and stacks the other results of `combine` along a new
        first axis.
        """
        count = len(init)
        stacked_count = _output_count(combine) - count
        tensors = C.ListType(TENSOR)
        lists = [
            self.emit("prim::ListConstruct", [], tensors) for _ in range(stacked_count)
        ]

        def iteration(number: Any, values: list[Any]) -> tuple[Any, Sequence[Result]]:
            rows = [self.emit("aten::select", [x, 0, number]) for x in xs]
            outputs = self._inline(combine, [*values, *rows, *others])
            for stacked, item in zip(lists, outputs[count:], strict=True):
                self.emit("aten::append", [stacked, item], tensors)
            return True, outputs[:count]

        trip_count = self.emit("aten::size", [xs[0], 0], numbers.INT)
        carried = self._loop(trip_count, condition=True, carried=init, body=iteration)
        return (
            *carried,
            *(self.emit("aten::stack", [stacked, 0]) for stacked in lists),
        )


def _named(target: Any) -> str:
    return getattr(target, "__name__", str(target))


def _output_count(module: torch.fx.GraphModule) -> int:
    (returned,) = list(module.graph.nodes)[-1].args
    if isinstance(returned, list | tuple):
        return len(returned)
    return 1


def _computed(size: Any) -> Any:
    """The expression of a size that is computed from others; None for another number."""
    if not isinstance(size, torch.SymInt):
        return None
    expression = size.node.expr
    return None if expression.is_Atom else expression


def _computes(node: torch.fx.Node) -> bool:
    """Whether a node computes a size from others."""
    return node.op == "call_function" and _computed(node.meta.get("val")) is not None


def _metas(node: torch.fx.Node, count: int) -> Sequence[Any]:
    meta = node.meta.get("val")
    if count == 1:
        return [meta]
    if isinstance(meta, list | tuple):
        return meta
    return [None] * count


def _attribute(module: torch.nn.Module, path: str) -> Any:
    attribute: Any = module
    for name in path.split("."):
        attribute = getattr(attribute, name)
    return attribute


_TRAINING = {
    "aten.dropout": "train",
    "aten.dropout_": "train",
    "aten.native_dropout": "train",
    "aten.feature_dropout": "train",
    "aten.alpha_dropout": "train",
    "aten.feature_alpha_dropout": "train",
    "aten.batch_norm": "training",
    "aten._batch_norm_impl_index": "training",
    "aten.native_batch_norm": "training",
    "aten._native_batch_norm_legit": "training",
    "aten.rrelu": "training",
}
"""The operator arguments that are true in training."""


def _refuse_training(walker: Walker, name: str, arguments: dict[str, Result]) -> None:
    """Raise LoweringError for a program that was exported in training mode.

    A normalization without running statistics uses those of the batch in evaluation, too.
    """
    argument = _TRAINING.get(name)
    if argument is None:
        return
    without_statistics = (
        "running_mean" in arguments and arguments["running_mean"] is None
    )
    if arguments.get(argument) is True and not without_statistics:
        raise walker.error(
            f"the program was exported in training mode: {name} has {argument}=True",
            fix="call model.eval() before torch.export.export",
        )
