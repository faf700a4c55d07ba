"""The sizes that init chooses are sizes that the program accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from builder import parity
from builder.errors import UsageError
from builder.frontends import ExportedModule
from builder.manifest import ModelSpec, Profile, Range, TensorSpec, merged_profile

AUTO: Any = Dim.AUTO
GUARDED: Any = Dim("guarded", min=3, max=64)
QUARTER: Any = Dim("quarter", max=9)
EIGHTH: Any = Dim("eighth", max=64)


class One(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Two(nn.Module):
    """A function of two tensors."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


def in_eights(x: Tensor) -> Tensor:
    torch._check(x.shape[0] % 8 == 0)
    return x.reshape(-1, 8, 4).sum(1)


def large(x: Tensor) -> Tensor:
    torch._check(x.shape[0] * x.shape[1] >= 3000)
    return x * 2


def far_longer(x: Tensor, y: Tensor) -> Tensor:
    torch._check(x.shape[0] > y.shape[0] + 700)
    return x.sum() + y


PROGRAMS: dict[
    str, tuple[nn.Module, tuple[Tensor, ...], tuple[dict[int, Any], ...]]
] = {
    "a multiple that is checked": (One(in_eights), (torch.randn(16, 4),), ({0: AUTO},)),
    "a multiple": (
        One(lambda x: x.reshape(-1, 8, 4).sum(1)),
        (torch.randn(16, 4),),
        ({0: 8 * EIGHTH},),
    ),
    "two multiples": (
        One(lambda x: functional.pixel_unshuffle(x, 4)),
        (torch.randn(1, 1, 8, 8),),
        ({2: 4 * QUARTER, 3: 4 * Dim("width", max=9)},),
    ),
    "two less": (
        One(lambda x: (x[:, 2:] * x[:, :-2]).cumsum(1)),
        (torch.randn(4, 8),),
        ({0: AUTO, 1: AUTO},),
    ),
    "one of two sizes": (
        nn.Sequential(nn.Conv1d(2, 3, 5, stride=2), nn.MaxPool1d(3)),
        (torch.randn(2, 2, 40),),
        ({0: AUTO, 2: AUTO},),
    ),
    "at most another": (
        Two(lambda x, y: x[: y.shape[0]] + y),
        (torch.randn(8, 4), torch.randn(3, 4)),
        ({0: AUTO}, {0: AUTO}),
    ),
    "derived, one more": (
        Two(lambda x, y: x + y[1:]),
        (torch.randn(5, 4), torch.randn(6, 4)),
        ({0: GUARDED}, {0: GUARDED + 1}),
    ),
    "derived, two less": (
        Two(lambda x, y: x[2:] + y),
        (torch.randn(7, 4), torch.randn(5, 4)),
        ({0: GUARDED}, {0: GUARDED - 2}),
    ),
    "equal": (
        Two(lambda x, y: x @ y),
        (torch.randn(5, 4), torch.randn(4, 3)),
        ({1: AUTO}, {0: AUTO}),
    ),
    "windows": (
        One(lambda x: x.unfold(1, 4, 2).mean(2)),
        (torch.randn(2, 11),),
        ({0: AUTO, 1: AUTO},),
    ),
    "a product": (One(large), (torch.randn(60, 60),), ({0: AUTO, 1: AUTO},)),
    "a product of two": (
        Two(lambda x, y: x.reshape(-1) + y),
        (torch.randn(5, 6), torch.randn(30)),
        ({0: AUTO, 1: AUTO}, {0: AUTO}),
    ),
    "far longer": (
        Two(far_longer),
        (torch.randn(800, 2), torch.randn(4, 2)),
        ({0: AUTO}, {0: AUTO}),
    ),
}


def exported(name: str, deferred: bool = False) -> ExportedModule:
    module, inputs, shapes = PROGRAMS[name]
    return ExportedModule(
        torch.export.export(
            module.eval(),
            inputs,
            dynamic_shapes=shapes,
            prefer_deferred_runtime_asserts_over_guards=deferred,
        )
    )


@pytest.mark.parametrize("deferred", [False, True], ids=["guards", "assertions"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_accepts_the_sizes_of_init(name: str, deferred: bool) -> None:
    """The least, usual and greatest sizes each run, in this order on every axis. Goldens are
    recorded at these sizes and at one in between.
    """
    module = exported(name, deferred)
    specs = module.axes.specs()
    for which in range(3):
        shapes = [
            [
                axis if isinstance(axis, int) else spec.dims[axis][which]
                for axis in spec.shape
            ]
            for spec in specs
        ]
        module(*(torch.randn(shape) for shape in shapes))
    assert all(
        low <= usual <= high
        for spec in specs
        for low, usual, high in spec.dims.values()
    )
    assert not module.axes.unresolved
    spec = ModelSpec(
        "sizes", Path("sizes.pt2"), specs, profiles=(merged_profile(specs),)
    )
    recording = parity.record_goldens(module, spec)
    assert len(recording.goldens) >= 2 and not recording.reduced


def test_sizes_of_init_respect_the_bounds_of_the_program() -> None:
    """An axis begins at the least size that the guards accept, and ends at its bound."""
    dims: Profile = exported("two multiples").axes.specs()[0].dims
    assert dims == {"height": (8, 16, 36), "width": (8, 16, 36)}
    (found,) = (spec.dims for spec in exported("one of two sizes").axes.specs())
    assert found["width"] == (39, 40, 40)


def only_one_product(x: Tensor) -> Tensor:
    torch._check(x.shape[0] * x.shape[1] == 1009 * 997)
    return x * 2


def test_unresolved_sizes_are_marked() -> None:
    """The manifest of init names the condition that its sizes do not satisfy."""
    program = torch.export.export(
        One(only_one_product),
        (torch.ones(1009, 997),),
        dynamic_shapes=({0: AUTO, 1: AUTO},),
    )
    axes = ExportedModule(program).axes
    axes.specs()
    (condition,) = axes.unresolved
    assert "1005973" in condition and "length" in condition
    assert axes.comment("length").startswith("? ") and condition in axes.comment(
        "length"
    )


def narrowed(module: ExportedModule, **ranges: Range) -> tuple[TensorSpec, ...]:
    """The module's own specs with other ranges."""
    return tuple(
        replace(
            spec,
            dims={axis: ranges.get(axis, span) for axis, span in spec.dims.items()},
        )
        for spec in module.axes.specs()
    )


def test_sizes_that_violate_a_guard_are_reported() -> None:
    """The error names the guard by the names of the axes, and sizes that the program accepts."""
    module = exported("two multiples")
    with pytest.raises(
        UsageError, match=r"the min sizes .* needs .*height // 4\) != 1"
    ) as caught:
        module.axes.check(narrowed(module, height=(4, 16, 36)))
    assert str(caught.value.fix) == "write height 8, width 8 as min"
    module = exported("at most another")
    with pytest.raises(UsageError, match="needs batch_2 <= batch"):
        module.axes.check(narrowed(module, batch_2=(3, 3, 3)))


def test_relations_that_requests_must_satisfy() -> None:
    """Relations that the ranges of the manifest do not guarantee are listed."""
    module = exported("at most another")

    def needed(specs: tuple[TensorSpec, ...]) -> list[str]:
        spans = {
            axis: (span[0], span[2]) for one in specs for axis, span in one.dims.items()
        }
        return module.axes.relations(specs).needed(spans)

    assert needed(module.axes.specs()) == ["batch_2 <= batch"]
    assert needed(narrowed(module, batch=(8, 8, 9), batch_2=(2, 3, 8))) == []


def test_fixed_axis_constrains_other_axes() -> None:
    """The other sizes depend on the fixed one."""
    module = exported("a product of two")
    pair, flat = module.axes.specs()
    pair = replace(pair, shape=(3, "length"), dims={"length": (2, 5, 9)})
    module.axes.check((pair, replace(flat, dims={"batch_2": (6, 15, 27)})))
    with pytest.raises(UsageError, match=r"the program needs batch_2 = 3\*length"):
        module.axes.check((pair, replace(flat, dims={"batch_2": (6, 16, 27)})))
