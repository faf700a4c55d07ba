"""The globals of a pickle, read from its opcodes without execution.

The allow-list contains the names that torch's own C++ unpickler resolves
(torch/csrc/jit/serialization/unpickler.cpp, readGlobal). A file with other names was not written by
torch.jit.save, and would run code if Python unpickled it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator

_TORCH = {
    "torch.jit._pickle": (
        {"build_intlist", "build_tensorlist", "build_doublelist", "build_boollist"}
        | {"build_tensor_from_id", "restore_type_tag"}
    ),
    "torch._utils": {
        "_rebuild_tensor_v2",
        "_rebuild_qtensor",
        "_rebuild_sparse_tensor",
    },
    "torch._tensor": {"_rebuild_from_type_v2"},
    "builtins": {"complex"},
    "collections": {"OrderedDict"},
    "torch": (
        {"device", "Tensor"}
        | {
            "per_tensor_affine",
            "per_channel_affine",
            "per_tensor_symmetric",
            "per_channel_symmetric",
        }
        | {"per_channel_affine_float_qparams"}
    ),
}
CLASSES = "__torch__"
_STRINGS = ("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8")
# globals by number, through a registry that no archive carries
_OPAQUE = (
    "EXT1",
    "EXT2",
    "EXT4",
)


def globals_of(pickle: bytes) -> Iterator[str]:
    """Each global of the pickle as `module name`. Raises ValueError if the data is not a pickle."""
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name in _STRINGS:
            strings = [*strings[-1:], str(argument)]
        elif opcode.name in ("GLOBAL", "INST"):
            yield str(argument)
        elif opcode.name in _OPAQUE:
            yield f"copyreg extension {argument}"
        elif opcode.name == "STACK_GLOBAL":
            # Takes the two topmost strings. Memo tricks can hide them, and torch never writes this
            # opcode.
            yield " ".join(["STACK_GLOBAL:", *strings])


def is_torchscripts(name: str) -> bool:
    """Whether `module name` is one that torch's own unpickler resolves."""
    module, _, attribute = name.partition(" ")
    if module == CLASSES or module.startswith(f"{CLASSES}."):
        return True
    return attribute in _TORCH.get(module, ()) or (
        module == "torch" and attribute.endswith("Storage")
    )
