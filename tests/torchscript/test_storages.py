"""A member shorter than its tensor is refused: torch would read past its end."""

from __future__ import annotations

import enum
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from builder.errors import ModelFileError
from builder.torchscript import inspect, load


def rewritten(file: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Write each member again as `change` returns it; None leaves it out."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            new = change(name, data)
            if new is not None:
                archive.writestr(name, new)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-4], "has 44 bytes; its tensor needs 48"),
        (lambda data: b"", "has 0 bytes; its tensor needs 48"),
        (lambda data: None, "is missing; a tensor needs 48 bytes"),
    ],
)
def test_member_shorter_than_its_tensor_is_refused(
    file: Path, change: Callable[[bytes], bytes | None], words: str
) -> None:
    rewritten(
        file,
        lambda name, data: (
            change(data) if "/data/" in name and len(data) == 48 else data
        ),
    )
    with pytest.raises(ModelFileError, match=words):
        inspect(file)


def test_tensor_beyond_its_storage_is_refused(file: Path) -> None:
    def wider(name: str, data: bytes) -> bytes:
        # MARK, BININT1 3, BININT1 4, TUPLE: the shape of the linear layer's weight
        return (
            data.replace(b"(K\x03K\x04t", b"(K\xffK\x04t")
            if name.endswith("a.pkl")
            else data
        )

    rewritten(file, wider)
    with pytest.raises(
        ModelFileError, match=r"shape \[255, 4\] reaches beyond the 12 elements"
    ):
        inspect(file)


def test_unreadable_pickle_is_refused(file: Path) -> None:
    rewritten(
        file,
        lambda name, data: b"\x80\x02K\x01" if name.endswith("/data.pkl") else data,
    )
    with pytest.raises(
        ModelFileError, match=r"data.pkl cannot be read|damaged archive"
    ):
        inspect(file)


def test_damaged_source_map_is_refused(file: Path) -> None:
    rewritten(file, lambda name, data: b"" if name.endswith(".debug_pkl") else data)
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        load(file)


class Kinds(torch.nn.Module):
    """Tensors of many kinds, and other objects."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)
        for index, dtype in enumerate((*kinds, torch.complex64, torch.uint8)):
            self.register_buffer(f"buffer_{index}", torch.ones(3, 2).to(dtype))
        self.register_buffer("empty", torch.zeros(0, 4))
        self.register_buffer("scalar", torch.tensor(2.0))
        self.register_buffer("transposed", torch.arange(12.0).reshape(3, 4).t())
        self.register_buffer("expanded", torch.ones(1).expand(5, 6))
        self.register_buffer("slice", torch.arange(20.0)[4:9:2])
        self.table = {"a": torch.ones(2), "b": torch.zeros(1)}
        self.names = ["x", "y"]
        self.register_buffer(
            "quantized", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            x
            + self.slice.sum()
            + self.table["a"].sum()
            + torch.tensor([1.0, 2.0]).sum()
        )


def test_tensors_of_every_kind_are_loaded(tmp_path: Path) -> None:
    module = torch.jit.script(Kinds())
    torch.jit.freeze(module.eval()).save(str(tmp_path / "frozen.pt"))
    module.save(str(tmp_path / "kinds.pt"))
    for name in ("kinds.pt", "frozen.pt"):
        assert torch.equal(load(tmp_path / name)(torch.ones(1)), module(torch.ones(1)))


def test_packed_weights_are_loaded(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LSTM(3, 2))[:1]
    module = torch.ao.quantization.quantize_dynamic(net, {torch.nn.Linear})
    torch.jit.script(module).save(str(tmp_path / "packed.pt"))
    assert load(tmp_path / "packed.pt")(torch.ones(1, 4)).shape == (1, 3)


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class Text(enum.Enum):
    SUM = "sum"


class Reduce(torch.nn.Module):
    def __init__(self, mode: enum.Enum) -> None:
        super().__init__()
        self.mode = mode
        self.held = [mode]
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode == self.held[0]:
            return self.layer(x)
        return x


@pytest.mark.parametrize("mode", [Mode.MEAN, Text.SUM])
def test_enumeration_among_the_attributes_is_loaded(
    tmp_path: Path, mode: enum.Enum
) -> None:
    file = tmp_path / "reduce.pt"
    torch.jit.script(Reduce(mode)).save(str(file))
    inspect(file)
    rewritten(file, lambda name, data: data[:-4] if name.endswith("data/0") else data)
    with pytest.raises(ModelFileError, match="its tensor needs"):
        inspect(file)
