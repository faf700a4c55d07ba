"""Context managers and forks are removed, and objects replaced by their attributes. Other objects
are refused by name.
"""

from __future__ import annotations

import enum
from typing import Optional

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.errors import LoweringError
from builder.lowering import ir
from tests.torchscript.saving import saved


class NestedContexts(nn.Module):
    """Nested context managers around a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.layer(x)
            with torch.autograd.profiler.record_function("branch"):
                if bool(y.sum() > 0):
                    y = y + 1
        return y.detach() * x


class Forked(nn.Module):
    """Forks a method with an argument, a module, and a list of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def scaled(self, x: Tensor, by: int) -> tuple[Tensor, Tensor]:
        return self.layer(x) * by, x + by

    def forward(self, x: Tensor) -> Tensor:
        one, pair = torch.jit.fork(self.other, x), torch.jit.fork(self.scaled, x, 2)
        tasks = [torch.jit.fork(self.layer, x * i) for i in range(3)]
        a, b = torch.jit.wait(pair)
        parts = [a, b, torch.jit.wait(one)]
        for task in tasks:
            parts.append(torch.jit.wait(task))
        return torch.cat(parts)


@pytest.mark.parametrize("kind", [NestedContexts, Forked])
def test_context_managers_and_forks_are_removed(kind: type[nn.Module]) -> None:
    """`with` was reported as state of the module, and a fork stopped the verifier."""
    torch.manual_seed(0)
    scripted = torch.jit.script(kind().eval())
    lowered = builder.lower(scripted)
    for x in (torch.ones(2, 4), -torch.ones(1, 4)):
        torch.testing.assert_close(lowered.run(x)[0], scripted(x))
    removed = (
        "prim::CreateObject",
        "prim::Enter",
        "prim::Exit",
        "prim::SetAttr",
        "prim::fork",
        "aten::wait",
    )
    assert not ir.nodes_of(lowered.graph, *removed)


def test_function_graph_with_context_manager_is_lowered() -> None:
    @torch.jit.script
    def without_gradients(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * 2

    lowered = builder.lower(without_gradients.inlined_graph)
    torch.testing.assert_close(lowered.run(torch.ones(3))[0], torch.full((3,), 2.0))


@torch.jit.script
class Total:
    def __init__(self, value: Tensor) -> None:
        self.value = value

    def add(self, value: Tensor) -> None:
        self.value = self.value + value


@torch.jit.script
class Scale:
    def __init__(self, factors: tuple[float, float], shift: Tensor) -> None:
        self.factors = factors
        self.shift = shift
        self.unread = 3

    def of(self, x: Tensor) -> Total:
        return Total(x * self.factors[1] + self.shift)


class Totals(nn.Module):
    """An object of the module creates others, which a branch and a loop change."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale((1.0, 2.0), torch.ones(1))

    def both(self, x: Tensor) -> tuple[Total, int]:
        return self.scale.of(x), x.size(0)

    def forward(self, x: Tensor) -> Tensor:
        total, rows = self.both(x)
        if bool(x.sum() > 0):
            total.value = total.value * 3
        for row in range(rows):
            total.add(x[row])
        return total.value


class TotalInList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        totals = [Total(x)]
        totals[0].add(x * 2)
        return totals[0].value


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return x @ x


class OldAutocast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.cuda.amp.autocast(enabled=False):
            return x @ x


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("module", "name", "fix"),
    [
        (TotalInList(), "Total", "variables"),
        (Mixed(), "autocast", "manifest"),
        (OldAutocast(), "autocast", "manifest"),
    ],
)
def test_object_of_torchscript_class_is_refused_by_name(
    module: nn.Module, name: str, fix: str
) -> None:
    with pytest.raises(
        LoweringError, match=rf"an object of the class \S*\.{name} is created"
    ) as error:
        builder.lower(torch.jit.script(module))
    assert "test_contexts.py:" in error.value.where and fix in error.value.fix


@torch.jit.interface
class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class ChosenLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubled(), Doubled()])

    def forward(self, x: Tensor, index: int) -> Tensor:
        layer: Layer = self.layers[index]
        return layer.forward(x)


def test_module_chosen_by_value_is_refused_with_its_line() -> None:
    """torch's own error was reported as a defect."""
    with pytest.raises(LoweringError, match="chooses a module of a list") as error:
        builder.lower(torch.jit.script(ChosenLayer()))
    assert "test_contexts.py:" in error.value.where and "for i," in error.value.fix


class LayersByKey(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Halved(), Doubled()])
        self.named = nn.ModuleDict({"twice": Doubled()})

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = self.layers[1]
        named: Layer = self.named["twice"]
        return named.forward(layer.forward(x) + 1)


def test_module_chosen_by_constant_is_called() -> None:
    scripted, x = torch.jit.script(LayersByKey()), torch.rand(2, 3)
    torch.testing.assert_close(builder.lower(scripted).run(x)[0], scripted(x))


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class Reduce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode.MEAN

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == Mode.SUM:
            return x.sum(1)
        return x.mean(1) * self.mode.value


class ReduceBySize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mode = Mode.SUM
        if x.size(0) > 1:
            mode = Mode.MEAN
        return x.sum(1) if mode == Mode.SUM else x.mean(1)


def of_file(
    module: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> torch.jit.ScriptModule:
    """The module of a file, in a process without its Python classes."""
    scripted = saved(torch.jit.script(module.eval()))
    monkeypatch.setattr(torch.jit._state, "_name_to_pyclass", {})
    return scripted


def test_attributes_of_objects_become_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not know the class of an object in a file."""
    scripted = of_file(Totals(), monkeypatch)
    lowered = builder.lower(scripted)
    for x in (torch.ones(2, 4), -torch.ones(3, 4)):
        torch.testing.assert_close(lowered.run(x)[0], scripted(x))


def test_enumeration_among_the_attributes_is_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, x = of_file(Reduce(), monkeypatch), torch.rand(2, 3)
    torch.testing.assert_close(builder.lower(module).run(x)[0], module(x))


class ReduceByData(nn.Module):
    """Members in a branch, a loop, a list, a tuple and an Optional."""

    def __init__(self) -> None:
        super().__init__()
        self.default = Mode.MEAN

    def forward(self, x: Tensor) -> Tensor:
        mode = Mode.SUM
        if bool(x.sum() > 0):
            mode = self.default
        last: Optional[Mode] = None  # noqa: UP045  # TorchScript's
        for row in range(x.size(0)):
            if bool(x[row].sum() > 1):
                last = mode
        if last is not None:
            x = x + last.value
        pair = (mode, x)
        if [mode, Mode.SUM][1] != pair[0]:
            x = x + 1
        return x * mode.value


class ReduceByIndex(nn.Module):
    """A constant list of members, and a tuple of a member and a tensor in a loop."""

    def forward(self, x: Tensor) -> Tensor:
        mode = [Mode.SUM, Mode.MEAN][x.size(0) % 2]
        pair = (mode, x)
        for row in range(x.size(0)):
            if bool(x[row].sum() > 1):
                pair = (Mode.MEAN, pair[1] + 1)
        return pair[1] * pair[0].value


class ReduceByAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode.SUM

    def forward(self, x: Tensor) -> Tensor:
        self.mode = Mode.SUM if bool(x.sum() > 0) else Mode.MEAN
        return x * self.mode.value


class ReduceByName(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mode = Mode.SUM if bool(x.sum() > 0) else Mode.MEAN
        return x * len(mode.name)


class ReduceByIdentity(nn.Module):
    """torch compares objects here, and a member may have several."""

    def forward(self, x: Tensor) -> Tensor:
        mode = Mode.SUM if bool(x.sum() > 0) else Mode.MEAN
        return x * 2 if mode is Mode.SUM else x


@pytest.mark.parametrize(
    "module", [ReduceBySize, ReduceByData, ReduceByIndex, ReduceByAttribute]
)
def test_enumeration_that_is_chosen_at_run_time_becomes_a_number(
    monkeypatch: pytest.MonkeyPatch, module: type[nn.Module]
) -> None:
    scripted = of_file(module(), monkeypatch)
    lowered = builder.lower(scripted)
    for x in (torch.ones(1, 3), torch.ones(2, 3), -torch.ones(2, 3), torch.eye(2)):
        torch.testing.assert_close(lowered.run(x)[0], scripted(x))


@pytest.mark.parametrize(
    ("module", "operator"),
    [(ReduceByName, "prim::EnumName"), (ReduceByIdentity, "aten::__is__")],
)
def test_enumeration_of_which_more_than_the_member_counts_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: type[nn.Module], operator: str
) -> None:
    scripted = of_file(module(), monkeypatch)
    with pytest.raises(LoweringError, match=f"is used by {operator}") as error:
        builder.lower(scripted)
    assert "test_contexts.py:" in error.value.where
