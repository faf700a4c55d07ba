"""Import the user's plugins before a model is loaded: converters and operator libraries."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from builder.errors import UsageError

_loaded: dict[str, None] = {}


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
    name = f"trt_build_plugin_{path.stem}"
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(
        path.resolve()
    ):
        return
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise FileNotFoundError(plugin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
