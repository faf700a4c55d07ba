"""Tensors made of sizes and numbers against torch: static ones are folded, dynamic ones are
layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_shape import sample

CASES: dict[str, Callable[..., Any]] = {
    "zeros": lambda x: torch.zeros(x.size(0), 3),
    "zeros of int": lambda x: torch.zeros(x.shape, dtype=torch.int32),
    "ones": lambda x: torch.ones(2, x.size(1)),
    "ones of bool": lambda x: torch.ones(x.size(1), dtype=torch.bool),
    "full": lambda x: torch.full((x.size(0), 2), 1.5),
    "full of an int": lambda x: torch.full((x.size(0),), 7),
    "full of float16": lambda x: torch.full((x.size(0),), 2, dtype=torch.float16),
    "full of a size": lambda x: torch.full((x.size(0),), x.size(1)),
    "zeros_like": lambda x: torch.zeros_like(x),
    "zeros_like of int64": lambda x: torch.zeros_like(x, dtype=torch.int64),
    "ones_like": lambda x: torch.ones_like(x),
    "full_like": lambda x: torch.full_like(x, -2.5),
    "new_zeros": lambda x: x.new_zeros(x.size(1)),
    "new_ones": lambda x: x.new_ones((x.size(1), 2), dtype=torch.uint8),
    "new_full": lambda x: x.new_full((x.size(1),), 3),
    "arange": lambda x: torch.arange(x.size(1)),
    "arange of float": lambda x: torch.arange(x.size(1), dtype=torch.float32),
    "arange of int32": lambda x: torch.arange(x.size(1), dtype=torch.int32),
    "arange of float16": lambda x: torch.arange(x.size(1), dtype=torch.float16),
    "arange from a start": lambda x: torch.arange(-2, x.size(1)),
    "arange with a step": lambda x: torch.arange(1, x.size(1) + 1, 3),
    "arange backwards": lambda x: torch.arange(x.size(1) - 1, -1, -1),
    "arange with a float step": lambda x: torch.arange(0, x.size(1), 0.5),
    "arange of a static length": lambda x: torch.arange(x.size(1), x.size(1) + 4, 1.5),
    "arange of a float end": lambda x: torch.arange(x.size(1) + 0.5),
    "arange of int64 to a fraction": lambda x: torch.arange(
        x.size(1), x.size(1) + 8.5, dtype=torch.int64
    ),
    "arange of a product": lambda x: torch.arange(x.size(0) * x.size(1)).view(
        x.size(0), x.size(1)
    ),
    "arange of a half": lambda x: torch.arange(x.size(1) // 2),
    "linspace": lambda x: torch.linspace(0, 1, x.size(1) + 1),
    "linspace to a size": lambda x: torch.linspace(-1, x.size(1), 5),
    "eye": lambda x: torch.eye(x.size(1)),
    "eye of rows and columns": lambda x: torch.eye(
        x.size(0), x.size(1), dtype=torch.int64
    ),
    "clone": lambda x: torch.zeros(x.size(0)).clone(),
    "fill_": lambda x: torch.empty(x.size(0), 2).fill_(3),
    "empty that is overwritten": lambda x: torch.empty_like(x).copy_(x),
}


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_created_tensors_match_torch_at_every_size(name: str, static: bool) -> None:
    function = CASES[name]
    dynamic = {} if static else {0: {0: "n", 1: "w"}}
    more = [] if static else [(sample(1, 1),), (sample(4, 8),), (sample(3, 5),)]
    check(function, sample(2, 4), dynamic=dynamic, more=more, compile=not static)


class Scripted(torch.nn.Module):
    def forward(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        n, w = x.size(0), x.size(1)
        return (
            torch.tensor([[n, w], [w, 1]]),
            torch.tensor([n * 0.5, 2.0]),
            torch.tensor(w),
            torch.scalar_tensor(n),
            torch.tensor([1.0, 2.0], dtype=torch.float16),
        )


FILLS = {
    "fill": "%r : Tensor = aten::fill(%x, %two)",
    "fill of a tensor": (
        """%t : Tensor = aten::select(%x, %zero, %zero)
          %s : Tensor = aten::select(%t, %zero, %zero)
          %r : Tensor = aten::fill(%x, %s)"""
    ),
}


@pytest.mark.parametrize("name", FILLS)
def test_fills_from_graph_text(name: str) -> None:
    graph = f"""
        graph(%x : Tensor):
          %zero : int = prim::Constant[value=0]()
          %two : int = prim::Constant[value=2]()
          {FILLS[name]}
          return (%r)"""
    check(
        graph,
        sample(2, 4),
        dynamic={0: {0: "n", 1: "w"}},
        more=[(sample(1, 1),), (sample(4, 8),)],
    )


def test_lists_of_sizes_become_tensors() -> None:
    check(
        Scripted(),
        sample(2, 4),
        dynamic={0: {0: "n", 1: "w"}},
        more=[(sample(1, 1),), (sample(4, 8),)],
    )


class Positions(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.size(1)).unsqueeze(0).expand(x.size(0), -1)
        causal = torch.full((x.size(1), x.size(1)), float("-inf")).triu(1)
        return x.unsqueeze(1) + causal + positions.unsqueeze(1) * mask.unsqueeze(1)


def test_positions_and_causal_masks_of_a_dynamic_length() -> None:
    check(
        Positions(),
        sample(2, 4),
        torch.ones(2, 4),
        dynamic={0: {0: "n", 1: "t"}, 1: {0: "n", 1: "t"}},
        more=[(sample(1, 1), torch.ones(1, 1)), (sample(4, 8), torch.zeros(4, 8))],
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.rand_like(x), "is random"),
        (lambda x: x + torch.randn(x.size(0), 3), "is random"),
        (lambda x: torch.tril_indices(x.size(0), x.size(0)), "only at run time"),
    ],
)
def test_unsupported_calls_are_refused_with_a_reason(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(UnsupportedOperators, match=words):
        convert(function, [sample(2, 3)], dynamic={0: {0: "n"}})


class ToMultipleOfStep(torch.nn.Module):
    """1.5 / 0.3 is rounded to 5; the floor of the exact quotient of -1.5 by 0.3 is -6."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(0, x.size(0) * 1.5, 0.3)


def test_float_arange_of_script_has_the_length_of_torch() -> None:
    more = [(torch.zeros(rows),) for rows in range(1, 9)]
    check(ToMultipleOfStep(), torch.zeros(4), dynamic={0: {0: "n"}}, more=more)


class Frames(torch.nn.Module):
    """At 65760 samples, the quotient in float64 is 411, and the one in float32 is larger."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(0, x.size(0) / 16000, 0.01)


class UpToData(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(0, float(x[0]) * 0.7, 0.01)


class Halves(torch.nn.Module):
    """The second call is as in XLNet's relative positions."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = x.size(0)
        return torch.arange(0.0, n, 0.5), torch.arange(n, -n - 3, -1.0)


LONG = {"n": (1, 65760, 200000)}
"""Beyond the lengths whose numbers are tabulated in float64."""


@pytest.mark.parametrize("module", [Frames(), UpToData()])
def test_float_arange_without_the_length_of_torch_is_refused(
    module: torch.nn.Module,
) -> None:
    with pytest.raises(UnsupportedOperators, match="length of an arange of floats"):
        convert(module, (torch.zeros(65760),), dynamic={0: {0: "n"}}, spans=LONG)


class IntegersOfFractions(torch.nn.Module):
    """PyTorch counts int64 with integers, and int32 with fractions."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = x.size(0)
        return (
            torch.arange(-n - 0.5, n * 0.7, 1.9, dtype=torch.int64),
            torch.arange(0.5, n, dtype=torch.int32),
        )


def test_arange_of_integers_between_fractions_has_the_length_of_torch() -> None:
    more = [(torch.zeros(n),) for n in (1, 2, 5, 7)]
    check(
        IntegersOfFractions(),
        torch.zeros(4),
        dynamic={0: {0: "n"}},
        more=more,
        compile=False,
    )


def test_float_arange_of_exact_quotients_has_any_length() -> None:
    x = torch.zeros(65761)
    check(Halves(), x, dynamic={0: {0: "n"}}, spans=LONG, compile=False)
