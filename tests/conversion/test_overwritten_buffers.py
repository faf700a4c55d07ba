"""Modules that overwrite a buffer before they read it: no request depends on an earlier one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.errors import LoweringError
from tests.conversion.harness import check, module_of


class Buffer(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("kept", torch.randn(shape))
        self.kept: Tensor


class Slice(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[:] = x
        return self.kept * 2


class Dots(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[...] = x
        return self.kept * 2


class Copy(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        return self.kept.copy_(x) + self.kept


class Fill(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept.fill_(3.0)
        self.kept.add_(x)
        return self.kept


class Zero(Buffer):
    """The size is read before the write, and a part is written after it."""

    def forward(self, x: Tensor) -> Tensor:
        if self.kept.size(0) > 9:
            x = x + 1
        self.kept[:9].zero_()
        self.kept[:1] += x[:1]
        return self.kept * 2


class Half(Buffer):
    """The write rounds to the dtype of the buffer."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.kept = self.kept.half()

    def forward(self, x: Tensor) -> Tensor:
        self.kept.copy_(x)
        return self.kept.float() * 2


WHOLE = [Slice, Dots, Copy, Fill, Zero, Half]


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("kind", WHOLE)
def test_write_of_the_whole_buffer(kind: type[Buffer], *, trace: bool) -> None:
    check(kind(3, 4), torch.randn(3, 4), more=[(torch.randn(3, 4),)], trace=trace)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (2, 1, 3, 4)])
def test_ranks(shape: tuple[int, ...]) -> None:
    check(Slice(*shape), torch.randn(shape), compile=False)


def test_all_axes() -> None:
    class Axes(Buffer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept[:, :4, 0:] = x
            return self.kept * 2

    check(Axes(2, 3, 4), torch.randn(2, 3, 4))


def test_buffer_without_axes() -> None:
    class Total(Buffer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept.copy_(x.sum())
            return x + self.kept

    check(Total(), torch.randint(9, (3, 4)).float())


@pytest.mark.parametrize("kind", [Slice, Copy])
def test_dynamic_axis(kind: type[Buffer]) -> None:
    """One row is repeated to all rows of the buffer. torch takes no other count."""
    axes = {0: {0: "n"}}
    spans = {"n": (1, 3, 3)}
    rows = [(torch.randn(1, 4),)]
    check(kind(3, 4), torch.randn(3, 4), dynamic=axes, spans=spans, more=rows)


def test_dynamic_axis_that_the_buffer_does_not_have() -> None:
    class Scale(Buffer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept[:] = x.mean(0)
            return x * self.kept

    axes = {0: {0: "n"}}
    more = [(torch.randn(1, 4),), (torch.randn(6, 4),)]
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    check(Scale(4), torch.randn(3, 4), dynamic=axes, more=more, **tolerance)


class Twice(nn.Module):
    """A submodule that is called twice, and one module at two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Slice(3, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) + self.first(x + 1)
        return self.second(y) + self.first.kept


@pytest.mark.parametrize("trace", [True, False])
def test_shared_submodule(*, trace: bool) -> None:
    check(Twice(), torch.randn(3, 4), trace=trace)


def test_lowering_does_not_write_the_buffer() -> None:
    module = module_of(Slice(3, 4), [])
    before = module.kept.clone()
    lowered = builder.lower(module)
    lowered.run(torch.randn(3, 4))
    assert torch.equal(module.kept, before)


class Before(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.kept.sum()
        self.kept.copy_(x)
        return self.kept + y


class Itself(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept.copy_(self.kept + x)
        return self.kept * 2


class Part(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[: x.size(0)] = x
        return self.kept * 2


class Rows(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[:2] = x[:2]
        return self.kept * 2


class Tail(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[1:] = x[1:]
        return self.kept * 2


class Step(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[::2] = x[::2]
        return self.kept * 2


class Column(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[:, :1] = x[:, :1]
        return self.kept * 2


class Branch(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.kept.copy_(x)
        return self.kept * 2


class Loop(Buffer):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.sum())):
            x = x + self.kept
        self.kept.copy_(x)
        return self.kept * 2


class Tied(Buffer):
    """Two buffers of one memory."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.register_buffer("rows", self.kept[:1])
        self.rows: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.rows
        self.kept.copy_(x)
        return self.kept + y


STATE = [Before, Itself, Part, Rows, Tail, Step, Column, Branch, Loop, Tied]


@pytest.mark.parametrize("kind", STATE)
def test_state_is_refused(kind: type[Buffer]) -> None:
    module = module_of(kind(3, 4), [])
    with pytest.raises(LoweringError, match=r"would stay changed|state"):
        builder.lower(module)
