"""Recognize files that are not TorchScript, and describe the fix for each kind."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

HEAD_BYTES = 512

_SCRIPT_IT = (
    "load it in Python, then torch.jit.script(module).save('model.pt'), or torch.jit.trace(module,"
    " inputs)"
)
_FROM_SOURCE = (
    "save the original PyTorch module with torch.jit.script or torch.jit.trace"
)


@dataclass(frozen=True)
class Kind:
    """A kind of file: its description, the fix, and the test of its first bytes."""

    name: str
    fix: str
    matches: Callable[[bytes], bool]


def _starts(*magic: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magic)


def _onnx(head: bytes) -> bool:
    """Whether the file starts like a ModelProto: ir_version (field 1, a small varint), then a
    length-delimited field (producer or later).
    """
    return (
        len(head) > 3
        and head[0] == 0x08
        and head[1] < 0x20
        and head[2] in (0x12, 0x1A, 0x22, 0x2A, 0x3A, 0x42)
    )


def _safetensors(head: bytes) -> bool:
    return head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32


def _text(head: bytes) -> bool:
    try:
        # incremental: the head may end within a character
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(byte in b"\t\n\r" or byte >= 32 for byte in head)


NOT_ZIPS: tuple[Kind, ...] = (
    Kind(
        "a checkpoint in torch.save's old format (weights or a pickled module, not a program)",
        _SCRIPT_IT,
        _starts(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"),
    ),
    Kind(
        "a Python pickle",
        _SCRIPT_IT,
        _starts(b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
    ),
    Kind("an ONNX model", _FROM_SOURCE, _onnx),
    Kind("a safetensors file (weights, not a program)", _SCRIPT_IT, _safetensors),
    Kind(
        "a Git LFS pointer: the model itself was not fetched",
        "git lfs pull",
        _starts(b"version https://git-lfs"),
    ),
    Kind(
        "a web page, not a model",
        "download the file itself",
        _starts(b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML"),
    ),
    Kind("an HDF5 file (Keras)", _FROM_SOURCE, _starts(b"\x89HDF\r\n")),
    Kind("a TensorFlow Lite model", _FROM_SOURCE, lambda head: head[4:8] == b"TFL3"),
    Kind(
        "a TensorRT plan, which is already built",
        "trt-build starts from TorchScript",
        _starts(b"ftrt", b"ptrt"),
    ),
    Kind("compressed with gzip", "gunzip it", _starts(b"\x1f\x8b")),
    Kind("a tar archive", "unpack it", lambda head: head[257:262] == b"ustar"),
    Kind(
        "all zeros: an incomplete download or copy",
        "fetch it again",
        lambda head: not any(head),
    ),
    Kind(
        "a text file",
        "pass a file that ScriptModule.save() or torch.jit.save() wrote",
        _text,
    ),
)


def of_bytes(head: bytes) -> Kind:
    """The kind of a file that is not a zip, by its first HEAD_BYTES."""
    for kind in NOT_ZIPS:
        if kind.matches(head):
            return kind
    return Kind(
        "an unknown kind of file",
        "pass a file that torch.jit.save() wrote",
        lambda head: True,
    )


@dataclass(frozen=True)
class ZipKind:
    """A kind of zip, recognized by the suffix of a member."""

    name: str
    fix: str
    members: Sequence[str]


ZIPS: tuple[ZipKind, ...] = (
    ZipKind(
        "a program of torch.export",
        "rename it: exported programs have the suffix .pt2",
        ("/archive_format", "models/model.json", "serialized_exported_program.json"),
    ),
    ZipKind(
        "a TorchServe archive (.mar)",
        "unzip it; the .pt inside is the model",
        ("MAR-INF/MANIFEST.json",),
    ),
    ZipKind("a torch.package", _SCRIPT_IT, (".data/extern_modules",)),
    ZipKind("a Keras model", _FROM_SOURCE, ("model.weights.h5",)),
    ZipKind("an .npz of arrays", "it may serve as `goldens` or --sample", (".npy",)),
    ZipKind(
        "a checkpoint of torch.save (weights or a pickled module, not a program)",
        _SCRIPT_IT,
        ("/data.pkl", "/version"),
    ),
)


def of_members(names: Iterable[str]) -> ZipKind:
    """The kind of a zip that is not TorchScript, by its members' names."""
    names = list(names)
    for kind in ZIPS:
        if any(name.endswith(tuple(kind.members)) for name in names):
            return kind
    return ZipKind(
        "a zip archive of other files",
        "pass a file that torch.jit.save() wrote",
        (),
    )
