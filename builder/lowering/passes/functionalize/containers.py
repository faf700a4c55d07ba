"""Operators on lists, tuples and dictionaries with known elements, evaluated on Python
containers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.errors import InPlaceError
from builder.graph_types import Node, Value
from builder.lowering import ir
from builder.lowering.passes.functionalize.alias import Alias
from builder.lowering.passes.functionalize.memory import Memory, cannot
from builder.lowering.passes.functionalize.sharing import holds

Handler = Callable[[Memory, Any, Alias], bool]


def construct(memory: Memory, node: Node, values: list[Value]) -> None:
    """Record the elements of a container that is built here. The keys of a dictionary must be
    constants.
    """
    if node.kind() != "prim::DictConstruct":
        memory.container(node.output(), values)
    elif all(ir.is_constant(key) for key in values[::2]):
        keys = [key.toIValue() for key in values[::2]]
        memory.container(node.output(), dict(zip(keys, values[1::2], strict=True)))
    else:
        memory.linked(node.output(), [value for value in values[1::2] if holds(value)])


def _get(memory: Memory, node: Node, box: Alias) -> bool:
    """`list[i]`, `tuple[i]`, `dict[key]`."""
    key = ir.constant(node.inputsAt(1))
    items = box.items or []
    if key is None:
        return False
    if isinstance(items, dict) and key not in items:
        return False
    if not isinstance(items, dict) and not -len(items) <= key < len(items):
        return False
    memory.same(node.output(), memory.alias(items[key]))
    return True


def _unpack(memory: Memory, node: Node, box: Alias) -> bool:
    if len(box.items or ()) != node.outputsSize():
        return False
    for value, item in zip(node.outputs(), box.items or (), strict=True):
        memory.same(value, memory.alias(item))
    return True


def _length(memory: Memory, node: Node, box: Alias) -> bool:
    length = memory.emit.constant(len(box.items or ()))
    memory.same(node.output(), memory.alias(length))
    return True


def _copy(memory: Memory, node: Node, box: Alias) -> bool:
    if isinstance(box.items, dict):
        return _new_dict(memory, node, dict(box.items))
    return _new(memory, node, list(box.items or ()))


def _new_dict(memory: Memory, node: Node, items: dict[str, Value]) -> bool:
    """Replace the node's output by a new dictionary."""
    pairs = []
    for key, item in items.items():
        pairs += [memory.emit.constant(key), memory.read(item)]
    kind = node.output().type()
    dictionary = memory.emit.op("prim::DictConstruct", *pairs, type=kind)
    memory.same(node.output(), memory.container(dictionary, items))
    return True


def _new(memory: Memory, node: Node, items: list[Value]) -> bool:
    """Replace the node's output by a new list."""
    values = [memory.read(item) for item in items]
    fresh = memory.emit.op("prim::ListConstruct", *values, type=node.output().type())
    memory.same(node.output(), memory.container(fresh, items))
    return True


def _slice(memory: Memory, node: Node, box: Alias) -> bool:
    bounds = ir.inputs(node)[1:]
    if not isinstance(box.items, list) or not all(
        ir.is_constant(bound) for bound in bounds
    ):
        return False
    return _new(memory, node, box.items[slice(*(bound.toIValue() for bound in bounds))])


def _concatenate(memory: Memory, node: Node, box: Alias) -> bool:
    added = memory.alias(node.inputsAt(1)).items
    if not isinstance(box.items, list) or not isinstance(added, list):
        return False
    return _new(memory, node, [*box.items, *added])


def _repeat(memory: Memory, node: Node, box: Alias) -> bool:
    """`[1] * 4`"""
    times = ir.constant(node.inputsAt(1))
    if not isinstance(box.items, list) or not isinstance(times, int):
        return False
    return _new(memory, node, box.items * times)


def _contains(memory: Memory, node: Node, box: Alias) -> bool:
    key = ir.constant(node.inputsAt(1))
    items = box.items
    if isinstance(items, list):
        items = _constants(memory, items)
    if items is None or key is None:
        return False
    memory.same(node.output(), memory.alias(memory.emit.constant(key in items)))
    return True


def _constants(memory: Memory, items: list[Value]) -> list[Any] | None:
    """The Python values of elements; None if one is not known."""
    values = [memory.read(item) for item in items]
    if not all(map(ir.is_constant, values)):
        return None
    return [value.toIValue() for value in values]


def _extreme(best: Callable[[list[Any]], Any]) -> Handler:
    """`min` and `max` of one list."""

    def handler(memory: Memory, node: Node, box: Alias) -> bool:
        items = None
        if isinstance(box.items, list):
            items = _constants(memory, box.items)
        if (
            not items
            or node.inputsSize() != 1
            or not all(type(item) is int for item in items)
        ):
            return False
        memory.same(node.output(), memory.alias(memory.emit.constant(best(items))))
        return True

    return handler


def _sorted(memory: Memory, node: Node, box: Alias) -> bool:
    """`sorted` of numbers or strings."""
    items = None
    if isinstance(box.items, list):
        items = _constants(memory, box.items)
    if items is None:
        return False
    if not all(isinstance(item, int | str) for item in items):
        return False
    return _new(memory, node, [memory.emit.constant(item) for item in sorted(items)])


def _to_dict(memory: Memory, node: Node, box: Alias) -> bool:
    """`dict` and `OrderedDict` of pairs, or of a dictionary."""
    if isinstance(box.items, dict):
        return _new_dict(memory, node, dict(box.items))
    pairs = [memory.alias(item).items for item in box.items or ()]
    items = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        key, value = pair
        key = memory.read(key)
        if not ir.is_constant(key):
            return False
        items[key.toIValue()] = value
    return _new_dict(memory, node, items)


def _get_or(memory: Memory, node: Node, box: Alias) -> bool:
    """`dict.get(key)`, with a default or None."""
    key, *default = ir.inputs(node)[1:]
    if not isinstance(box.items, dict) or not ir.is_constant(key):
        return False
    default_value = default[0] if default else memory.emit.constant(None)
    memory.same(
        node.output(), memory.alias(box.items.get(key.toIValue(), default_value))
    )
    return True


def _keys(memory: Memory, node: Node, box: Alias) -> bool:
    return isinstance(box.items, dict) and _new(
        memory, node, [memory.emit.constant(key) for key in box.items]
    )


def _pairs(memory: Memory, node: Node, box: Alias) -> bool:
    """`dict.items()`: a list of tuples whose elements are known as well."""
    if not isinstance(box.items, dict):
        return False
    pair = node.output().type().getElementType()
    pairs = []
    for key, item in box.items.items():
        parts = [memory.emit.constant(key), item]
        values = [memory.read(part) for part in parts]
        new_tuple = memory.emit.op("prim::TupleConstruct", *values, type=pair)
        memory.container(new_tuple, parts)
        pairs.append(new_tuple)
    return _new(memory, node, pairs)


def _views(view: Callable[[dict[Any, Any]], list[Any]]) -> Handler:
    def handler(memory: Memory, node: Node, box: Alias) -> bool:
        return isinstance(box.items, dict) and _new(memory, node, view(box.items))

    return handler


BUILDERS = frozenset(["aten::dict", "aten::items"])
"""Operators that can only be lowered by this pass."""

READERS: dict[str, Handler] = {
    "aten::dict": _to_dict,
    "aten::sorted": _sorted,
    "prim::min": _extreme(min),
    "prim::max": _extreme(max),
    "aten::__getitem__": _get,
    "prim::TupleIndex": _get,
    "prim::TupleUnpack": _unpack,
    "prim::ListUnpack": _unpack,
    "aten::len": _length,
    "aten::list": _copy,
    "aten::copy": _copy,
    "aten::slice": _slice,
    "aten::add": _concatenate,
    "aten::mul": _repeat,
    "aten::__contains__": _contains,
    "aten::get": _get_or,
    "aten::keys": _keys,
    "aten::items": _pairs,
    "aten::values": _views(lambda items: list(items.values())),
}


def write(memory: Memory, node: Node) -> None:
    """Apply a node's write to a container. Raises InPlaceError if it depends on an unknown
    value.
    """
    box = memory.alias(node.inputsAt(0))
    if box.storage.constant:
        raise cannot(
            node, "changes a list of the model, which would persist to the next request"
        )
    if box.items is None:
        return _write_unknown(memory, node, box)
    arguments = ir.inputs(node)[1:]
    memory.taint_containers(box, node)
    memory.journal.note(box)
    try:
        result = _WRITERS[node.kind()](box.items, memory, *arguments)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise _cannot(node) from error
    for output in node.outputs():
        memory.same(output, box if result is None else memory.alias(result))
    return None


def _key(value: Value) -> Any:
    if not ir.is_constant(value):
        raise ValueError("a key that is not known")
    return value.toIValue()


def _dict(items: dict[str, Value]) -> dict[Any, Any]:
    if not isinstance(items, dict):
        raise TypeError("a dictionary whose keys are not known")
    return items


def _extend(items: list[Any], memory: Memory, added: Value) -> None:
    items_added: Any = memory.alias(added).items
    items.extend(items_added)


def _remove(items: list[Value], memory: Memory, value: Value) -> None:
    keys = [_key(item) for item in items]
    del items[keys.index(_key(value))]


def _sort(items: list[Value], memory: Memory, reverse: Value) -> None:
    items.sort(key=_key, reverse=_key(reverse))


def _multiply(items: list[Value], memory: Memory, times: Value) -> None:
    items[:] = items * _key(times)


_WRITERS: dict[str, Callable[..., Any]] = {
    "aten::append": lambda items, memory, value: items.append(value),
    "aten::extend": _extend,
    "aten::add_": _extend,
    "aten::update": lambda items, memory, other: items.update(
        _dict(memory.alias(other).items)
    ),
    "aten::setdefault": lambda items, memory, key, value: items.setdefault(
        _key(key), value
    ),
    "aten::insert": lambda items, memory, at, value: items.insert(_key(at), value),
    "aten::_set_item": lambda items, memory, key, value: items.__setitem__(
        _key(key), value
    ),
    "aten::Delete": lambda items, memory, key: items.__delitem__(_key(key)),
    "aten::pop": lambda items, memory, *at: items.pop(*map(_key, at)),
    "aten::clear": lambda items, memory: items.clear(),
    "aten::reverse": lambda items, memory: items.reverse(),
    "aten::remove": _remove,
    "aten::sort": _sort,
    "aten::mul_": _multiply,
}


def _write_unknown(memory: Memory, node: Node, box: Alias) -> None:
    """A list of unknown length can grow at either end, and be reversed."""
    memory.taint_containers(box, node)
    if node.kind() == "aten::reverse":
        return memory.renew(
            box,
            memory.emit.op(
                "aten::slice", memory.now(box), None, None, -1, type=box.current.type()
            ),
        )
    first = node.kind() == "aten::insert" and ir.constant(node.inputsAt(1)) == 0
    if not first and node.kind() not in ("aten::append", "aten::extend", "aten::add_"):
        raise _cannot(node)
    added = node.inputsAt(2 if first else 1)
    more = memory.read(added)
    if node.kind() in ("aten::append", "aten::insert"):
        more = memory.emit.list([more], box.current.type().getElementType())
    parts = (more, memory.now(box)) if first else (memory.now(box), more)
    longer = memory.emit.op("aten::add", *parts, type=box.current.type())
    box.storage.link(memory.storages(added))
    memory.renew(box, longer)
    for output in node.outputs():
        memory.same(output, box)
    return None


def _cannot(node: Node) -> InPlaceError:
    return cannot(
        node,
        "changes a container whose content is known only at run time",
        "build the list or dictionary in one expression, or in a loop with a fixed trip count",
    )
