"""The table of decompositions: every operator is defined once, and as torch declares it."""

from __future__ import annotations

import itertools

import pytest
import torch

from builder.conversion.registry import CONVERTERS
from builder.decompositions import (
    ABSENT,
    DECOMPOSITIONS,
    Decomposition,
    Number,
    decomposition,
)
from builder.decompositions.torchscript import source
from builder.lowering.pipeline import PIPELINE


def test_no_operator_is_defined_twice() -> None:
    """An operator with a formula has no other converter, and no formula of a second name."""
    for key in DECOMPOSITIONS:
        assert CONVERTERS[key].build.__module__.startswith("builder.decompositions"), (
            key
        )
    with pytest.raises(ValueError, match="aten::silu has two decompositions"):
        decomposition("aten::silu(Tensor self) -> Tensor")(silu_again)
    assert DECOMPOSITIONS["aten::silu"].function is not silu_again


def silu_again(self: torch.Tensor) -> torch.Tensor:
    return self * torch.sigmoid(self)


def test_every_decomposing_pass_has_decompositions() -> None:
    kinds = {entry.kind for entry in DECOMPOSITIONS.values()}
    steps = [
        step for step in PIPELINE if step.rewrite.__qualname__.startswith("decompose.")
    ]
    assert len(steps) == 12
    assert not [
        (step.name, kind)
        for step in steps
        for kind in step.touches
        if kind not in kinds
    ]


def test_torch_has_every_operator() -> None:
    """A misspelled key of a converter or decomposition would be ignored."""
    assert {"aten::silu", "aten::layer_norm"} <= CONVERTERS.keys()
    assert not ABSENT
    assert decomposition("aten::silo")(silu_again) is silu_again
    assert {"aten::silo"} == ABSENT
    ABSENT.clear()
    assert "aten::silo" not in DECOMPOSITIONS


@pytest.mark.parametrize("key", DECOMPOSITIONS)
def test_decomposition_compiles(key: str) -> None:
    entry = DECOMPOSITIONS[key]
    for numbers in itertools.product(("int", "float"), repeat=len(entry.numbers)):
        graph = entry.graph(numbers)
        assert len(list(graph.inputs())) == len(entry.names)
        assert not graph.findNode("prim::CallFunction", True)


def test_parameters_match_the_schema() -> None:
    with pytest.raises(
        ValueError, match=r"aten::silu takes \(x\), its schema has \(self\)"
    ):
        Decomposition("aten::silu(Tensor self) -> Tensor", named_otherwise)


def named_otherwise(x: torch.Tensor) -> torch.Tensor:
    return x


FACTOR, NAME = 0.5, "floor"


def called(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return x if dtype is None else x.to(dtype)


def calling(self: torch.Tensor, other: Number) -> torch.Tensor:
    """Not in the text"""
    x = called(self, None)  # nor is this
    return torch.div(x * FACTOR, other, rounding_mode=NAME)


def test_source_of_decomposition_includes_its_helpers() -> None:
    assert source(calling, ("int",)) == (
        "def called(x: torch.Tensor, dtype: int | None):\n"
        "    return x if dtype is None else x.to(dtype)\n\n"
        "def calling(self: torch.Tensor, other: int):\n"
        "    x = called(self, None)\n"
        "    return torch.div(x * 0.5, other, rounding_mode='floor')\n"
    )
