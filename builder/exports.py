"""The public names of a package, imported on first use (PEP 562).

A package lists its public names in `__init__.pyi`, one import a line. Type checkers read the same
list. `__init__.py` attaches it:

    __getattr__, __dir__ = lazy(__name__, __file__)

The library lazy_loader does the same, but it keeps each value in the package. A test that replaces
a function in its file would then have no effect after the first use, or an effect without end.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy(
    package: str, init: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the package whose `__init__.py` is the file `init`."""
    # read on first use: commands import many packages
    stub = Path(init).with_suffix(".pyi")
    sys.modules[package].__class__ = _Package

    def load(name: str) -> Any:
        exported = names(stub)
        if name not in exported:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        file = exported[name]
        if not file:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f"{package}.{file}"), name)

    return load, lambda: sorted({*vars(sys.modules[package]), *names(stub)})


@cache
def names(stub: Path) -> dict[str, str]:
    """The public names in an `__init__.pyi`, each with the file that defines it.

    `build.py` of the package is "build", `layers/node.py` is "layers.node". A public module has "".
    """
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    return {
        alias.name: node.module or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }


class _Package(ModuleType):
    """A package with a public function and a file of the same name, such as `build`. The import
    system assigns the module to the package, which would hide the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        stub = Path(str(self.__file__)).with_suffix(".pyi")
        is_file = value is sys.modules.get(f"{self.__name__}.{name}")
        if not (is_file and names(stub).get(name) == name):
            super().__setattr__(name, value)
