"""Load libraries of custom operators, which must be loaded before a file that uses them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from builder.errors import ModelFileError

_loaded: set[Path] = set()


def load_libraries(paths: Iterable[Path]) -> None:
    """Load each library once: a shared library by torch.ops.load_library, a Python file
    (torch.library) by running it.

    Unlike a TorchScript file, this runs code from the manifest with all permissions. Raises
    ModelFileError if a library cannot be loaded.
    """
    for path in (path.resolve() for path in paths):
        if path not in _loaded:
            try:
                _load(path)
            except Exception as error:
                raise ModelFileError(
                    f"library {path.name} cannot be loaded: {error}", where=str(path)
                ) from error
            _loaded.add(path)


def _load(path: Path) -> None:
    import torch

    if path.suffix != ".py":
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        return
    name = f"trt_build_library_{path.stem}_{len(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
