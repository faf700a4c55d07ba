"""Array files that are truncated, too large or invalid are refused."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from builder.errors import ManifestError, UsageError
from builder.manifest import arrays, load, read_sets
from builder.manifest.inputs import specs_from_sample
from builder.triton import goldens


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """An .npy whose header has `shape` and float32."""
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + data


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def test_too_large_archive_is_refused_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 MiB of zeros in some KiB, where 4 MiB are allowed; the limit of the program is 1 GiB."""
    monkeypatch.setattr(arrays, "MOST_BYTES", 4 << 20)
    monkeypatch.setattr(np, "load", None)  # nothing is unpacked
    path = archive(
        tmp_path / "bomb.npz",
        {f"x{n}.npy": npy((1 << 18,), bytes(1 << 20)) for n in range(24)},
    )
    for read in (read_sets, specs_from_sample, goldens.load_one):
        with pytest.raises(
            (UsageError, ValueError), match="unpacks to 24 MiB, more than 4 MiB"
        ):
            read(path)


REFUSED: dict[str, Callable[[Path], Path]] = {
    "longer than its file": lambda p: archive(
        p, {"x.npy": npy((1 << 30, 1 << 8), b"1234")}
    ),
    "not an .npy": lambda p: archive(p, {"x": b"text"}),
    "magic string": lambda p: archive(p, {"x.npy": b"no array at all"}),
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.parametrize("read", [read_sets, specs_from_sample, goldens.load_one])
def test_every_reader_refuses_invalid_arrays(
    tmp_path: Path, words: str, read: Callable[[Path], object]
) -> None:
    path = REFUSED[words](tmp_path / "x.npz")
    with pytest.raises((UsageError, ValueError), match=words):
        read(path)


def test_single_npy_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "short.npy").write_bytes(npy((100,), b"1234"))
    np.save(tmp_path / "right.npy", np.ones((3, 4)))
    arrays.check_array_file(tmp_path / "right.npy")
    with pytest.raises(ValueError, match="longer than its file"):
        arrays.check_array_file(tmp_path / "short.npy")


@pytest.mark.parametrize("read", [specs_from_sample, read_sets])
def test_missing_file_is_named_with_the_fix(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path / "none.npz")
    assert f"{tmp_path}/none.npz" in str(refused.value)
    assert "No such file or directory" in str(refused.value)
    assert "numpy.savez" in str(refused.value)


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for read in (read_sets, specs_from_sample, goldens.load_one):
        with pytest.raises((UsageError, ValueError), match="not a regular file"):
            read(tmp_path / "pipe.npz")


@pytest.mark.parametrize(
    "more",
    [
        "goldens: {name}.npz",
        "libraries: [{name}.py]",
        "calibration: {{data: [{name}.npz]}}",
        "state: [{{input: x, output: y, initial: {name}.npy}}]",
    ],
)
def test_too_long_file_name_is_reported(tmp_path: Path, more: str) -> None:
    (tmp_path / "m.pt").write_bytes(b"")
    head = "inputs:\n  - {name: x, dtype: float32, shape: [2, 4]}\noutputs: [y]\n"
    (tmp_path / "m.yaml").write_text(head + more.format(name="n" * 300) + "\n")
    with pytest.raises(ManifestError, match="does not exist"):
        load(tmp_path)
