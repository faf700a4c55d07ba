"""Load a TorchScript file, or one submodule or method of it, in eval mode on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import ModelFileError
from builder.torchscript import operators, trial
from builder.torchscript.archive import inspect
from builder.torchscript.plugins import load_libraries

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


def load(
    path: Path | str,
    module: str | None = None,
    *,
    check_in_child: bool = True,
    libraries: Sequence[Path] = (),
) -> torch.jit.ScriptModule:
    """The file's module, or the submodule (`encoder.0`) or method (`forward_features`) that
    `module` names.

    First the archive is inspected, and its source is checked for operators with side effects
    outside tensors. Then it is loaded in a child process with limits of memory and time: once for
    each SHA-256, and not at all with `check_in_child=False`. Finally it is loaded here. A method is
    returned as a module whose forward calls it. `libraries` have the custom operators that the file
    uses (see load_libraries).

    Raises ModelFileError if the file is not TorchScript, cannot be loaded, or has no such part.
    """
    facts = inspect(path)
    custom = bool(libraries)
    operators.check_source(facts.path, custom=custom)
    if check_in_child:
        trial.check_in_child(facts, libraries)
    load_libraries(libraries)
    loaded = _load(facts.path)
    operators.check_graphs(loaded, facts.path, custom=custom)
    loaded.eval()
    part = loaded
    if module:
        part = _part(loaded, module.split("."), facts.path)
    if not part._c._has_method("forward"):
        names = ", ".join(methods(part)) or "it has no method at all"
        raise ModelFileError(
            f"{facts.path.name} has no forward",
            where=_where(facts.path, module),
            fix=f"name a method: {names}",
        )
    return part


def _load(path: Path) -> torch.jit.ScriptModule:
    import torch

    try:
        loaded: torch.jit.ScriptModule = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except (
        Exception
    ) as error:  # torch raises RuntimeError, and __setstate__ may raise others
        raise ModelFileError(
            f"{path.name} cannot be loaded: {error}", where=str(path)
        ) from error
    log.debug("loaded %s", path)
    return loaded


def _where(path: Path, module: str | None) -> str:
    return f"{path}, module {module!r}" if module else str(path)


def _part(owner: Any, steps: list[str], path: Path) -> Any:
    """The submodule at the path `steps`. The last step may be a method."""
    for index, step in enumerate(steps):
        children = dict(owner.named_children())
        if step in children:
            owner = children[step]
        elif index == len(steps) - 1 and step in methods(owner):
            if step == "forward":
                return owner
            return as_module(owner, step)
        else:
            raise _no_such_part(owner, steps, index, path)
    return owner


def _no_such_part(
    owner: Any, steps: list[str], index: int, path: Path
) -> ModelFileError:
    from builder.manifest import did_you_mean

    parts = [*dict(owner.named_children()), *methods(owner)]
    parent = ".".join(steps[:index]) or "the file's module"
    message = f"{parent} has no submodule or method {steps[index]!r}"
    return ModelFileError(
        message, where=str(path), fix=did_you_mean(steps[index], parts)
    )


INNER = "inner"
"""The wrapper's attribute for the module whose method it calls. Qualified names of submodules start
with it.
"""


def methods(module: Any) -> list[str]:
    """The names of the module's methods, without torch's own."""
    return sorted(
        name for name in module._c._method_names() if not name.startswith("__")
    )


def as_module(owner: Any, method: str) -> Any:
    """A ScriptModule in eval mode whose forward calls `owner`'s method, with the same arguments and
    defaults.
    """
    import torch

    class Method(torch.nn.Module):
        pass

    holder = Method()
    setattr(holder, INNER, owner)
    wrapper = torch.jit.script(holder)
    arguments = getattr(owner, method).schema.arguments[1:]
    parameters = ", ".join(["self", *map(_parameter, arguments)])
    names = ", ".join(argument.name for argument in arguments)
    source = f"def forward({parameters}):\n    return self.{INNER}.{method}({names})\n"
    try:
        wrapper.define(source)
    except RuntimeError as error:
        raise ModelFileError(
            f"method {method!r} cannot be called by itself: {error}"
        ) from error
    return wrapper.eval()


def _parameter(argument: Any) -> str:
    text = f"{argument.name}: {argument.type.annotation_str}"
    if argument.has_default_value():
        return f"{text} = {argument.default_value!r}"
    return text
