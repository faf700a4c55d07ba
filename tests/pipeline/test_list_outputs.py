"""A list whose length is not known has as many outputs as `max_lengths` declares. Those past its
length are left out, and a longer list is an error that names the key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, List  # noqa: UP035  # TorchScript's

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import builder
from builder.cli import main
from builder.errors import (
    LoweringError,
    ModelFileError,
    UnboundedListError,
)
from builder.manifest import load
from builder.parity import served
from builder.pipeline import ladder, stages
from builder.repository import build_repository
from tests.pipeline.list_outputs import (
    CONTAINERS,
    LARGEST,
    LISTS,
    Detections,
    ForLoop,
    Numbered,
    WhileLoop,
)
from tests.pipeline.test_known_cases import checked
from tests.pipeline.test_optional_outputs import SPEC, check_published, inputs, loaded


def declared(module: type[nn.Module], largest: int = LARGEST) -> str:
    """The manifest's line for the list that the module returns."""
    return f"max_lengths: {{{LISTS[module]}: {largest}}}\n" if module in LISTS else ""


def prepared(
    module: type[nn.Module], folder: Path, more: str | None = None
) -> tuple[Any, Path]:
    return loaded(module, folder, declared(module) if more is None else more)


@pytest.mark.parametrize("module", [*LISTS, *CONTAINERS])
def test_published_model_has_one_output_per_list_element(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    beyond = f"{LISTS.get(module)}_{LARGEST}"
    check_published(*prepared(module, tmp_path), lambda name: name.startswith(beyond))


LARGE = (Detections, Numbered)
FAST_LISTS = [
    pytest.param(module, marks=pytest.mark.slow) if module in LARGE else module
    for module in LISTS
]


@pytest.mark.parametrize("module", FAST_LISTS)
def test_every_element_up_to_the_maximum_length_is_an_output(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    _, file = prepared(module, tmp_path, declared(module, 30))
    model = checked(file, tmp_path / "out")
    outputs = {io.name: io for io in model.artifact.outputs}
    last = [
        io for name, io in outputs.items() if name.startswith(f"{LISTS[module]}_29")
    ]
    first = [
        io for name, io in outputs.items() if name.startswith(f"{LISTS[module]}_0")
    ]
    assert last and [io.dtype for io in last] == [io.dtype for io in first]
    (warning,) = [text for text in model.warnings if "max_lengths" in text]
    assert f"{LISTS[module]!r} is a list of at most 30 elements" in warning
    assert not any("in every golden" in text for text in model.warnings)


def test_the_layer_before_the_loop_stays_in_tensorrt(tmp_path: Path) -> None:
    _, file = prepared(ForLoop, tmp_path)
    (result,) = build_repository(file.parent, tmp_path / "out", isolate=False)
    assert result.ok and "tensorrt" in result.segments and "torch" in result.segments
    published = served.read(tmp_path / "out" / "forloop")
    assert published.config.max_batch_size == 0
    assert [one.name for one in published.config.output] == [
        f"output_{i}" for i in range(LARGEST)
    ]


def test_missing_maximum_length_is_reported_with_a_suggestion(tmp_path: Path) -> None:
    _, file = prepared(WhileLoop, tmp_path, "")
    (spec,) = load(file)
    with pytest.raises(UnboundedListError) as error:
        ladder.lower(stages.load(spec))
    text = str(error.value)
    assert "output 'output_1' is a list" in text and "list_outputs.py:" in text
    assert "max_lengths: {output_1: " in text and "drawn inputs give" in text
    result = CliRunner().invoke(main, ["check", str(file)])
    assert result.exit_code == 1 and "max_lengths: {output_1: " in result.output


def test_golden_with_a_longer_list_is_an_error(tmp_path: Path) -> None:
    _, file = prepared(Detections, tmp_path, declared(Detections, 3))
    with pytest.raises(
        ModelFileError, match="golden p0-max: the list 'output' has 4 elements"
    ):
        checked(file, tmp_path / "out")
    _, file = prepared(
        ForLoop, tmp_path / "own", declared(ForLoop, 3) + "goldens: own.npz\n"
    )
    np.savez(file.parent / "own.npz", x=np.full((4, 4), 9, np.float32))
    with pytest.raises(ModelFileError) as error:
        checked(file, tmp_path / "out")
    assert "max_lengths declares at most 3" in str(error.value)


def test_unknown_list_name_is_an_error(tmp_path: Path) -> None:
    _, file = prepared(WhileLoop, tmp_path, "max_lengths: {output_1: 8, outputs: 3}\n")
    (spec,) = load(file)
    with pytest.raises(LoweringError, match=r"names .outputs.*mean .output_1."):
        ladder.lower(stages.load(spec))


@pytest.mark.parametrize("module", FAST_LISTS)
def test_compile_returns_a_list_of_the_same_length(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    original, _ = loaded(module, tmp_path)
    compiled = builder.compile(original, [SPEC], max_lengths={LISTS[module]: 40})
    for x in inputs():
        with torch.no_grad():
            torch.testing.assert_close(compiled(x.clone()), original(x.clone()))


def manifest_by_init(file: Path) -> str:
    """The manifest that `trt-build init` writes for a file."""
    result = CliRunner().invoke(main, ["init", str(file)])
    assert result.exit_code == 0, result.output
    return file.with_suffix(".yaml").read_text()


def test_init_writes_a_length_to_review(tmp_path: Path) -> None:
    _, file = prepared(WhileLoop, tmp_path)
    file.with_suffix(".yaml").unlink()
    text = manifest_by_init(file)
    assert "max_lengths: {output_1: 16}  # ?" in text and "outputs:" not in text


class Shape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        return self.layer(x), x.shape


def test_init_asks_for_no_length_of_sizes(tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.jit.script(Shape().eval()).save(str(file))
    assert "max_lengths" not in manifest_by_init(file)


class Elements(nn.Module):
    def forward(self, images: List[torch.Tensor]) -> List[torch.Tensor]:  # noqa: UP006
        return [image * 2 for image in images]


def test_init_names_the_first_element_of_a_list(tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.jit.script(Elements().eval()).save(str(file))
    text = manifest_by_init(file)
    assert "name: images_0" in text and "each further element of images" in text
    assert "outputs:" not in text


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return torch.unbind(nn.functional.linear(x, self.weight).abs())


def test_init_guesses_a_length_beside_complex_inputs(tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.jit.script(Rows().eval()).save(str(file))
    assert "max_lengths: {output: 16}" in manifest_by_init(file)


class Text(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x, "ok"


class Texts(nn.Module):
    def forward(self, x: torch.Tensor) -> List[str]:  # noqa: UP006
        found: List[str] = []  # noqa: UP006
        for i in range(x.size(0)):
            found.append("even" if int(x[i].sum()) % 2 == 0 else "odd")
        return found


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Text, "output 'output_1' is a str, and an endpoint returns only tensors"),
        (Texts, "output 'output' is a List[str], and an endpoint returns only tensors"),
        (Spectrum, "complex64, and Triton has no complex numbers"),
    ],
)
@pytest.mark.filterwarnings("error:Casting complex values")
def test_unsupported_outputs_are_reported_by_name(
    tmp_path: Path, module: type[nn.Module], text: str
) -> None:
    _, file = prepared(module, tmp_path)
    (result,) = build_repository(file.parent, tmp_path / "out", isolate=False)
    assert text in str(result.error) and "fix:" in str(result.error)


class KeyByNumber(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        found[str(int(x.sum()))] = x * 2
        return found


class NumberAsKey(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        return x, {int(x.sum()): x * 2}


class KeyBySize(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[int, torch.Tensor]:
        return {x.size(0): x * 2}


class KeyForEachRow(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for i in range(int(x.abs().sum())):
            found[str(i)] = x * i
        return found


@pytest.mark.parametrize("module", [KeyByNumber, NumberAsKey, KeyBySize, KeyForEachRow])
def test_data_dependent_keys_are_an_error_with_a_fix(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    _, file = prepared(module, tmp_path)
    (spec,) = load(file)
    with pytest.raises(
        LoweringError,
        match=("whose keys are not known before the model runs, and Triton's"),
    ) as error:
        ladder.lower(stages.load(spec))
    assert "test_list_outputs.py:" in str(error.value) and "return a list" in str(
        error.value
    )
