"""An import-linter contract: other packages are imported by their public names only.

`make lint` runs it with the contracts of pyproject.toml. A package's public names are those of its
`__init__.pyi`, or of `__all__` where it has none.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

from builder import exports


class ClosedPackages(Contract):
    """No file of a package imports a file of another one. TYPE_CHECKING imports count, too."""

    type_name = "closed_packages"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        roots = map(path, self.session_options["root_packages"])
        violating = [line for root in roots for line in violations(root)]
        return ContractCheck(kept=not violating, metadata={"found": violating})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["found"]:
            output.print_error(line)
        output.new_line()


def path(package: str) -> Path:
    """The folder of an importable package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def violations(root: Path) -> Iterator[str]:
    """`file:line: what is imported` of each import below the folder `root` of a top-level package
    that reaches into another one of its packages.
    """
    for file in sorted(root.rglob("*.py")):
        package = file.relative_to(root).parts[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for imported in _imported(node, root):
                if imported[0] == package:
                    continue
                named = isinstance(node, ast.ImportFrom) and len(imported) == 2
                public = public_names(root / imported[0]) if named else ()
                if imported[1:] and imported[-1] not in public:
                    name = ".".join([root.name, *imported])
                    yield f"{file.relative_to(root.parent)}:{node.lineno}: {name} is not public"


def _imported(node: Any, root: Path) -> Iterator[list[str]]:
    """The names that the statement imports from packages in `root`, split at their dots."""
    names = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        first, *rest = name.split(".")
        if first == root.name and rest and (root / rest[0]).is_dir():
            yield rest


def public_names(package: Path) -> set[str]:
    """The public names of a package by its folder."""
    stub = package / "__init__.pyi"
    if stub.is_file():
        return set(exports.names(stub))
    init = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    listed = [
        node.value
        for node in init.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return {name for value in listed for name in ast.literal_eval(value)}
