"""Convert a module to a graph without `self`: in evaluation mode, with all calls inlined, and
attribute reads replaced by constants. torch's own freezing is used only for modules behind a
TorchScript interface: it copies the module, and its common-subexpression elimination merges nodes
of fallback modules with equal nodes elsewhere.

Constants share the module's memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from builder.errors import LoweringError
from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import (
    enumerations,
    ir,
    list_attributes,
    local_attributes,
    overwritten_buffers,
    recast_attributes,
    unread_writes,
)
from builder.lowering.emit import Emit
from builder.lowering.executor import constants_to_numbers
from builder.lowering.folding import propagate_constants
from builder.lowering.locations import source_line, source_range
from builder.lowering.marking import inline_and_mark
from builder.lowering.objects import (
    READ,
    WRITE,
    ModuleObject,
    TableEntry,
    is_object,
    is_table,
    read_attribute,
    table_entries,
)
from builder.lowering.passes.functionalize.sharing import holds
from builder.lowering.regions import make_plain
from builder.lowering.steps import FREEZE, LOWER_GRAPH, Steps


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """The module with all its submodules in evaluation mode. Their `training` flags are restored
    afterwards. Other callables have no such mode.
    """
    if not isinstance(module, torch.nn.Module):
        yield
        return
    flags = [(child, child.training) for child in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for child, flag in flags:
            child.training = flag


def frozen_graph(
    module: torch.jit.ScriptModule,
    method: str,
    fallback_modules: frozenset[str],
    *,
    keep_objects: bool,
    steps: Steps | None,
) -> tuple[Any, Any]:
    """The graph of `method` with attributes folded to constants, and its schema.

    Nothing is folded that changes numbers. Nodes of `fallback_modules` are marked. `keep_objects`
    is that of `make_plain`. `steps` records the steps. Raises LoweringError if the method writes
    state to the module that it reads, or does not exist.
    """
    method = _existing(module, method)
    source, steps = module._c, steps or Steps()
    steps.begin(source._get_method(method).graph)
    graph = _inlined(source, method, fallback_modules, keep_objects)
    constants_to_numbers(graph)
    # only torch can resolve a call through an interface, whose type does not determine the method,
    # and the value of an enumeration
    if ir.nodes_of(graph, "prim::CallMethod") or enumerations.values(graph):
        source = _frozen(module, method, graph)
        graph = _inlined(source, method, fallback_modules, keep_objects)
        local_attributes.replace(graph, source)
        enumerations.resolve(graph)
        if all(tensor.dim() for tensor in module.state_dict().values()):
            # freezing creates no 0-d constant from a buffer
            constants_to_numbers(graph)
    _fold_attributes(graph, module, source, steps)
    steps.end(FREEZE, graph)
    _resolve_branches(graph)
    _drop_self(graph)
    steps.end(LOWER_GRAPH, graph)
    return graph, module._c._get_method(method).schema


def _fold_attributes(
    graph: Graph, module: torch.jit.ScriptModule, source: Any, steps: Steps
) -> None:
    """Replace the attributes by constants. `steps` gets those that keep a value of sizes, and those
    that are written and never read. Raises LoweringError if the graph keeps state.
    """
    # torch's freezing may give the module of an attribute another path
    caches = source is module._c
    list_attributes.split(graph, source)
    steps.cached_attributes = local_attributes.replace(graph, source, caches=caches)
    recast_attributes.replace(graph)
    if unread_writes.writes(graph):
        _fold_training(graph)
        steps.unread_attributes = unread_writes.remove(
            graph, _is_created, partial(_shares_memory, source, graph)
        )
        overwritten_buffers.replace(graph, source)
    lower_attributes(graph, source)


def _fold_training(graph: Graph) -> None:
    """Decide `if self.training`, so that the writes of training are no writes of forward."""
    if any(node.s("name") == "training" for node in ir.nodes_of(graph, WRITE)):
        return
    reads = [
        node
        for node in ir.nodes_of(graph, READ)
        if node.s("name") == "training" and node.output().type().kind() == "BoolType"
    ]
    for node in reads:
        ir.replace(node, [ir.insert_constant(graph, value=False, before=node)])
    if reads:
        propagate_constants(graph)


def _frozen(module: torch.jit.ScriptModule, method: str, graph: Graph) -> Any:
    """The module that torch freezes. Raises LoweringError for one that it does not freeze."""
    for call in ir.nodes_of(graph, "prim::CallMethod"):
        if call.inputsAt(0).node().kind() != "prim::ModuleContainerIndex":
            continue
        raise LoweringError(
            "forward chooses a module of a list or dictionary by a value, which torch cannot"
            " freeze",
            where=source_line(call),
            fix=(
                "index with a constant, or choose in a loop: "
                "`for i, layer in enumerate(self.layers): if i == index: x = layer(x)`"
            ),
        )
    methods = [method] if method != "forward" else []
    with evaluating(module):
        return ir.C._freeze_module(module._c, methods, True, False)


def _resolve_branches(graph: Graph) -> None:
    """Resolve `if self.training`, and other decisions by constants."""
    decides = ("prim::If", "prim::Loop", "prim::SetAttr")
    if any(graph.findNode(kind) is not None for kind in decides):
        propagate_constants(graph)


def _shares_memory(source: Any, graph: Graph) -> bool:
    """Whether two attributes of different names, that the graph reads from modules, or an attribute
    and a constant of the graph, may have tensors of one storage.
    """
    modules = local_attributes.modules_of(graph, source)
    storages = defaultdict[object, set[int]](set)
    for node in ir.nodes_of(graph, "prim::Constant", READ):
        output = node.output()
        if not holds(output) or "Tensor" not in output.type().str():
            continue
        key, value = None, output.toIValue()
        if node.kind() == READ:
            owner = modules.get(node.inputsAt(0).unique())
            if owner is None:
                return True
            key = (node.inputsAt(0).type().str(), node.s("name"))
            value = read_attribute(owner[1], node)
        storages[key] |= {
            tensor.untyped_storage().data_ptr()
            for tensor in tree_leaves(value)
            if isinstance(tensor, torch.Tensor)
            and tensor.layout is torch.strided
            and tensor.numel()
        }
    return len(set().union(*storages.values())) < sum(map(len, storages.values()))


def _existing(module: torch.jit.ScriptModule, method: str) -> str:
    """The name of the compiled method. Raises LoweringError if there is none."""
    has = module._c._has_method
    if method == "forward" and has("forward__0") and not has(method):
        # a module with overloads, nn.LSTM among them; the first takes plain tensors
        return "forward__0"
    if not has(method):
        names = ", ".join(module._c._method_names())
        raise LoweringError(
            f"the module has no method {method!r}", fix=f"name one of {names}"
        )
    return method


def _inlined(
    module: Any, method: str, fallback_modules: frozenset[str], keep_objects: bool
) -> Any:
    graph = module._get_method(method).graph.copy()
    if fallback_modules:
        inline_and_mark(graph, module, fallback_modules)
    ir.C._jit_pass_inline(graph)
    if _resolve_indices(graph, module):
        ir.C._jit_pass_inline(graph)
    make_plain(graph, keep_objects=keep_objects)
    # a trace that was not saved contains the shapes of its example inputs
    ir.C._jit_pass_erase_shape_information(graph)
    ir.split_uninitialized(graph)
    for node in ir.nodes_of(graph, "prim::SetAttr"):
        if not source_range(node):
            # the source location of the value, for the error
            node.copyMetadata(node.inputsAt(1).node())
    return graph


def _resolve_indices(graph: Graph, module: Any) -> bool:
    """Replace each module that forward takes from a list or dictionary by a constant, with an
    interface as its type. Returns whether there was any.
    """
    resolved = False
    for node in ir.nodes_of(graph, "prim::ModuleContainerIndex"):
        key = ir.constant(node.inputsAt(1))
        if key is None:
            continue
        name = str(key)
        kind = _module_of(node.inputsAt(0), module).getattr(name)._type()
        read = ir.insert(graph, "prim::GetAttr", [node.inputsAt(0)], node, [kind])
        read.s_("name", name)
        ir.replace(node, [read.output()])
        resolved = True
    return resolved


def _module_of(value: Value, module: Any) -> Any:
    """The module that a chain of reads from the graph's module gives."""
    node = value.node()
    if node.kind() != "prim::GetAttr":
        return module
    return _module_of(node.inputsAt(0), module).getattr(node.s("name"))


def lower_attributes(graph: Graph, module: Any) -> None:
    """Replace every attribute that is read by a constant.

    `module` is the graph's first input. `training` is false in any mode of the module.
    """
    owner_input = next(iter(graph.inputs()))
    owners = {owner_input.unique(): module}
    containers = list[tuple[str, Any]]()
    read_items = list[Node]()
    # in program order: an object comes before its attributes
    for node in ir.nodes_of(graph, "prim::GetAttr"):
        owner = owners.get(node.inputsAt(0).unique())
        if owner is None:
            continue
        if isinstance(owner, TableEntry):
            _read_entry(graph, node, owner)
            read_items.append(node)
        elif is_table(node):
            items = table_entries(owner, node)
            owners |= {item.output().unique(): entry for item, entry in items}
            read_items += [node, *(item for item, _ in items)]
        else:
            attribute = read_attribute(owner, node)
            if isinstance(attribute, torch._C.ScriptModule | ModuleObject):
                owners[node.output().unique()] = attribute
            elif node.hasUses():
                constant = _replaced(graph, node, attribute)
                if isinstance(attribute, list | dict | tuple):
                    containers.append((node.s("name"), constant))
    for node in reversed(read_items):
        node.destroy()
    _refuse_written(graph, containers)


def _replaced(graph: Graph, node: Node, attribute: Any) -> Value:
    """The constant that replaces the read of an attribute. `training` is false."""
    is_training = node.s("name") == "training" and attribute is True
    constant = _constant(graph, node, False if is_training else attribute)
    node.output().replaceAllUsesWith(constant)
    return constant


def _read_entry(graph: Graph, node: Node, entry: TableEntry) -> None:
    """Replace the read of an attribute by a constant if there is one key: for all others the module
    raises KeyError. Else read a dictionary with this attribute of all objects.
    """
    kind = node.output().type()
    contents = {
        key: _nested_constant(graph, node, attribute, kind)
        for key, attribute in entry.attributes(node).items()
    }
    if len(contents) == 1:
        (content,) = contents.values()
        return node.output().replaceAllUsesWith(content)
    pairs = [
        part
        for key, content in contents.items()
        for part in (ir.insert_constant(graph, key, node), content)
    ]
    table = ir.C.DictType(entry.key.type(), kind)
    attributes = ir.insert(graph, "prim::DictConstruct", pairs, node, [table]).output()
    read = ir.insert(graph, "aten::__getitem__", [attributes, entry.key], node, [kind])
    return node.output().replaceAllUsesWith(read.output())


def _nested_constant(graph: Graph, node: Node, content: Any, kind: Type) -> Value:
    """A value of this type. torch has no constants of lists of tuples, and no empty ones of lists
    whose elements are not tensors.
    """
    constructors = {
        "ListType": "prim::ListConstruct",
        "TupleType": "prim::TupleConstruct",
        "DictType": "prim::DictConstruct",
    }
    constructor = constructors.get(kind.kind())
    if constructor is None or not isinstance(content, list | tuple | dict):
        return _constant(graph, node, content)
    inner = kind.containedTypes()
    items = list(content)
    if isinstance(content, dict):
        items = [part for pair in content.items() for part in pair]
    kinds = inner * (1 if kind.kind() == "TupleType" else len(content))
    values = [
        _nested_constant(graph, node, item, part)
        for item, part in zip(items, kinds, strict=True)
    ]
    return ir.insert(graph, constructor, values, node, [kind]).output()


def _refuse_written(graph: Graph, containers: list[tuple[str, Value]]) -> None:
    """Refuse writes to a list or dictionary of the module. Every read of it is a separate constant,
    so no other read would see the write, and torch's dead code elimination removes it.
    """
    changes = []
    if containers:
        changes = ir.nodes_of(graph, *ir.CHANGES)
    writers = [node for node in changes if _is_container(node.inputsAt(0).type())]
    if not writers:
        return
    aliases = graph.alias_db()
    for name, value in containers:
        is_written = aliases.has_writers(value)
        if is_written or _nests(value.type()):
            aliasing = [
                node
                for node in writers
                if aliases.may_contain_alias(node.inputsAt(0), value)
            ]
            if is_written or aliasing:
                raise _keeps_state(name, (aliasing or writers)[0])


def _is_container(kind: Type) -> bool:
    return kind.kind() in ("ListType", "DictType")


def _nests(kind: Type) -> bool:
    """Whether a container of this type holds other containers. torch does not distinguish writes to
    them from writes to the outer one.
    """
    inner = kind.containedTypes()
    return any(_is_container(part) or _nests(part) for part in inner)


def _keeps_state(name: str, node: Node) -> LoweringError:
    return LoweringError(
        f"forward writes state to the module's attribute {name!r}; a served model cannot keep it",
        where=source_line(node),
        fix="pass the state as an argument and return it",
    )


def _constant(graph: Graph, node: Node, attribute: Any) -> Value:
    """A value of the graph for an attribute: a constant, or a list or dictionary of constants.

    Tensor constants are never inside a branch: they must be in scope even if only a branch writes
    them.
    """
    kind = node.output().type()
    if isinstance(attribute, list | dict) and any(
        isinstance(item, torch.Tensor) for item in _items(attribute)
    ):
        return _container(graph, node, attribute)
    layer = _PACKED.get(kind.str())
    if layer == "linear" or (
        layer and not getattr(torch.ops.quantized, f"{layer}_transpose")(attribute)
    ):
        return _packed(graph, layer, attribute, node)
    if kind.str() == _CELL:
        state, _ = attribute.__getstate__()
        if state[0] in _CELLS:
            return _packed_cell(graph, state, node)
    try:
        before = node
        if (
            isinstance(attribute, torch.Tensor)
            and node.owningBlock().owningNode() is not None
        ):
            before = ir.first_node(graph)
        return ir.insert_constant(graph, attribute, before, origin=node)
    except (RuntimeError, TypeError) as error:
        raise LoweringError(
            f"attribute {node.s('name')!r} holds a {kind.str()}, which cannot be a constant",
            where=source_line(node),
            fix="save the module without that object, for example before it was quantized",
        ) from error


def _container(
    graph: Graph, node: Node, attribute: list[Any] | dict[Any, Any]
) -> Value:
    """A list or dictionary of constants."""
    kind = "prim::ListConstruct"
    if isinstance(attribute, dict):
        kind = "prim::DictConstruct"
    values = [ir.insert_constant(graph, item, node) for item in _items(attribute)]
    return ir.insert(graph, kind, values, node, [node.output().type()]).output()


_PACKED = {
    f"__torch__.torch.classes.quantized.{layer}PackedParamsBase": layer.lower()
    for layer in ("Linear", "Conv2d", "Conv3d")
}
"""By the type of weights that torch.ao.quantization packed for the CPU: the layer's name in the
operators that pack and unpack them.
"""


_CELL = "__torch__.torch.classes.rnn.CellParamsBase"
"""The type of the packed weights of one layer of an LSTM or GRU, or of a recurrent cell."""
_CELLS = {
    "quantized_dynamic": "quantized::make_quantized_cell_params_dynamic",
    "quantized_fp16": "quantized::make_quantized_cell_params_fp16",
}
"""The operators that pack such weights, by the name in the state of the object."""


def _packed_cell(graph: Graph, state: Any, node: Node) -> Value:
    """Nodes that pack the weights of a recurrent cell again.

    The state of the object is that of torch's `CellParamsBase.__getstate__`
    (aten/src/ATen/native/RNN.cpp): a name, tensors, floats, integers and packed linear layers.
    """
    name, biases, _, flags, layers = state
    packed_layers = (_packed(graph, "linear", layer, node) for layer in layers)
    operands = [*packed_layers, *biases]
    if name == "quantized_dynamic":
        reduce_range = bool(flags[0])
        operands.append(reduce_range)
    return Emit(graph, node).op(_CELLS[name], *operands, type=node.output().type())


def _packed(graph: Graph, layer: str, packed: Any, node: Node) -> Value:
    """Nodes that pack a layer's weights and bias again, because Python cannot insert packed weights
    as a constant. Constant propagation replaces the nodes by such constants, so no request packs.
    """
    operators = torch.ops.quantized
    emit = Emit(graph, node)

    def of_layer(name: str) -> Any:
        return getattr(operators, f"{layer}_{name}")(packed)

    prepack = getattr(operators, f"{layer}_prepack").default
    type_of_packed = prepack._schema.returns[0].type
    weight, bias = of_layer("unpack")
    if not weight.is_quantized:  # rounded to float16
        kind = f"quantized::{layer}_prepack_fp16"
        return emit.op(kind, weight, bias, type=type_of_packed)
    kind, arguments = _quantizing_call(weight)
    operands = [emit.op(kind, *arguments), bias]
    if layer != "linear":
        names = ("stride", "padding", "dilation", "groups")
        operands += [of_layer(name) for name in names]
    return emit.op(f"quantized::{layer}_prepack", *operands, type=type_of_packed)


def _quantizing_call(weight: torch.Tensor) -> tuple[str, list[Any]]:
    """The operator that makes a quantized tensor, and its arguments for this one."""
    if weight.qscheme() == torch.per_tensor_affine:
        return "aten::_make_per_tensor_quantized_tensor", [
            weight.int_repr(),
            weight.q_scale(),
            weight.q_zero_point(),
        ]
    return "aten::_make_per_channel_quantized_tensor", [
        weight.int_repr(),
        weight.q_per_channel_scales(),
        weight.q_per_channel_zero_points(),
        weight.q_per_channel_axis(),
    ]


def _items(container: Any) -> list[Any]:
    """The elements of a list, or the alternating keys and values of a dictionary."""
    if isinstance(container, dict):
        items = []
        for key, value in container.items():
            items += [key, value]
        return items
    return list(container)


def _is_created(value: Value) -> bool:
    """Whether an object is created in the graph, or belongs to one that is. Its class has a
    constructor, which the class of a module does not have.
    """
    while value.node().kind() in ("prim::GetAttr", "prim::Enter"):
        value = value.node().inputsAt(0)
    return is_object(value.type())


def _drop_self(graph: Graph) -> None:
    """Remove the first input. An attribute that is still written is refused, because its value
    would change between calls.
    """
    for node in ir.nodes_of(graph, "prim::SetAttr"):
        if not _is_created(node.inputsAt(0)):
            raise _keeps_state(node.s("name"), node)
    for node in reversed(ir.nodes_of(graph, "prim::GetAttr")):
        if _is_created(node.inputsAt(0)):
            continue
        if node.hasUses():
            raise LoweringError(
                f"attribute {node.s('name')!r} is read from a module that is chosen at run time",
                where=source_line(node),
            )
        node.destroy()
    for use in next(iter(graph.inputs())).uses():
        raise LoweringError(
            f"forward calls {use.user.kind()} with the module itself, which cannot be part of a "
            "graph: a method under @torch.jit.ignore, or another Python function",
            where=source_line(use.user),
            fix="write the method so that torch.jit.script compiles it, or call it outside",
        )
    graph.eraseInput(0)
