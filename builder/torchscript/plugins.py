"""Load the user's code before a model is loaded: plugins (converters and passes), and libraries of
custom operators.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from builder.errors import ModelFileError, UsageError

_loaded: dict[str, None] = {}
_libraries: set[Path] = set()


def loaded() -> tuple[str, ...]:
    """The plugins that this process has imported. Child processes import the same."""
    return tuple(_loaded)


def load(plugins: Sequence[str]) -> None:
    """Import each plugin once: a file, or a module by name. Raises UsageError if it cannot be
    imported, or its registrations are invalid.
    """
    for plugin in plugins:
        try:
            _load(plugin)
            path = Path(plugin)
            _loaded[str(path.resolve()) if path.suffix == ".py" else plugin] = None
        except Exception as failure:
            raise UsageError(
                f"the plugin {plugin} failed: {type(failure).__name__}: {failure}"
            ) from failure


def _load(plugin: str) -> None:
    path = Path(plugin)
    if path.suffix != ".py":
        importlib.import_module(plugin)
        return
    path = path.resolve()
    name = f"trt_build_plugin_{path.stem}"
    if getattr(sys.modules.get(name), "__file__", None) != str(path):
        _run(name, path)


def load_libraries(paths: Iterable[Path]) -> None:
    """Load each library once: a shared library by torch.ops.load_library, a Python file
    (torch.library) by running it.

    Unlike a TorchScript file, this runs code from the manifest with all permissions. Raises
    ModelFileError if a library cannot be loaded.
    """
    for path in (path.resolve() for path in paths):
        if path not in _libraries:
            try:
                _load_library(path)
            except Exception as error:
                raise ModelFileError(
                    f"library {path.name} cannot be loaded: {error}", where=str(path)
                ) from error
            _libraries.add(path)


def _load_library(path: Path) -> None:
    import torch

    if path.suffix == ".py":
        _run(f"trt_build_library_{path.stem}_{len(_libraries)}", path)
    else:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]


def _run(name: str, path: Path) -> None:
    """Import the Python file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
