"""Refuse files with operators that have side effects outside tensors, before and after loading."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import ModelFileError
from builder.templates import findings, graph_findings

if TYPE_CHECKING:
    import torch

_MOST_LISTED = 8
_FIX = "remove the call from the model; for a custom operator, name its file under `libraries`"


def check_source(path: Path, *, custom: bool = False) -> None:
    """Check every operator in the archive's source, without loading it.

    `custom` allows namespaces that torch does not have. Raises ModelFileError with each operator's
    name and line.
    """
    try:
        problems = findings(path, custom)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise ModelFileError(
            f"{path.name} cannot be read: {error}", where=str(path)
        ) from error
    _refuse(path, list(map(str, problems)))


def check_graphs(
    module: torch.jit.ScriptModule, path: Path, *, custom: bool = False
) -> None:
    """Check the graphs of every method of a loaded module and its submodules, including
    `__setstate__`.

    Raises ModelFileError with each operator's name.
    """
    problems = [
        f"{method}: {finding}"
        for method, graph in _graphs(module)
        for finding in graph_findings(graph, custom)
    ]
    _refuse(path, list(dict.fromkeys(problems)))


def _graphs(module: torch.jit.ScriptModule) -> Iterator[tuple[str, object]]:
    """(name, graph) of each method. Modules of one type share their methods.

    Calls of the file's top-level module, and of a `__setstate__`, are inlined. Inlining every
    method of every submodule would take quadratic time.
    """
    seen: set[str] = set()
    for child in module.modules():
        core: Any = child._c
        kind = core._type().qualified_name()
        if kind in seen:
            continue
        seen.add(kind)
        for name in core._method_names():
            method = core._get_method(name)
            inlined = child is module or name == "__setstate__"
            yield f"{kind}.{name}", method.inlined_graph if inlined else method.graph


def _refuse(path: Path, problems: list[str]) -> None:
    if problems:
        listed = problems[:_MOST_LISTED]
        if len(problems) > _MOST_LISTED:
            listed.append("...")
        lines = "\n".join(f"  {problem}" for problem in listed)
        message = (
            f"{path.name} names operators that may have side effects outside"
            f" tensors:\n{lines}"
        )
        raise ModelFileError(message, where=str(path), fix=_fix(problems))


def _fix(problems: list[str]) -> str:
    """The fix for these operators. torchvision provides its own."""
    if all("torchvision::" in problem for problem in problems):
        return (
            "install torchvision, write `import torchvision` in a .py file, and name that file"
            " under `libraries`"
        )
    return _FIX
