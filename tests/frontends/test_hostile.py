"""Unusual programs convert, or give an error with a fix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import builder
from builder import frontends, parity
from builder.cli import guess
from builder.errors import (
    LoweringError,
    ModelFileError,
    UnsupportedOperators,
    UsageError,
)
from builder.frontends import ExportedModule
from builder.manifest import ModelSpec, merged_profile


class Colliding(nn.Module):
    """Two leaves with equal names, among the arguments and among the results."""

    def forward(self, a: list[Tensor], a_0: Tensor) -> dict[str, Tensor | list[Tensor]]:
        return {"r": [a[0] * 2], "r_0": a_0 * 3}


def test_leaves_with_equal_names_get_distinct_names() -> None:
    program = torch.export.export(Colliding(), ([torch.ones(2)], torch.ones(2)))
    module = ExportedModule(program)
    assert module.inputs == ("a_0", "a_0_2") and module.outputs == ("r_0", "r_0_2")
    one, other = builder.reference.run(
        builder.convert(program), [torch.ones(2), torch.ones(2)]
    )
    assert one.tolist() == [2, 2] and other.tolist() == [3, 3]


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> None:
        torch.relu(x)


def test_program_without_outputs_is_refused() -> None:
    with pytest.raises(LoweringError, match="the program returns nothing"):
        ExportedModule(torch.export.export(Nothing(), (torch.ones(2),)))


class Normalized(nn.Module):
    """Layers whose decompositions are operators of several results."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.MaxPool2d(2)
        )
        self.layers[1].running_mean.normal_()  # type: ignore[union-attr, operator]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(self.layers(x), (3,))


def test_decomposed_program_converts() -> None:
    """`run_decompositions`, which errors recommend, works."""
    module, x = Normalized().eval(), torch.randn(2, 3, 8, 8)
    program = torch.export.export(module, (x,)).run_decompositions()
    (output,) = builder.reference.run(builder.convert(program), [x])
    torch.testing.assert_close(output, module(x))


class Rows(nn.Module):
    """A function for each row, which torch exports as calls of internal functions."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.vmap(lambda row: row @ y)(x)


def test_higher_order_functions_of_torch_are_refused(tmp_path: Path) -> None:
    """The error of the program and that of its file recommend the same fix, and it works."""
    x, y = torch.randn(3, 4, 5), torch.randn(5, 2)
    program = torch.export.export(Rows(), (x, y))
    with pytest.raises(LoweringError, match="has no counterpart") as caught:
        builder.convert(program)
    assert "run_decompositions" in str(caught.value.fix)
    torch.export.save(program, tmp_path / "rows.pt2")
    with pytest.raises(ModelFileError, match="it is not an operator") as refused:
        frontends.load(tmp_path / "rows.pt2")
    assert "run_decompositions" in str(refused.value.fix)
    decomposed = program.run_decompositions()
    (output,) = builder.reference.run(builder.convert(decomposed), [x, y])
    torch.testing.assert_close(output, x @ y)


class Cut(nn.Module):
    """A size that depends on a number among the inputs."""

    def forward(self, x: Tensor, n: int) -> Tensor:
        return x[:, :n].sum(1)


def test_numbers_in_goldens_satisfy_the_guards() -> None:
    """Random numbers are mostly larger than the length."""
    axes = {0: Dim.AUTO, 1: Dim.AUTO}
    program = torch.export.export(
        Cut(), (torch.ones(4, 9), 5), dynamic_shapes=(axes, Dim.AUTO)
    )
    module = ExportedModule(program)
    specs = module.axes.specs()
    assert specs[0].dims["length"][0] == 3, "2 rows of n, which is less than the length"
    spec = ModelSpec("cut", Path("cut.pt2"), specs, profiles=(merged_profile(specs),))
    for golden in parity.record(module, spec):
        assert 0 <= golden.inputs["n"].item() <= golden.inputs["x"].shape[1]


@dataclass
class Box:
    content: Tensor


class Opens(nn.Module):
    def forward(self, box: Box) -> Tensor:
        return box.content * 2


class Keys(nn.Module):
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return x["the key"] * 2


def test_unsupported_names_and_classes_are_refused(tmp_path: Path) -> None:
    """The fix names the change to the model."""
    torch.export.register_dataclass(Box, serialized_type_name="tests.Box")
    cases = [
        (Opens(), Box(torch.ones(2)), "names .*Box", "tuples, lists, dictionaries"),
        (
            Keys(),
            {"the key": torch.ones(2)},
            "'the key' has characters",
            "letters, digits",
        ),
    ]
    for module, argument, message, fix in cases:
        file = tmp_path / "refused.pt2"
        torch.export.save(torch.export.export(module, (argument,)), file)
        with pytest.raises(ModelFileError, match=message) as caught:
            frontends.load(file)
        assert fix in str(caught.value.fix)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.ones(2))

    def forward(self) -> Tensor:
        return self.value * 2


def test_init_refuses_model_without_inputs(tmp_path: Path) -> None:
    """A manifest without inputs would be an error later."""
    file = tmp_path / "constant.pt2"
    torch.export.save(torch.export.export(Constant(), ()), file)
    with pytest.raises(LoweringError, match="has no tensor inputs") as caught:
        guess.guesses(file)
    assert caught.value.fix


class Short(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() * 2


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.complex64])
def test_unsupported_input_dtype_is_reported_with_a_fix(dtype: torch.dtype) -> None:
    program = torch.export.export(Short(), (torch.ones(2).to(dtype),))
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(UsageError, match=f"input x of the program is {name}") as caught:
        builder.convert(program)
    assert "int32" in str(caught.value.fix) and "cast it in the model" in str(
        caught.value.fix
    )


class Eigen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = Eigen()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


def test_operator_without_source_is_located_by_its_module() -> None:
    """A class that torch.fx generates has no file; the error names the module."""
    program = torch.export.export(Outer(), (torch.ones(2, 3, 3),))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    with pytest.raises(UnsupportedOperators, match="where: graph, in module head"):
        builder.convert(program)
