"""Wrap one method of a ScriptModule as a module, so that all other packages only see `forward`."""

from __future__ import annotations

from typing import Any

from builder.errors import ModelFileError

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
