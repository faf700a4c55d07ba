"""Adds source locations and module names to the nodes of a graph that is built node by node.

torch's bindings can copy this metadata between nodes, but cannot create it. It is therefore created
by the same means as in torch. A function is compiled whose statements have the required locations,
and a tree of modules is inlined whose modules have the required names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._C import _jit_tree_views as views

C: Any = torch._C
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_METHOD = "trt_build_names"
_FUNCTION = "trt_build_locations"
_IN_TORCH = re.compile(r"(^|[/\\])torch[/\\]")
_CALLED_AGAIN = re.compile(r"@\d+$")
CODE = "exported: "
"""Prefix of the last line of a source range: the code at the innermost frame of the model
itself.
"""

_NO_SOURCE = "exported(0)\n"
"""The range of a node whose module is known and whose source is not: it has no frame."""

Stack = tuple[tuple[str, str], ...]
"""The active module calls, outermost first: path and class name."""


class Origins:
    """Assigns nodes their source location and the names of their modules.

    `script` has a module for each module of the program, with its name and class name, and no
    parameters.
    """

    def __init__(self, graphs: Iterable[torch.fx.Graph]) -> None:
        """Collect `stack_trace` and `nn_module_stack` of the nodes of these graphs."""
        stacks = dict[Any, Stack]()
        texts = dict[str, str | None]()
        self._keys: dict[torch.fx.Node, tuple[Any, str]] = {}
        nodes = [node for graph in graphs for node in graph.nodes]
        for node in nodes:
            entries, trace = self._keys[node] = _entries(node), _trace(node)
            if entries not in stacks:
                stacks[entries] = _stack(entries)
            if trace not in texts:
                texts[trace] = _range_text(trace)
        self.script, module_nodes, self._inlined = _module_nodes(
            dict.fromkeys(stacks.values())
        )
        distinct = dict.fromkeys(text for text in texts.values() if text is not None)
        if module_nodes and None in texts.values():
            distinct[_NO_SOURCE] = None
        self._function, located = _location_nodes(list(distinct))
        self._modules = {
            entries: module_nodes[stack[-1][0]]
            for entries, stack in stacks.items()
            if len(stack) > 1
        }
        self._locations = {
            trace: located[text] for trace, text in texts.items() if text is not None
        }
        self._nowhere = located.get(_NO_SOURCE)

    def described(self, node: torch.fx.Node) -> tuple[Any, ...]:
        """The nodes whose metadata has the module and the location of the program's node."""
        entries, trace = self._keys[node]
        module = self._modules.get(entries)
        line = self._locations.get(trace)
        if module is None:
            return () if line is None else (line,)
        # the module's node has a range of its own, which is not that of the program's node
        return module, self._nowhere if line is None else line


def location(node: torch.fx.Node) -> str:
    """The location of a program's node as `model.py:12: x = torch.relu(x)`, or its name."""
    frames = _frames(_trace(node))
    if not frames:
        return f"the node {node.name}"
    path, line, _, code = _own_frame(frames)
    if code:
        return f"{path}:{line}: {code}"
    return f"{path}:{line}"


def _entries(node: torch.fx.Node) -> tuple[tuple[Any, Any], ...]:
    """The path and the class of each module in `nn_module_stack`, outermost first."""
    stack = node.meta.get("nn_module_stack")
    return tuple(stack.values()) if stack else ()


def _trace(node: torch.fx.Node) -> str:
    trace = node.meta.get("stack_trace")
    if isinstance(trace, str):
        return trace
    return ""


def _stack(entries: tuple[tuple[Any, Any], ...]) -> Stack:
    stack = []
    for path, kind in entries:
        if "_empty_nn_module_stack" in str(path):
            return ()
        name = kind if isinstance(kind, str) else kind.__qualname__
        class_name = re.sub(r"\W", "_", name.rpartition(".")[2]) or "Module"
        stack.append((_CALLED_AGAIN.sub("", str(path)), class_name))
    return tuple(stack)


Frame = tuple[str, str, str, str]
"""File, line, function, and the code of the line."""


def _frames(trace: str) -> list[Frame]:
    """The frames of `stack_trace`, innermost first."""
    frames: list[Frame] = []
    for line in trace.splitlines():
        match = _FRAME.match(line)
        if match:
            frames.append((match["path"], match["line"], match["name"], ""))
        elif frames and not frames[-1][3]:
            frames[-1] = (*frames[-1][:3], line.strip())
    return [
        frame
        for frame in reversed(frames)
        if not frame[0].startswith("<eval_with_key>")
    ]


def _own_frame(frames: list[Frame]) -> Frame:
    """The innermost frame of the model's own code; the innermost of all if there is none."""
    for frame in frames:
        if not _IN_TORCH.search(frame[0]):
            return frame
    return frames[0]


def _range_text(trace: str) -> str | None:
    """The frames in the format of a trace, and the code of the model's own line."""
    frames = _frames(trace)
    if not frames:
        return None
    calls = "".join(f"{path}({line}): {name}\n" for path, line, name, _ in frames)
    _, _, _, code = _own_frame(frames)
    return f"{calls}{CODE}{code}\n"


def _location_nodes(texts: list[str]) -> tuple[Any, dict[str, Any]]:
    """Return a node with each of these source ranges, and the function that contains them.

    torch prints a range that covers the whole source unchanged, as it does for the stacks of a
    trace.
    """
    if not texts:
        return None, {}
    statements: list[views.Stmt] = []
    for text in texts:
        # the printed graph shows a statement's own file and line beside the text
        path, _, after_path = text.partition("(")
        factory = views.SourceRangeFactory(
            text, path, int(after_path.partition(")")[0]), 0
        )
        where = factory.make_raw_range(0, len(text))
        name = views.Ident(where, "x")
        call = views.Apply(
            views.Select(views.Var(name), views.Ident(where, "neg")), [], []
        )
        statements.append(views.Assign([views.Var(name)], call))
    statements.append(views.Return(where, views.Var(name)))
    tensor = views.Var(views.Ident(where, "Tensor"))
    declared = views.Decl(where, [views.Param(tensor, name, False)], None)  # noqa: FBT003
    definition = views.Def(views.Ident(where, _FUNCTION), declared, statements)
    compile_: Any = torch._C._jit_script_compile
    names = {"Tensor": torch.Tensor}
    function = compile_(f"__torch__.{_FUNCTION}", definition, names.get, {})
    nodes = [node for node in function.graph.nodes() if node.kind() == "aten::neg"]
    return function, dict(zip(texts, nodes, strict=True))


_TYPES: dict[Any, Any] = {}
"""Module types so far, by class, children, and whether the module belongs to the program: then its
method differs.

Programs share these types, as most models have modules of torch.nn. Compiling their methods takes
most of the time of `_module_nodes`.
"""
_DEFINED: set[int] = set()
"""The types with a compiled method."""
_MOST_TYPES = 10_000


class ModuleTree:
    """A module of the program: its class and children, in the form of a ScriptModule, and torch's
    module `_c`.

    Wrapping every module in a ScriptModule would take as long as writing the graph.
    """

    def __init__(self, class_name: str | None) -> None:
        self.is_list = class_name is None
        self.original_name = class_name or "ModuleList"
        self.children: dict[str, ModuleTree] = {}
        self.concrete: Any = None
        self._c: Any = None

    def named_children(self) -> Iterator[tuple[str, ModuleTree]]:
        """The name and module of each child."""
        yield from self.children.items()

    def named_modules(self, path: str = "") -> Iterator[tuple[str, ModuleTree]]:
        """The path and module of this module and all its descendants."""
        yield path, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{path}.{name}" if path else name)

    def called(
        self, route: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], ModuleTree]]:
        """The modules that this one calls, with the names on the path to them. A list is never
        called itself.
        """
        for name, child in self.children.items():
            inner = (*route, name)
            if child.is_list:
                yield from child.called(inner)
            else:
                yield inner, child

    def create(self, is_root: bool = False) -> None:
        """Create torch's modules, without the search of a Python class for methods and attributes
        in torch.jit.script.

        Modules of one class with the same children share a type.
        """
        for child in self.children.values():
            child.create()
        contents = [(name, id(child.concrete)) for name, child in self.children.items()]
        key = (is_root, self.is_list, self.original_name, *contents)
        if key not in _TYPES:
            _TYPES[key] = self._type()
        self.concrete = _TYPES[key]
        self._c = C._create_module_with_type(self.concrete.jit_type)
        for name, child in self.children.items():
            self._c.setattr(name, child._c)

    def _type(self) -> Any:
        kind = type(self.original_name, (torch.nn.Module,), {"__module__": "exported"})
        builder = C.ConcreteModuleTypeBuilder(kind)
        for name, child in self.children.items():
            builder.add_module(name, child.concrete)
        if self.is_list:
            builder.set_module_list()
        return builder.build()


def _module_nodes(stacks: Iterable[Stack]) -> tuple[ModuleTree, dict[str, Any], Any]:
    """Return the tree of modules, a node inlined from each module but the root, and the graph of
    these nodes.
    """
    classes = {path: name for stack in stacks for path, name in stack}
    root = ModuleTree(classes.get("", "Module"))
    for path in sorted(filter(None, classes)):
        _add(root, path.split("."), classes)
    if len(_TYPES) > _MOST_TYPES:
        _TYPES.clear()
        _DEFINED.clear()
    root.create(is_root=True)
    order = list(_define(root, ""))
    graph = root._c._get_method(_METHOD).graph.copy()
    C._jit_pass_inline(graph)
    nodes = [node for node in graph.nodes() if node.kind() == "aten::neg"]
    return root, dict(zip(order, nodes, strict=True)), graph


def _add(owner: ModuleTree, names: list[str], classes: dict[str, str]) -> None:
    """Add the module at this path. A parent that is never called is a list of modules."""
    for depth, name in enumerate(names, 1):
        if name not in owner.children:
            owner.children[name] = ModuleTree(classes.get(".".join(names[:depth])))
        owner = owner.children[name]


def _define(tree: ModuleTree, path: str) -> Iterator[str]:
    """Define the method that is inlined, once for each type.

    Returns the paths of the modules in the order of their nodes.
    """
    lines = [] if not path else ["x = x.neg()"]
    if path:
        yield path
    for route, child in tree.called():
        yield from _define(child, ".".join([path, *route]).lstrip("."))
        owner = "self"
        for name in route:
            owner = f"getattr({owner}, {name!r})"
        lines.append(f"x = {owner}.{_METHOD}(x)")
    if id(tree.concrete) in _DEFINED:
        return
    body = "".join(f"    {line}\n" for line in [*lines, "return x"])
    method = f"def {_METHOD}(self, x: Tensor) -> Tensor:\n{body}"
    tree._c._define(tree.concrete, method, {"Tensor": torch.Tensor}.get)
    _DEFINED.add(id(tree.concrete))
