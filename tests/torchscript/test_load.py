"""A file is loaded in a child process with limits first, then in eval mode; submodules and methods
are loaded by name.
"""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from builder import processes
from builder.errors import ModelFileError
from builder.torchscript import load, trial


@pytest.fixture
def fresh() -> Iterator[None]:
    """No file is known good yet."""
    known = set(trial._known_good)
    trial._known_good.clear()
    yield
    trial._known_good.update(known)


def test_file_is_loaded_in_eval_mode(file: Path, net: torch.nn.Module) -> None:
    x = torch.randn(5, 4)
    net.train()
    torch.jit.script(net).save(str(file))
    loaded = load(file)
    assert not loaded.training and not loaded.encoder.training
    assert torch.equal(loaded(x), net.eval()(x))


@pytest.mark.parametrize(
    "part", ["encoder", "encoder.0", "encoder.0.linear", "encoder.0.forward", "forward"]
)
def test_submodule_is_loaded_by_its_path(
    file: Path, net: torch.nn.Module, part: str
) -> None:
    x = torch.randn(5, 4)
    owner = part.removesuffix("forward").strip(".")
    expected = net.get_submodule(owner)(x)
    assert torch.equal(load(file, part)(x), expected)


def test_method_becomes_forward_with_its_signature(
    file: Path, net: torch.nn.Module
) -> None:
    x = torch.randn(5, 4)
    part = load(file, "forward_features")
    assert [argument.name for argument in part.forward.schema.arguments] == [
        "self",
        "x",
        "scale",
    ]
    assert not part.training
    for arguments in [(x,), (x, 3.0)]:
        for output, expected in zip(
            part(*arguments), net.forward_features(*arguments), strict=True
        ):
            assert torch.equal(output, expected)
    assert torch.jit.freeze(part).graph is not None


def test_module_of_a_method_can_be_saved(file: Path, tmp_path: Path) -> None:
    x = torch.randn(5, 4)
    part = load(file, "forward_features")
    part.save(str(tmp_path / "part.pt"))
    assert torch.equal(load(tmp_path / "part.pt")(x)[0], part(x)[0])


class Many(torch.nn.Module):
    """Methods with arguments and results of every type that a signature can spell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def optional(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, offset: int = -3
    ) -> torch.Tensor:
        return x + offset if mask is None else x * mask

    @torch.jit.export
    def mapping(
        self, x: torch.Tensor, mode: str = "a'b", eps: float = 1e-5
    ) -> dict[str, torch.Tensor]:
        return {mode: x + eps}


def test_defaults_of_every_type_are_kept(tmp_path: Path) -> None:
    torch.jit.script(Many()).save(str(tmp_path / "many.pt"))
    x = torch.ones(2)
    assert torch.equal(load(tmp_path / "many.pt", "optional")(x), x - 3)
    assert torch.equal(load(tmp_path / "many.pt", "optional")(x, x * 0), x * 0)
    assert list(load(tmp_path / "many.pt", "mapping")(x)) == ["a'b"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("encodr", "did you mean 'encoder'?"),
        ("encoder.2", "encoder has no submodule or method '2'"),
        ("forward_feature", "did you mean 'forward_features'?"),
        (
            "encoder.0.linear.weight",
            "encoder.0.linear has no submodule or method 'weight'",
        ),
    ],
)
def test_missing_submodule_suggests_existing_names(
    file: Path, part: str, words: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        load(file, part)
    assert words in str(caught.value)


def test_file_without_forward_lists_its_methods(tmp_path: Path) -> None:
    class Bare(torch.nn.Module):
        @torch.jit.export
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    torch.jit.script(Bare()).save(str(tmp_path / "bare.pt"))
    with pytest.raises(
        ModelFileError, match=r"has no forward(.|\n)*name a method: encode"
    ):
        load(tmp_path / "bare.pt")
    assert load(tmp_path / "bare.pt", "encode")(torch.ones(1)) == 2


class Loops(torch.nn.Module):
    """Runs for ever when it is loaded: `__setstate__` is the file's own code."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return self.size, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        self.size, self.training = state
        while self.size > 0:
            self.size += 1


class AllocatesTooMuch(Loops):
    """Allocates more memory than the limit when it is loaded."""

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        self.size, self.training = state
        self.size = int(torch.ones([8, 1 << 28]).sum().item())


def test_infinite_loop_during_load_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 1)
    torch.jit.script(Loops()).save(str(tmp_path / "loops.pt"))
    with pytest.raises(ModelFileError, match="took more than 1 s to load"):
        load(tmp_path / "loops.pt")


def test_excessive_memory_during_load_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MEMORY_BESIDE_WEIGHTS", 64 << 20)
    torch.jit.script(AllocatesTooMuch()).save(str(tmp_path / "swells.pt"))
    with pytest.raises(ModelFileError, match="needs more than 64 MiB"):
        load(tmp_path / "swells.pt")


def test_valid_file_loads_after_a_hostile_one(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 1)
    torch.jit.script(Loops()).save(str(tmp_path / "loops.pt"))
    with pytest.raises(ModelFileError, match="took more than 1 s to load"):
        load(tmp_path / "loops.pt")
    monkeypatch.undo()
    assert load(file).training is False


def test_killed_child_is_reported_and_restarted(
    file: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "load_here", die)
    with pytest.raises(ModelFileError, match="was killed while it loaded"):
        load(file)
    monkeypatch.undo()
    load(file)


def die(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_invalid_source_is_an_error_of_the_file(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(
                name,
                b"class Net(Module):\n  what is this\n"
                if name.endswith(".py")
                else data,
            )
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        load(file)


def test_trial_load_is_repeated_only_for_changed_files(
    file: Path, net: torch.nn.Module, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[processes.Task[Any]] = []
    run = processes.run

    def count(tasks: list[processes.Task[Any]], **options: Any) -> list[Any]:
        requested.extend(tasks)
        return run(tasks, **options)

    monkeypatch.setattr(processes, "run", count)
    load(file)
    load(file, "encoder")
    assert len(requested) == 1
    torch.nn.init.zeros_(net.encoder[0].linear.weight)
    torch.jit.script(net).save(str(file))
    load(file)
    assert len(requested) == 2
    load(file, check_in_child=False)
    assert len(requested) == 2
