"""Branches and loops that only the engine can resolve, compared with torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.conversion.context import ConversionContext
from builder.conversion.sizes import kind_of
from builder.engine import capabilities
from builder.errors import EngineError, UnsupportedOperators
from tests.conversion.harness import QUICK, check, convert, layer_kinds
from tests.pipeline.known_cases import FactorBySize, PadOrCut


class BySign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):  # noqa: SIM108  (a statement is what is tested)
            y = x * 2
        else:
            y = -x.relu() + 1
        return y + 1


class BySize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 2:
            return x.softmax(0)
        return x.neg()


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flag = x.max() > 1
        if bool(flag):
            a = x + self.weight
            b = self.weight if bool(x.min() > -1) else self.weight * x[0]
        else:
            a, b = x, self.weight
        return a, b


class Number(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        factor = 2.0 if bool(x.sum() > 0) else 0.5
        return x * factor


@pytest.mark.parametrize("axes", [None, {0: "n"}])
@pytest.mark.parametrize("module", [BySign(), Nested(), Number()])
def test_a_branch_on_data(module: nn.Module, axes: dict[int, str] | None) -> None:
    x = torch.randn(4, 3)
    cases = [(x.abs(),), (-x.abs(),), (x * 0.01,), (x * 10,)]
    conversion = check(module, x, dynamic={0: axes} if axes else None, more=cases)
    assert "CONDITION" in layer_kinds(conversion)


class ReturnsOfBranches(nn.Module):
    """The second branch leaves its result unset in one block."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 3):
            return torch.tanh(x)
        elif bool(x.sum() > 0):
            return x @ x.t() @ x
        return x - 1


class UnsetInLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, 0])
        for column in range(x.size(1)):
            if bool(x[:, column].sum() < 0):
                continue
            total = total + x[:, column]
            if bool(total.max() > 3):
                break
        return total


@pytest.mark.parametrize("dynamic", [None, {0: {0: "n"}}])
@pytest.mark.parametrize("module", [ReturnsOfBranches(), UnsetInLoop()])
def test_value_that_a_block_leaves_unset(module: nn.Module, dynamic: Any) -> None:
    x = torch.tensor([[2.0, -3.0, 2.0], [1.5, 0.5, 3.0]])
    check(
        module,
        x,
        dynamic=dynamic,
        more=[(x * 0.1,), (-x,), (x.flip(1),)],
        # RTX 1.7 builds neither branches in branches of dynamic shapes, nor those in loops
        compile=dynamic is None and isinstance(module, ReturnsOfBranches),
    )


def test_branch_on_dynamic_size() -> None:
    cases = [(torch.randn(n, 3),) for n in (1, 2, 3, 8)]
    conversion = check(BySize(), torch.randn(4, 3), dynamic={0: {0: "n"}}, more=cases)
    assert "CONDITION" in layer_kinds(conversion)
    static = check(
        BySize(), torch.randn(4, 3), dynamic={0: {0: "n"}}, spans={"n": (3, 4, 8)}
    )
    assert "CONDITION" not in layer_kinds(static)


class OneElementLess(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first = 0
        if x.size(1) % 2 == 1 and x.size(0) > 1:
            x = x[1:, :-1]
            first = x.size(1)
        return x + first


WITHOUT_HOST_BOOL = pytest.mark.xfail(
    not capabilities.current().strongly_typed,
    reason="8.6 cannot copy a bool that a shape needs to the GPU (ShapeHostToDeviceCopy)",
    raises=EngineError,
)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(PadOrCut, marks=WITHOUT_HOST_BOOL),
        pytest.param(OneElementLess, marks=WITHOUT_HOST_BOOL),
        FactorBySize,
    ],
)
def test_branches_on_sizes_become_one_computation(module: type[nn.Module]) -> None:
    sent = [(torch.randn(batch, n),) for batch in (1, 3) for n in range(3, 9)]
    axes, spans = {0: {0: "batch", 1: "n"}}, {"batch": (1, 2, 3), "n": (3, 4, 8)}
    conversion = check(module(), *sent[0], dynamic=axes, spans=spans, more=sent)
    assert not any("CONDITION" in kind for kind in layer_kinds(conversion))


def test_branches_of_different_dtypes_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool(x.sum() > 0) else x.int()

    with pytest.raises(UnsupportedOperators, match="two dtypes"):
        check(Two(), torch.randn(3))


def test_unconvertible_branch_reports_its_operators() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if bool(x.sum() > 0):
                return torch.linalg.inv(x)
            return x

    with pytest.raises(UnsupportedOperators, match="linalg_inv") as caught:
        check(Fails(), torch.randn(3, 3))
    assert "prim::If" not in str(caught.value)


class Counted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[0])
        for i in range(x.size(0)):
            total = total * 0.5 + x[i]
        return total


class While(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        steps = 0
        while bool(x.abs().max() > 1):
            x = x * 0.5
            steps += 1
        return x, steps


class Number2(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        n = 1
        for i in range(x.size(0)):
            n = n + i
        return x * n


class Early(nn.Module):
    def forward(self, x: Tensor, limit: Tensor) -> Tensor:
        total = torch.zeros_like(x[0])
        i = 0
        while i < x.size(0) and bool(total.sum() < limit):
            total = total + x[i]
            i += 1
        return total


class BranchInLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x[0]
        for i in range(x.size(0)):
            if bool(x[i].sum() > 0):  # noqa: SIM108
                y = y + x[i]
            else:
                y = y * 0.5
        return y


class NoneBefore(nn.Module):
    """Only the first iteration reads None: it runs before the loop."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        previous: Tensor | None = None
        rows: list[Tensor] = []
        for i in range(x.shape[0]):
            row = x[i] * i
            if previous is not None:
                row = row + previous * 0.5
            previous = row
            rows.append(row)
        assert previous is not None
        return torch.stack(rows), previous


class PairBefore(nn.Module):
    """The tuple is read in a branch on None inside another one."""

    def forward(self, x: Tensor) -> Tensor:
        pair: tuple[Tensor, Tensor] | None = None
        x = x.relu()
        for i in range(x.size(0)):
            if pair is not None:
                pair = (pair[0] + x[i], pair[1])
            pair = (x[i], x[i] * 2) if pair is None else (pair[0], pair[1] * 0.5)
        assert pair is not None
        return pair[0] * pair[1]


class WhileBelowSize(nn.Module):
    """Only the condition of the first iteration is known at build time.

    TensorRT 8.6 builds no loop that writes rows.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        i = 0
        while i < x.size(0):
            y[i] = x[i] * i
            i += 2
        return y * i


def rows(*counts: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(n, 3),) for n in counts]


@pytest.mark.parametrize(
    "module",
    [
        Counted(),
        Number2(),
        BranchInLoop(),
        NoneBefore(),
        PairBefore(),
        WhileBelowSize(),
    ],
)
def test_loop_over_dynamic_axis(module: nn.Module) -> None:
    if isinstance(module, WhileBelowSize) and not capabilities.current().strongly_typed:
        pytest.skip("8.6 crashes, or mixes rows up: test_rows_written_in_a_loop")
    conversion = check(
        module,
        torch.randn(4, 3),
        dynamic={0: {0: "t"}},
        more=rows(1, 3, 8),
        rtol=1e-5,
        atol=1e-5,
    )
    assert "RECURRENCE" in layer_kinds(conversion)


class Halved(While):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        while bool(x.abs().max() > 1):
            x = x * 0.5
        return x, x + 1


class Steps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        steps = 0
        while bool(x.abs().max() > 1):
            x = x * 0.5
            steps += 1
        return x * steps


@pytest.mark.parametrize(
    ("module", "axes", "count"), [(Halved(), {0: {0: "n"}}, 2), (Steps(), None, 4)]
)
def test_loop_whose_end_depends_on_data(
    module: nn.Module, axes: Any, count: int
) -> None:
    check(
        module,
        torch.randn(4, 3) * 20,
        dynamic=axes,
        more=[(torch.zeros(count, 3),), (torch.ones(count, 3) * 1000,)],
    )


def test_while_loop_with_two_conditions() -> None:
    x = torch.rand(6, 3)
    more: list[Any] = [(x, torch.tensor(2.0)), (x, torch.tensor(-1.0))]
    check(Early(), x, torch.tensor(100.0), more=more, rtol=1e-5)


class Grows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x[0:1]
        for _ in range(x.size(0)):
            y = torch.cat([y, y])
        return y


class Swaps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x
        for _ in range(x.size(0)):
            y = y.t() * 2
        return y


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Grows(), "before an iteration"),
        (Swaps(), r"axis 0 of %y\S* is n before an iteration of the loop and m after"),
    ],
)
def test_loop_carried_value_of_changing_shape_is_refused(
    module: nn.Module, reason: str
) -> None:
    spec = builder.TensorSpec(
        "float32", ("n", "m"), dims={"n": (1, 4, 8), "m": (1, 3, 8)}
    )
    with pytest.raises(UnsupportedOperators, match=reason):
        builder.convert(torch.jit.script(module), [spec])


class ColumnsWritten(nn.Module):
    """Columns are counted from the end."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.t().clone()
        for i in range(1, x.size(0)):
            y[:, -i] = x[i] * 2
        return y


class RowsWritten(nn.Module):
    """Every row is computed from the one before and written in its position."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        for i in range(1, x.size(0)):
            y[i] = y[i] + y[i - 1] * 0.5
        return y


class RowsWrittenBackwards(nn.Module):
    """Every row from the one after it."""

    def forward(self, x: Tensor) -> Tensor:
        b = x.clone()
        for i in range(x.size(0) - 1, 0, -1):
            b[i - 1] = b[i - 1] + b[i] * 0.5
        return b


@pytest.mark.parametrize(
    ("module", "compile"),
    [
        (ColumnsWritten(), True),
        (RowsWritten(), False),
        (RowsWrittenBackwards(), False),
        pytest.param(RowsWritten(), True, marks=pytest.mark.slow),
    ],
)
def test_rows_written_in_a_loop(module: nn.Module, compile: bool) -> None:
    """A plan is compiled: TensorRT builds no slices of changing length within a loop. It takes
    three seconds where rows depend on each other.
    """
    # 8.6 crashes where the rows depend on each other, and gave others' else
    if not capabilities.current().strongly_typed:
        with pytest.raises(
            UnsupportedOperators, match=r"8\.6 crashes, or mixes rows up"
        ):
            builder.convert(
                torch.jit.script(module),
                [builder.TensorSpec("float32", ("n", 3), {"n": (1, 4, 8)})],
            )
        return
    check(
        module,
        *rows(4)[0],
        dynamic={0: {0: "n"}},
        more=rows(1, 2, 7),
        compile=compile,
    )


BREAKS_LAST = """
graph(%x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %true : bool = prim::Constant[value=1]()
  %y : Tensor, %k : int = prim::Loop(%two, %true, %x, %zero)
    block0(%i : int, %before : Tensor, %count : int):
      %after : Tensor = aten::add(%before, %i, %one)
      %more : int = aten::add(%count, %two)
      %size : int = aten::size(%x, %zero)
      %goes_on : bool = aten::le(%more, %size)
      -> (%goes_on, %after, %more)
  return (%y)
"""
"""Only the last iteration compares the size with a number in its range."""


def test_condition_after_last_iteration_is_not_read() -> None:
    x, spans = torch.randn(4), {"n": (3, 4, 8)}
    conversion = check(
        BREAKS_LAST, x, dynamic={0: {0: "n"}}, spans=spans, more=[(x[:3],)]
    )
    assert "LOOP_OUTPUT" not in layer_kinds(conversion)


class Prefixes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(x.size(1))
        for i in range(x.size(0)):
            y = y + x[: i + 1].sum(0)
        return y


class Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sum()
        for i in range(x.size(0)):
            y = y + torch.arange(i).sum()
        return y


@pytest.mark.parametrize("module", [Prefixes(), Counts()])
def test_slices_of_changing_length_in_a_loop_are_refused(module: nn.Module) -> None:
    spec = builder.TensorSpec("float32", ("n", 3), dims={"n": (1, 2, 4)})
    with pytest.raises(
        UnsupportedOperators, match="changes between iterations"
    ) as caught:
        builder.convert(torch.jit.script(module), [spec])
    assert "test_control.py" in str(caught.value)


class Chosen(nn.Module):
    """Numbers that branches on a dynamic size choose, and sizes made of them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        half = x.size(0) // 2 if x.size(0) > 3 else x.size(0)
        if x.size(0) > 4 and x.size(0) % 2 == 0:
            parts = 2
        elif x.size(0) == 3:
            parts = 3
        else:
            parts = 1
        return (
            x[:half],
            x.reshape(parts, -1),
            torch.arange(half) * parts,
            x.repeat(half),
        )


def test_number_from_branch_on_dynamic_size_is_a_size() -> None:
    """TensorRT does not accept the output of a conditional as a size. It used to fail with an
    assertion.
    """
    cases = [(torch.randn(n),) for n in (1, 2, 3, 5, 6, 8)]
    conversion = check(Chosen(), torch.randn(4), dynamic={0: {0: "n"}}, more=cases)
    assert "CONDITION" not in layer_kinds(conversion)


class Divided(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = int(x.size(0)), int(y.size(0)) - 1
        n = a // b if b > 0 else a
        return x * n


def test_dividing_branch_runs_only_when_taken() -> None:
    """With one row in y, the branch that is not taken would divide by zero."""
    x, dynamic = torch.randn(4), {0: {0: "n"}, 1: {0: "m"}}
    more = [(torch.randn(6), torch.randn(1)), (torch.randn(6), torch.randn(3))]
    # "conditionally dependent shape tensors not supported"
    if not capabilities.current().strongly_typed:
        with pytest.raises(
            UnsupportedOperators,
            match=r"TensorRT 8\.6 cannot build .* from sizes \(by aten::floordiv\)",
        ):
            check(Divided(), x, torch.randn(2), dynamic=dynamic, more=more)
        return
    conversion = check(Divided(), x, torch.randn(2), dynamic=dynamic, more=more)
    assert "CONDITION" in layer_kinds(conversion)


_BRANCH = "n = 2 if bool(x.sum() > 0) else 3"
_LATE = {
    "reshape": (_BRANCH, "x.reshape(n, -1)"),
    "view": (_BRANCH, "x.view([n, 6 // n])"),
    "expand": (_BRANCH, "x.expand(n, 6)"),
    "repeat": (_BRANCH, "x.repeat(n)"),
    "slice": (_BRANCH, "x[:n]"),
    "zeros": (_BRANCH, "torch.zeros(n, 2)"),
    "arange": (_BRANCH, "torch.arange(n)"),
    "a block that may not run": (
        "n = int(x.argmax()) // int(x.sum()) if bool(x.sum() > 0) else 3",
        "x[:n]",
    ),
    "counted": ("n = int((x > 0).sum())", "x[n:]"),
    "found": ("n = int(x.argmax())", "x[: n + 1]"),
    "read": ("n = int(x[0])", "x.reshape(n, -1)"),
}


@pytest.mark.parametrize("name", _LATE)
@pytest.mark.parametrize("axes", [None, {0: {0: "n"}}])
def test_data_dependent_size_is_refused_with_source_line(name: str, axes: Any) -> None:
    """This was reported as a defect of trt-build, and later layers failed, too."""
    line, value = _LATE[name]
    module = torch.jit.CompilationUnit(
        f"def forward(x):\n    {line}\n    return {value}, (x + 1).relu() @ x\n"
    )
    with pytest.raises(UnsupportedOperators) as error:
        convert(
            module.forward.graph, [torch.tensor([2.0, 1, 0, -1, 0, 0])], dynamic=axes
        )
    assert error.value.message.startswith("1 node cannot be converted")
    (operator,) = error.value.operators
    assert (
        operator.reason
        == "a size depends on data, and TensorRT computes sizes from shapes only"
    )
    assert operator.where.startswith("<string>:3: ")


@pytest.mark.parametrize(
    "value", ["x.softmax(n - 2)", "x.unfold(0, n, 1)", "torch.stack([x] * n)"]
)
def test_error_of_static_number_names_no_axis(value: str) -> None:
    module = torch.jit.CompilationUnit(
        f"def forward(x):\n    {_BRANCH}\n    return {value}\n"
    )
    with pytest.raises(UnsupportedOperators, match="but it is computed at run time"):
        convert(module.forward.graph, [torch.randn(6)])


class Breaks(nn.Module):
    """A number or the data end the loop."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        count = 0
        while True:
            x = x * 0.5
            count += 1
            if count > 3 or bool(x.abs().sum() < 0.5):
                break
        return x, count


class Returned(torch.nn.Module):
    def first(self, x: Tensor, least: float) -> tuple[Tensor, int]:
        for i in range(x.size(0)):
            row = x[i] * 2
            if bool(row.sum() > least):
                return row.half(), i
            x = x + 0.25
        return x[-1].half(), -1

    def pair(self, x: Tensor) -> Tensor:
        for i in range(x.size(0)):
            for j in range(x.size(1)):
                if bool(x[i, j] > 1):
                    return x * j > 0
        return x > 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        row, i = self.first(x, 3.0)
        other, j = self.first(-x, 0.5)
        return (row - other) * (i + 2 * j), self.pair(x)


@pytest.mark.parametrize("dynamic", [{}, {0: {0: "n", 1: "m"}}])
@pytest.mark.skipif(
    not capabilities.current().strongly_typed,
    reason="8.6 has no conditionals in loops",
)
def test_return_inside_a_loop(dynamic: dict[int, dict[int, str]]) -> None:
    samples = [torch.randn(4, 3) * scale for scale in (0.1, 1, 4, -2)]
    more = [(x,) for x in samples]
    if dynamic:
        more += [(torch.randn(size),) for size in ((1, 1), (7, 2), (2, 5))]
    check(Returned(), torch.zeros(4, 3), dynamic=dynamic, more=more)


class OptionalByData(torch.nn.Module):
    def pick(self, x: Tensor) -> tuple[Tensor | None, int | None]:
        if bool(x.sum() > 0):
            return None, 3
        return x * 2, None

    def first(self, x: Tensor) -> Tensor | None:
        for i in range(x.size(0)):
            if bool(x[i].sum() > 1):
                return x[i]
        return None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, number = self.pick(x)
        row = self.first(x)
        if bool(x[0, 0] < -1):
            y = x - 1
        z = x
        if y is not None:
            z = z + y
        if number is not None:
            z = z * number
        return z, x[0] if row is None else row * 2


@pytest.mark.skipif(
    not capabilities.current().strongly_typed,
    reason="8.6 has no conditionals in loops",
)
def test_optional_values_that_data_decides() -> None:
    more = [(torch.randn(n, 3) * scale,) for n in (1, 2, 6) for scale in (0.2, 3, -3)]
    check(OptionalByData(), torch.zeros(3, 3), dynamic={0: {0: "n"}}, more=more)


def test_loop_with_data_dependent_break() -> None:
    """The condition is known for the first iteration only. Such a loop used to be unrolled to that
    point and refused.
    """
    cases = [(x,) for x in (torch.ones(3, 4) * 100, torch.ones(1, 4) * 0.01)]
    conversion = check(
        Breaks(),
        torch.ones(2, 2),
        dynamic={0: {0: "n", 1: "m"}},
        more=cases,
        expected=_counted,
    )
    assert "TRIP_LIMIT" in layer_kinds(conversion)


def _counted(x: Tensor) -> tuple[Tensor, Tensor]:
    y, count = Breaks()(x)
    return y, torch.tensor(count)


class Mixed(nn.Module):
    """The precision makes one side of a branch or iteration half; the other side is kept in
    float32.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, 0] if self.kind == "branch" else torch.zeros(x.size(0), 4)
        if self.kind == "branch":
            if bool(x.sum() > 0):
                h = self.a(h)
        elif self.kind == "blocks":
            h = torch.softmax(x[:, 0], -1) if bool(x.sum() > 0) else self.a(x[:, 0])
        elif self.kind == "loop":
            for i in range(x.size(1)):
                h = torch.tanh(self.a(h) + self.b(x[:, i]))
        elif self.kind == "loop of float32":
            h = self.a(x[:, 0])
            for i in range(x.size(1)):
                h = torch.softmax(self.a(h), -1) + x[:, i]
        else:
            n = 0
            while bool(h.sum() < 3.0) and n < 5:
                h = torch.tanh(self.a(h)) * 0.5 + 1
                n += 1
        return h


@pytest.mark.parametrize(
    "kind", ["branch", "blocks", "loop", "loop of float32", "while"]
)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_reduced_precision_keeps_one_dtype_per_value(
    kind: str, precision: str, strongly_typed: None
) -> None:
    module, x = Mixed(kind).requires_grad_(False), torch.randn(2, 5, 4)
    spec = builder.TensorSpec(
        "float32", ("n", "t", 4), dims={"n": (1, 2, 4), "t": (1, 5, 9)}
    )
    conversion = builder.convert(torch.jit.script(module), [spec], precision=precision)
    builder.build_engine(conversion, QUICK)
    close = {"fp16": 5e-3, "bf16": 4e-2}[precision]
    for case in (x, -x, x[:1, :1]):
        (got,) = builder.reference.run(conversion, [case])
        torch.testing.assert_close(got, module(case), rtol=close, atol=close)


def test_half_module_of_two_dtypes_is_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.float() if bool(x.sum() > 0) else x

    spec = builder.TensorSpec("float16", (3,))
    with pytest.raises(UnsupportedOperators, match="of two dtypes"):
        builder.convert(torch.jit.script(Two()), [spec], precision="fp16")


def lists_of_branch(x: Tensor) -> Tensor:
    return x * len([x] if bool(x.sum() > 0) else [x, x])


def text_of_loop(x: Tensor) -> Tensor:
    state = (x, "a")
    for _ in range(int(x[0])):
        state = (state[0] * 2, state[1] + "b")
    return state[0] * len(state[1])


def returned_by_loop(x: Tensor) -> Tensor:
    for i in range(x.size(0)):
        if bool(x[i] > 5):
            return torch.cat([x, x])
    return x


def none_before_loop(x: Tensor) -> Tensor:
    best: Tensor | None = None
    for i in range(x.size(0) - 3):  # there may be no iteration
        best = x[i] if best is None else torch.maximum(best, x[i])
    assert best is not None
    return best


def none_of_branch(x: Tensor) -> Tensor:
    largest: Tensor | None = None
    if bool(x.sum() > 0):
        largest = x * 2
    return torch.clamp(x, max=largest)


def half_or_all(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        if bool(x.max() > 3):
            return x[: x.size(0) // 2]
        x = x + 1
    return x


def one_or_two(x: Tensor) -> list[Tensor]:
    if bool(x.sum() > 0):
        if bool(x.max() > 3):
            return [x]
        x = x + 1
    return [x, x]


def length_of_list(x: Tensor) -> Tensor:
    return x * len(one_or_two(x))


def ranks_of_loop(x: Tensor) -> Tensor:
    state = (x, x)
    for _ in range(int(x[0])):
        state = (state[0].unsqueeze(0), state[1] + 1)
    return state[0]


def lengths_of_loop(x: Tensor) -> Tensor:
    state = (x, x)
    for _ in range(int(x[0])):
        state = (state[0].repeat(2), state[1] + 1)
    return state[0]


def lists_of_conditional_loop(x: Tensor) -> Tensor:
    keep: list[int] = []
    for i in range(x.size(0)):
        if bool(x[i] > 0):
            continue
        keep.append(i)
    return x * len(keep)


def dtypes_of_branch(x: Tensor) -> Tensor:
    return (x if bool(x.sum() > 0) else x.int()) * 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            returned_by_loop,
            "leaves one of its values unset, and its shape is known only",
        ),
        (none_before_loop, "the loop-carried value %best.* is None before the loop"),
        (none_of_branch, "decides at run time whether %largest.* is None"),
        (lists_of_branch, "decides what one of its values is"),
        (text_of_loop, "a loop-carried value is not a tensor or a number"),
        (half_or_all, "leaves one of its values unset, and its shape is known only in"),
        (length_of_list, "decides what one of its values is"),
        (ranks_of_loop, "the loop carries a value of two ranks"),
        (lengths_of_loop, "axis 0 of a loop-carried value is n before an iteration"),
        (lists_of_conditional_loop, "decides what one of its values is"),
        (dtypes_of_branch, "the branch give one of its values of two dtypes"),
    ],
)
def test_refused_values_of_loops_and_branches_are_described(
    function: Any, message: str
) -> None:
    if not capabilities.current().strongly_typed:
        message += "|has a loop of unknown length and a branch"
    with pytest.raises(UnsupportedOperators, match=message):
        builder.convert(
            torch.jit.script(function),
            [builder.TensorSpec("float32", ("n",), {"n": (3, 3, 4)})],
        )


class BothPassedOn(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c = x, y, x - y
        if bool(y.sum() > 0):
            b = c * 2
        else:
            a, b = c, c
        return a, b


class Exchanged(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if bool(y.sum() > 0):
            if bool(x.sum() > 0):
                x = y
            else:
                y = x * 2
        else:
            x, y = y, x
        return x, y


@pytest.mark.parametrize("module", [BothPassedOn(), Exchanged()])
def test_block_that_passes_outside_tensors_on(module: nn.Module) -> None:
    """TensorRT 8.6 left such outputs unwritten without an identity layer in the block."""
    samples = [
        [torch.randn(4, 3) + a, torch.randn(4, 3) + b] for a in (-3, 3) for b in (-3, 3)
    ]
    conversion = check(
        module, *samples[0], dynamic={0: {0: "n"}, 1: {0: "n"}}, more=samples[1:]
    )
    network = conversion.network
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    merged = [layer for layer in layers if kind_of(layer) == "CONDITIONAL_OUTPUT"]
    identities = {
        layer.get_output(0).name for layer in layers if kind_of(layer) == "IDENTITY"
    }
    assert merged
    for layer in merged:
        assert {layer.get_input(0).name, layer.get_input(1).name} <= identities


def with_numbers(x: Tensor) -> tuple[Tensor, list[int]]:
    if bool(x.sum() > 0):
        if bool(x.max() > 3):
            return x * 2, [1, 2]
        x = x + 1
    return x, [1, 2]


def times_numbers(x: Tensor) -> Tensor:
    y, numbers = with_numbers(x)
    return y * len(numbers)


def test_unset_list_is_that_of_the_other_block() -> None:
    more = [(-torch.ones(3),), (torch.arange(3.0) + 3,)]
    check(torch.jit.script(times_numbers), torch.ones(3), more=more)


def values_of_a_dictionary(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    parts = {"x": x, "y": y}
    total = x * y
    for part in parts.values():
        total = total - part
    return total.relu(), (parts["x"] + parts["y"]).flip([0])


def test_iterations_have_distinct_tensor_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT 8.6 did not build a network with two tensors of one name."""
    names, rename = [], ConversionContext.rename

    def record(ctx: ConversionContext, tensor: Any, name: str) -> None:
        names.append(name)
        rename(ctx, tensor, name)

    monkeypatch.setattr(ConversionContext, "rename", record)
    spec = builder.TensorSpec("float32", ("n", 3), {"n": (1, 2, 4)})
    builder.convert(torch.jit.script(values_of_a_dictionary), [spec, spec])
    assert len(names) == len(set(names))


def list_beside_a_branch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    parts = [x]
    if bool(x.sum() > 0):
        parts = parts[:2]
        y = (y * 2).cumsum(0)
    else:
        y = y.cumsum(0)
    return y, torch.stack(parts).mean(0)


def test_list_that_a_branch_passes_on_has_the_tensors_outside() -> None:
    """`stack` read the input layer of the conditional."""
    check(torch.jit.script(list_beside_a_branch), torch.randn(2, 3), torch.randn(2, 3))


class Steps(nn.Module):
    """The steps of a solver of differential equations: reads two neighboring times."""

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        out = [x]
        for i in range(times.size(0) - 1):
            x = x + (times[i + 1] - times[i])
            out.append(x)
        return torch.stack(out)


class BackwardSteps(nn.Module):
    """As Steps, from the last time to the first."""

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        out = [x]
        for i in range(times.size(0) - 2, -1, -1):
            x = x + (times[i + 1] - times[i])
            out.append(x)
        return torch.stack(out)


@pytest.mark.parametrize("module", [Steps(), BackwardSteps()])
def test_a_loop_without_iterations_reads_nothing(module: nn.Module) -> None:
    x, times = torch.randn(2), torch.tensor([0.0, 0.5, 2.0])
    check(module, x, times, dynamic={1: {0: "t"}}, more=[(x, times[:1])])
