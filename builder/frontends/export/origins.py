"""Source locations and module names for the nodes of a graph that is written by hand.

torch's bindings can copy this metadata from one node to another, and cannot create it. So it is
created where torch does so: a function is compiled whose statements have the wanted locations, and
a tree of modules is inlined whose modules have the wanted names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._C import _jit_tree_views as views
from torch.jit import _recursive

_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_METHOD = "trt_build_names"
_FUNCTION = "trt_build_locations"
_CALLED_AGAIN = re.compile(r"@\d+$")
CODE = "exported: "
"""Begins the last line of a source range: the code at the innermost frame of the model itself."""

Stack = tuple[tuple[str, str], ...]
"""The modules that were being called, outermost first: path and class name."""


class Origins:
    """Gives nodes their source location, and the names of the modules that they belong to.

    `script` has a module for each of the program's, with its name and the name of its class, and
    no parameters.
    """

    def __init__(self, graphs: Iterable[torch.fx.Graph]) -> None:
        """Collect what the nodes of these graphs state in `stack_trace` and `nn_module_stack`."""
        nodes = [node for graph in graphs for node in graph.nodes]
        stacks = dict.fromkeys(map(_stack, nodes))
        texts = dict.fromkeys(filter(None, map(_range_text, nodes)))
        self.script, self._named = _module_nodes(stacks)
        self._function, self._located = _location_nodes(list(texts))

    def describe(self, created: Any, node: torch.fx.Node) -> None:
        """Give the graph's node the location and the module of the program's node."""
        stack = _stack(node)
        if len(stack) > 1:
            created.copyMetadata(self._named[stack[-1][0]])
        text = _range_text(node)
        if text is not None:
            created.copyMetadata(self._located[text])


def location(node: torch.fx.Node) -> str:
    """`model.py:12: x = torch.relu(x)` of a program's node, or its name."""
    frames = _frames(node)
    if not frames:
        return f"the node {node.name}"
    path, line, _, code = next(filter(_is_own, frames), frames[0])
    return f"{path}:{line}: {code}" if code else f"{path}:{line}"


def _stack(node: torch.fx.Node) -> Stack:
    entries = (node.meta.get("nn_module_stack") or {}).values()
    found = []
    for path, kind in entries:
        if "_empty_nn_module_stack" in str(path):
            return ()
        name = kind if isinstance(kind, str) else kind.__qualname__
        class_name = re.sub(r"\W", "_", name.rpartition(".")[2]) or "Module"
        found.append((_CALLED_AGAIN.sub("", str(path)), class_name))
    return tuple(found)


Frame = tuple[str, str, str, str]
"""File, line, function, and the code of the line."""


def _frames(node: torch.fx.Node) -> list[Frame]:
    """The frames of `stack_trace`, innermost first."""
    found: list[Frame] = []
    for line in (node.meta.get("stack_trace") or "").splitlines():
        match = _FRAME.match(line)
        if match:
            found.append((match["path"], match["line"], match["name"], ""))
        elif found and not found[-1][3]:
            found[-1] = (*found[-1][:3], line.strip())
    return [frame for frame in reversed(found) if not frame[0].startswith("<eval_with_key>")]


def _is_own(frame: Frame) -> bool:
    return not re.search(r"(^|[/\\])torch[/\\]", frame[0])


def _range_text(node: torch.fx.Node) -> str | None:
    """The frames as a trace has them, and the code of the model's own line."""
    frames = _frames(node)
    if not frames:
        return None
    calls = "".join(f"{path}({line}): {name}\n" for path, line, name, _ in frames)
    own = next(filter(_is_own, frames), frames[0])
    return f"{calls}{CODE}{own[3]}\n"


def _location_nodes(texts: list[str]) -> tuple[Any, dict[str, Any]]:
    """A node with each of these source ranges, and the function that they are in.

    torch prints a range that is the whole source as it is, as it does for the stacks of a trace.
    """
    if not texts:
        return None, {}
    statements: list[views.Stmt] = []
    for text in texts:
        # a statement's own file and line stand beside the text in the printed graph
        path, _, rest = text.partition("(")
        factory = views.SourceRangeFactory(text, path, int(rest.partition(")")[0]), 0)
        where = factory.make_raw_range(0, len(text))
        name = views.Ident(where, "x")
        call = views.Apply(views.Select(views.Var(name), views.Ident(where, "neg")), [], [])
        statements.append(views.Assign([views.Var(name)], call))
    statements.append(views.Return(where, views.Var(name)))
    tensor = views.Var(views.Ident(where, "Tensor"))
    declared = views.Decl(where, [views.Param(tensor, name, False)], None)
    definition = views.Def(views.Ident(where, _FUNCTION), declared, statements)
    compile_: Any = torch._C._jit_script_compile
    known = {"Tensor": torch.Tensor}
    function = compile_(f"__torch__.{_FUNCTION}", definition, known.get, {})
    nodes = [node for node in function.graph.nodes() if node.kind() == "aten::neg"]
    return function, dict(zip(texts, nodes, strict=True))


def _module_nodes(stacks: Iterable[Stack]) -> tuple[torch.jit.ScriptModule, dict[str, Any]]:
    """The tree of modules, and a node that was inlined from each module but the root."""
    classes = {path: name for stack in stacks for path, name in stack}
    root = _module(classes.get("", "Module"))
    for path in sorted(filter(None, classes)):
        _add(root, path.split("."), classes)
    create: Any = _recursive.create_script_module
    script = create(root, lambda module: [], share_types=False)
    order = list(_define(script, "", classes))
    graph = script._c._get_method(_METHOD).graph.copy()
    inline: Any = torch._C._jit_pass_inline
    inline(graph)
    nodes = [node for node in graph.nodes() if node.kind() == "aten::neg"]
    return script, dict(zip(order, nodes, strict=True))


def _module(class_name: str) -> torch.nn.Module:
    made = type(class_name, (torch.nn.Module,), {"__module__": "exported"})()
    assert isinstance(made, torch.nn.Module)
    return made


def _add(owner: torch.nn.Module, names: list[str], classes: dict[str, str]) -> None:
    """Add the module at this path; what contains it and is never called is a list of modules."""
    for depth, name in enumerate(names, 1):
        children = dict(owner.named_children())
        if name not in children:
            class_name = classes.get(".".join(names[:depth]))
            children[name] = torch.nn.ModuleList() if class_name is None else _module(class_name)
            owner.add_module(name, children[name])
        owner = children[name]


def _define(module: Any, path: str, classes: dict[str, str]) -> Iterator[str]:
    """Define the method that is inlined; the paths of the modules in the order of their nodes.

    A list of modules is never called itself, so its owner calls what is in it.
    """
    lines = [] if not path else ["x = x.neg()"]
    if path:
        yield path
    for route, child in _called(module, (), path, classes):
        inner = ".".join([path, *route]).lstrip(".")
        yield from _define(child, inner, classes)
        owner = "self"
        for name in route:
            owner = f"getattr({owner}, {name!r})"
        lines.append(f"x = {owner}.{_METHOD}(x)")
    body = "".join(f"    {line}\n" for line in [*lines, "return x"])
    module.define(f"def {_METHOD}(self, x: Tensor) -> Tensor:\n{body}")


def _called(
    module: Any, route: tuple[str, ...], path: str, classes: dict[str, str]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in module.named_children():
        inner = (*route, name)
        if ".".join([path, *inner]).lstrip(".") in classes:
            yield inner, child
        else:
            yield from _called(child, inner, path, classes)
