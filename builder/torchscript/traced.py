"""The dtypes and shapes of the example inputs in a file of torch.jit.trace (the values are not
stored).

torch.jit.load drops them, so the pickle is read here, by an unpickler that can only create these
descriptions.
"""

from __future__ import annotations

import collections
import io
import pickle
from dataclasses import dataclass
from typing import Any

from builder.dtypes import TABLE

_STORAGES = {f"{entry.scalar_type}Storage": entry.name for entry in TABLE}


@dataclass(frozen=True)
class Example:
    """One tensor of the trace."""

    dtype: str
    shape: tuple[int, ...]


def _tensor(
    dtype: str, offset: int, size: tuple[int, ...], *ignored: object
) -> Example:
    return Example(dtype, tuple(size))


def _itself(value: Any, *ignored: object) -> Any:
    return value


_MEANINGS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch.jit._pickle", "restore_type_tag"): _itself,
    ("torch.jit._pickle", "build_tensorlist"): _itself,
}


class _Descriptions(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name == "torch" and global_name in _STORAGES:
            return _STORAGES[global_name]
        if (module_name, global_name) not in _MEANINGS:
            raise pickle.UnpicklingError(f"{module_name}.{global_name}")
        return _MEANINGS[module_name, global_name]

    def persistent_load(self, pid: Any) -> Any:
        return pid[1]


def examples(data: bytes) -> tuple[Example | None, ...]:
    """One Example for each argument of forward, None for one that is not a tensor. Empty if
    nothing can be read.
    """
    try:
        arguments = _Descriptions(io.BytesIO(data)).load()["forward"]
        return tuple(
            argument if isinstance(argument, Example) else None
            for argument in arguments
        )
    # a file may hold any bytes here, and the examples are only hints
    except Exception:
        return ()
