"""Loads a model file by its suffix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder import torchscript
from builder.errors import ModelFileError

if TYPE_CHECKING:
    import torch

    from builder.frontends.export.program import ExportedModule

SUFFIX = ".pt2"
"""Suffix of files that torch.export.save writes."""


def preloaded(paths: Iterable[Path | str]) -> tuple[str, ...]:
    """The modules that a process imports before it forks children that load these files."""
    if all(Path(path).suffix != SUFFIX for path in paths):
        return ()
    from builder.frontends.export.loading import PRELOADED

    return (PRELOADED,)


def load(
    path: Path | str, module: str | None = None, *, libraries: Sequence[Path] = ()
) -> torch.jit.ScriptModule | ExportedModule:
    """Load the module of a TorchScript file, or the program of a `.pt2` file, on the CPU.

    `module` names a submodule or method of a TorchScript file. `libraries` register the custom
    operators that the file uses. Raises ModelFileError and LoweringError.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        return torchscript.load(path, module, libraries=libraries)
    from builder.frontends.export import loading

    if module:
        raise ModelFileError(
            f"{path.name} is an exported program, which has no submodule or method {module!r}",
            where=str(path),
            fix="export the submodule by itself: torch.export.export(model.encoder, inputs)",
        )
    return loading.load(path, libraries=libraries)
