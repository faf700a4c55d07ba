"""The uses of TensorRT's Python interface in the source of trt-build: names, members, calls.

Types are followed as far as an expression shows them: `trt.X`, `ctx.net` and `network`
(INetworkDefinition), `layer` if nothing more is known (any layer, loop or conditional), and results
of calls on known classes by TensorRT's own signatures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PACKAGES = (
    "conversion",
    "engine",
    "reference",
    "store",
    "repository",
    "partition",
    "parity",
    "cli",
    "templates",
)
KNOWN = {
    "trt": "",
    "net": "INetworkDefinition",
    "network": "INetworkDefinition",
    "layer": "ILayer+",
    "conditional": "IIfConditional",
}
"""By the name of a variable or attribute; `ILayer+` is any layer, loop or conditional."""
RUNTIME = {
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "runtime": "Runtime",
}
HERE = {
    "engine/config.py": {"config": "IBuilderConfig"},
    "engine/tensorrt8/config.py": {"config": "IBuilderConfig"},
    "engine/run.py": RUNTIME,
    "engine/timing.py": {
        "builder": "Builder",
        "settings": "IBuilderConfig",
        "whole": "ITimingCache",
    },
    "conversion/convert.py": {"tensor": "ITensor"},
    "templates/runtime/trt_build_runtime/engine.py": RUNTIME,
    "templates/runtime/trt_build_runtime/call.py": {"context": "IExecutionContext"},
    "templates/runtime/trt_build_runtime/activations.py": RUNTIME,
}
"""The same for names that stand for a class of TensorRT's in these files only."""


ANY = "an enumeration's"
SPELLED = re.compile(r"[A-Z][A-Z0-9_]+")


@dataclass(frozen=True)
class Use:
    """`owner` is a class, "" for the module; `call` is (positional arguments, keywords), None if it
    is not called.
    """

    where: str
    owner: str
    name: str
    call: tuple[int, tuple[str, ...]] | None = None


def uses(root: Path, interface: Any) -> Iterator[Use]:
    """Every use in the packages that call TensorRT. `interface` gives the types of results."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            file = str(path.relative_to(root))
            tree = parsed(path)
            for scope in _scopes(tree):
                yield from _Scope(
                    file, interface, {**KNOWN, **HERE.get(file, {})}
                ).read(scope)
            yield from (
                Use(f"{file}:{line}", ANY, name)
                for name, line in _spelled(tree)
                if interface.anywhere(name)
            )


def _spelled(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Members of enumerations that are named in text, as `"ELU"`, for getattr."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and SPELLED.fullmatch(node.value)
        ):
            yield node.value, node.lineno


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def attributes(root: Path) -> Iterator[str]:
    """Every attribute name that these packages read."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield from (
                node.attr
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.Attribute)
            )


def _scopes(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """The statements of the module, and of each function, without those of inner functions."""
    yield tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.body


@dataclass
class _Scope:
    file: str
    interface: Any
    known: dict[str, str]
    types: dict[str, str] = field(default_factory=dict)

    def read(self, body: list[ast.stmt]) -> Iterator[Use]:
        nodes = [node for statement in body for node in _own(statement)]
        for node in nodes:
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                self._assign(node.targets[0].id, self.type(node.value))
        calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Attribute):
                owner = self.type(node.value)
                if owner is not None and not node.attr.startswith("__"):
                    yield Use(
                        f"{self.file}:{node.lineno}",
                        owner,
                        node.attr,
                        _call(calls.get(id(node))),
                    )

    def _assign(self, name: str, kind: str | None) -> None:
        """A name with two types in one scope has its usual type, or none."""
        if kind is None or self.types.setdefault(name, kind) != kind:
            self.types[name] = self.known.get(name, "?")

    def type(self, node: ast.expr) -> str | None:
        """The class of an expression's value; "" for the module itself; None if it is unknown."""
        if isinstance(node, ast.Name):
            known = self.types.get(node.id, self.known.get(node.id))
            return None if known == "?" else known
        if isinstance(node, ast.Attribute):
            owner = self.type(node.value)
            if owner == "":
                return f"type {node.attr}"
            if (
                owner is not None
                and owner.startswith("type ")
                and node.attr[:1].isupper()
            ):
                # of an enumeration within a class: pybind11 exports its values to the class
                return owner
            return self.known.get(node.attr) if owner is None else None
        if isinstance(node, ast.Call):
            return self._returned(node)
        return None

    def _returned(self, node: ast.Call) -> str | None:
        kind = self.type(node.func) if isinstance(node.func, ast.Attribute) else None
        if kind is not None and kind.startswith("type "):
            return kind.removeprefix("type ")
        if isinstance(node.func, ast.Attribute):
            owner = self.type(node.func.value)
            return self.interface.returned(owner, node.func.attr) if owner else None
        return None


def _own(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a statement, but not those of functions defined there."""
    if isinstance(statement, ast.FunctionDef):
        return
    yield statement
    for child in ast.iter_child_nodes(statement):
        yield from _own(child)


def _call(node: ast.Call | None) -> tuple[int, tuple[str, ...]] | None:
    """Positional arguments and keywords; None for no call, or one with stars."""
    if (
        node is None
        or any(isinstance(a, ast.Starred) for a in node.args)
        or any(k.arg is None for k in node.keywords)
    ):
        return None
    return len(node.args), tuple(str(keyword.arg) for keyword in node.keywords)
