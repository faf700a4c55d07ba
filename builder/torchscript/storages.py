"""Compare each tensor of an archive with the size of its member.

torch trusts the sizes in the pickle, and reads past the end of a shorter member. The pickles are
read by an unpickler that only creates placeholders.
"""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

ITEM_BYTES = {
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8,
    "QInt32Storage": 4,
}
PICKLES = ("data", "constants")
"""torch.jit.load reads the tensors of NAME.pkl from the folder NAME."""


@dataclass(frozen=True)
class _Storage:
    """A member with `count` elements of `item_bytes` each."""

    key: str
    item_bytes: int
    count: int


class _Object:
    """A placeholder for every object that is not a tensor."""

    def __new__(cls, *arguments: Any, **options: Any) -> _Object:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


@dataclass
class _Findings:
    storages: list[_Storage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def tensor(
        self,
        storage: Any,
        offset: int,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        *ignored: Any,
    ) -> _Object:
        """Record a tensor whose last element is beyond its storage."""
        if isinstance(storage, _Storage):
            reach = _reach(offset, size, stride)
            if reach is None or reach > storage.count:
                self.problems.append(
                    f"a tensor of shape {list(size)} reaches beyond the {storage.count} elements of"
                    f" its storage {storage.key!r}"
                )
        return _Object()


def _reach(offset: int, size: Sequence[int], stride: Sequence[int]) -> int | None:
    """The required number of elements of the storage; None if the numbers are not those of a
    tensor.
    """
    if len(size) != len(stride):
        return None
    if min((offset, *size, *stride), default=0) < 0:
        return None
    if 0 in size:
        return 0
    return (
        offset
        + 1
        + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    )


class _Placeholders:
    """The methods of an unpickler that creates placeholders."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))  # type: ignore[call-arg]
        self.findings = _Findings()

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The function or class that replaces a global of the pickle."""
        if module_name == "torch" and global_name.endswith("Storage"):
            return global_name
        if global_name in ("_rebuild_tensor_v2", "_rebuild_qtensor"):
            return self.findings.tensor
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return _Object

    def persistent_load(self, pid: Any) -> Any:
        """Record a storage. Raises UnpicklingError if it is not one."""
        _, kind, key, _, count = pid
        if not isinstance(count, int) or count < 0 or not isinstance(key, str):
            raise pickle.UnpicklingError(f"a storage {key!r} of {count!r} elements")
        storage = _Storage(key, ITEM_BYTES.get(str(kind), 1), count)
        self.findings.storages.append(storage)
        return storage


class _Unpickler(_Placeholders, pickle.Unpickler):
    pass


class _WithEnums(_Placeholders, pickle._Unpickler):
    """Reads enumerations, too: torch calls their class with a value, not with a tuple. Slower,
    because it is written in Python.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def _reduce(self) -> None:
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        if isinstance(stack[-1], int | float | str):
            stack[-1] = (stack[-1],)
        pickle._Unpickler.load_reduce(self)  # type: ignore[attr-defined]

    dispatch[pickle.REDUCE[0]] = _reduce


def problems(archive: zipfile.ZipFile, root: str) -> Iterator[str]:
    """The problems of the archive's tensors: members that are missing, or shorter than their
    tensor.
    """
    sizes = {member.filename: member.file_size for member in archive.infolist()}
    for name in PICKLES:
        if f"{root}/{name}.pkl" in sizes:
            yield from _problems(
                archive.read(f"{root}/{name}.pkl"), f"{root}/{name}", sizes
            )


def _problems(data: bytes, folder: str, sizes: Mapping[str, int]) -> Iterator[str]:
    try:
        findings = _findings(data)
    except Exception as error:  # a pickle may hold any bytes
        yield f"the pickle {folder}.pkl cannot be read: {error}"
        return
    yield from findings.problems
    for storage in dict.fromkeys(findings.storages):
        member = f"{folder}/{storage.key}"
        needed = storage.count * storage.item_bytes
        if member not in sizes:
            yield f"the member {member!r} is missing; a tensor needs {needed} bytes of it"
        elif sizes[member] < needed:
            yield f"the member {member!r} has {sizes[member]} bytes; its tensor needs {needed}"


def _findings(data: bytes) -> _Findings:
    """The storages of a pickle, and the tensors beyond them. Raises the errors of unpickling."""
    reader: _Unpickler | _WithEnums = _Unpickler(data)
    try:
        reader.load()
    except TypeError:
        reader = _WithEnums(data)
        reader.load()
    return reader.findings
