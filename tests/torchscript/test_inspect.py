"""A file is checked before any part of it is loaded, and the kind of other files is reported."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from builder.errors import ModelFileError
from builder.torchscript import Example, globals_of, inspect


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        inspect(path)
    assert caught.value.where == str(path)
    return str(caught.value)


def test_facts_of_an_archive_are_read(file: Path) -> None:
    facts = inspect(file)
    with zipfile.ZipFile(file) as archive:
        size = sum(member.file_size for member in archive.infolist())
    assert (facts.path, facts.unpacked_bytes, facts.examples) == (file, size, ())
    assert inspect(file, check_sums=False) == facts


def test_example_inputs_of_a_traced_file_are_read(
    tmp_path: Path, net: torch.nn.Module
) -> None:
    torch.jit.trace(net, torch.ones(2, 4)).save(str(tmp_path / "t.pt"))
    assert inspect(tmp_path / "t.pt").examples == (Example("float32", (2, 4)),)


def test_example_inputs_of_every_kind_are_described(tmp_path: Path) -> None:
    class Takes(torch.nn.Module):
        def forward(
            self, ids: torch.Tensor, mask: torch.Tensor, state: tuple[torch.Tensor]
        ) -> torch.Tensor:
            return ids.float() * mask + state[0]

    given = (
        torch.ones(2, 3, dtype=torch.int64),
        torch.tensor(True),
        (torch.ones(3, dtype=torch.float16),),
    )
    torch.jit.trace(Takes(), given).save(str(tmp_path / "t.pt"))
    assert inspect(tmp_path / "t.pt").examples == (
        Example("int64", (2, 3)),
        Example("bool", ()),
        None,
    )


def test_all_objects_that_torch_pickles_are_accepted(tmp_path: Path) -> None:
    """Lists, dictionaries, devices, complex numbers, sparse tensors, and attributes of every
    dtype.
    """

    class ManyAttributes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ints, self.floats, self.texts, self.flags = [1], [0.5], ["a"], [True]
            self.tensors, self.table, self.nested = (
                [torch.ones(2)],
                {"a": torch.ones(2)},
                [{"a": 1}],
            )
            self.device, self.complex, self.nothing = torch.device("cpu"), 1 + 2j, None
            self.register_buffer("sparse", torch.eye(3).to_sparse())
            for dtype in (
                torch.bool,
                torch.uint8,
                torch.int8,
                torch.float16,
                torch.bfloat16,
                torch.float64,
            ):
                self.register_buffer(
                    "b_" + str(dtype).rpartition(".")[2], torch.ones(2, dtype=dtype)
                )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    torch.jit.script(ManyAttributes()).save(str(tmp_path / "much.pt"))
    inspect(tmp_path / "much.pt")
    with zipfile.ZipFile(tmp_path / "much.pt") as archive:
        named = globals_of(archive.read("much/data.pkl"))
    assert "builtins complex" in named


def _save(kind: str, path: Path, net: torch.nn.Module) -> None:
    if kind == "state_dict":
        torch.save(net.state_dict(), path)
    elif kind == "legacy":
        torch.save(net.state_dict(), path, _use_new_zipfile_serialization=False)
    elif kind == "pt2":
        torch.export.save(
            torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), path
        )
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    elif kind == "npz":
        import numpy

        with path.open("wb") as stream:
            numpy.savez(stream, a=numpy.ones(2))
    else:
        path.write_bytes(
            {
                "empty": b"",
                "onnx": b"\x08\x08\x12\x07pytorch\x1a\x052.1.0",
                "text": b"hello\n",
                "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
                "html": b"<!DOCTYPE html><html>",
                "safetensors": struct.pack("<Q", 40) + b'{"a":{"dtype":"F32"}}',
                "plan": b"ftrt\0\0\0\0",
                "zeros": bytes(4096),
                "noise": bytes(range(200, 256)) * 10,
            }[kind]
        )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("state_dict", "a checkpoint of torch.save"),
        ("legacy", "a checkpoint in torch.save's old format"),
        ("pt2", "a program of torch.export"),
        ("pickle", "a Python pickle"),
        ("npz", "an .npz of arrays"),
        ("empty", "is empty"),
        ("onnx", "an ONNX model"),
        ("text", "a text file"),
        ("lfs", "git lfs pull"),
        ("html", "a web page"),
        ("safetensors", "a safetensors file"),
        ("plan", "a TensorRT plan"),
        ("zeros", "all zeros"),
        ("noise", "an unknown kind of file"),
    ],
)
def test_kind_of_other_files_is_reported(
    tmp_path: Path, net: torch.nn.Module, kind: str, words: str
) -> None:
    path = tmp_path / "model.pt"
    _save(kind, path, net)
    assert words in refused(path)


def test_missing_file_and_directory_are_reported(tmp_path: Path) -> None:
    assert "absent.pt does not exist" in refused(tmp_path / "absent.pt")
    assert "is a directory" in refused(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    assert "TensorFlow" in refused(tmp_path)


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.pt")
    assert "is not a file but a pipe" in refused(tmp_path / "net.pt")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_truncated_file_is_reported(file: Path, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    assert "truncated or damaged" in refused(file)


def test_flipped_bit_in_the_weights_is_detected(file: Path) -> None:
    """torch itself loads such a file without an error, with wrong weights."""
    data = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        member = next(m for m in archive.infolist() if m.filename == "net/data/0")
    # torch aligns members by padding the local header's extra field, so the data's place is read
    # from that header
    name, extra = struct.unpack_from("<HH", data, member.header_offset + 26)
    data[member.header_offset + 30 + name + extra] ^= 1
    file.write_bytes(data)
    torch.jit.load(str(file))
    assert "does not match its checksum" in refused(file)


def rewritten(
    path: Path, change: dict[str, bytes], compression: int = zipfile.ZIP_STORED
) -> Path:
    """The archive with members replaced or added."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | change
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch /tmp/trt-build-was-here",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("member", ["data.pkl", "constants.pkl", "traced_inputs.pkl"])
def test_pickle_with_code_is_refused(file: Path, member: str, protocol: int) -> None:
    """By opcode, in every protocol: GLOBAL in the older ones, STACK_GLOBAL in the newer."""
    words = refused(rewritten(file, {f"net/{member}": pickle.dumps(Evil(), protocol)}))
    assert "TorchScript never uses" in words
    assert "system" in words


def test_stack_global_is_always_refused(file: Path) -> None:
    """Its operands can come from the memo, so the preceding opcodes prove nothing. torch never
    writes it.
    """
    source = io.BytesIO()
    pickle.Pickler(source, 4).dump(torch.device)
    assert b"\x93" in source.getvalue()
    assert "TorchScript never uses" in refused(
        rewritten(file, {"net/data.pkl": source.getvalue()})
    )


def test_invalid_pickle_is_reported_as_damaged(file: Path) -> None:
    assert "damaged" in refused(rewritten(file, {"net/data.pkl": b"\xff\xff"}))


def test_compression_bomb_is_refused_before_unpacking(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builder.torchscript import archive

    monkeypatch.setattr(archive, "MAX_COMPRESSED_MEMBERS_UNPACK_TO", 1 << 20)
    rewritten(file, {"net/code/flood.py": bytes(2 << 20)}, zipfile.ZIP_DEFLATED)
    assert "compression bomb" in refused(file)


def test_overlapping_members_are_refused(file: Path) -> None:
    """A compression bomb without nesting: many directory entries for the same bytes."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("net/data/big", bytes(100_000))
        info = archive.getinfo("net/data/big")
        for index in range(3):
            copy = zipfile.ZipInfo(f"net/data/copy{index}")
            copy.header_offset, copy.CRC = info.header_offset, info.CRC
            copy.compress_size = copy.file_size = info.file_size
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
    assert "overlap" in refused(file)


def test_members_outside_the_archive_folder_are_refused(file: Path) -> None:
    assert "outside of the archive" in refused(rewritten(file, {"net/../../evil": b""}))


def test_archive_with_second_root_is_refused(file: Path) -> None:
    assert "not a TorchScript archive" not in str(inspect(file))
    assert "is not a TorchScript file" in refused(
        rewritten(file, {"other/data.pkl": b""})
    )


def test_later_format_versions_are_accepted(tmp_path: Path) -> None:
    """From version 6 on, torch writes `.data/version` instead of `version`; attention and gelu
    require it.
    """

    class Attends(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(x)

    torch.jit.script(Attends()).save(str(tmp_path / "attends.pt"))
    with zipfile.ZipFile(tmp_path / "attends.pt") as archive:
        assert "attends/.data/version" in archive.namelist()
    inspect(tmp_path / "attends.pt")
