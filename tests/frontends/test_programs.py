"""An exported program becomes a graph with the program's results, names and source locations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import builder
from builder.errors import LoweringError, UsageError
from builder.frontends import ExportedModule
from builder.frontends.export.assertions import depends_on_data
from builder.lowering import ir, path_of, source_location

BATCH = Dim("batch", min=2, max=16)


def exported(
    module: torch.nn.Module, *inputs: torch.Tensor
) -> torch.export.ExportedProgram:
    """The module in evaluation mode, with a dynamic first axis in every input."""
    shapes = tuple({0: BATCH} for _ in inputs)
    return torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)


def test_input_and_output_names_follow_the_structure(
    small: torch.export.ExportedProgram,
) -> None:
    """Arguments and results get the names that TorchScript models get."""
    lowered = builder.lower(small)
    assert lowered.inputs == ("x", "extra.bias")
    assert lowered.outputs == ("whole", "halves")


def test_inputs_have_names_that_endpoints_accept() -> None:
    class Keys(torch.nn.Module):
        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            return x["größe"] + x["gr__e"]

    x = {"größe": torch.ones(2), "gr__e": torch.ones(2)}
    program = torch.export.export(Keys(), (x,))
    assert ExportedModule(program).inputs == ("x.gr__e", "x.gr__e_2")


class Asserts(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > -10).all(), "too small")
        length = n.item()
        torch._check(length <= 2)
        torch._check(x.shape[0] > 1)
        positive = x[x > 0]
        return positive.to(torch.float64).sum() + x[:, :length]


@pytest.mark.parametrize("decomposed", [False, True])
def test_assertions_on_values_are_noted_with_their_lines(decomposed: bool) -> None:
    arguments = (torch.ones(4, 4), torch.tensor(2))
    program = torch.export.export(
        Asserts(), arguments, dynamic_shapes=({0: Dim("batch", min=2)}, None)
    )
    if decomposed:
        program = program.run_decompositions()
    lines = [where.split(": ", 1)[1] for where in builder.lower(program).unchecked]
    assert lines == [
        'torch._assert_async((x > -10).all(), "too small")',
        "length = n.item()",
    ]


def test_condition_on_shared_sizes_visits_each_node_once() -> None:
    graph = torch.fx.Graph()
    size = graph.placeholder("size")
    for _ in range(60):
        size = graph.call_function(
            operator.sub, (size, graph.call_function(operator.neg, (size,)))
        )
    assert not depends_on_data(graph.call_function(torch._check, (size,)))


def test_nodes_have_module_path_and_source_location(
    small: torch.export.ExportedProgram,
) -> None:
    """A layer has the path of its module, a message the model's own line."""
    lowered = builder.lower(small)
    linear = ir.nodes_of(lowered.graph, "aten::linear")
    paths = [path_of(node.getModuleHierarchy(), lowered.containers) for node in linear]
    assert paths == ["layers.0", "layers.1"]
    where = source_location(linear[0])
    assert "conftest.py:" in where and ": x = torch.relu(layer(x))" in where


def test_fallback_modules_are_marked_by_path(
    small: torch.export.ExportedProgram,
) -> None:
    """`fallback.modules` marks the nodes of a module by its path."""
    lowered = builder.lower(small, fallback_modules=["layers.1"])
    marked = [node for node in ir.walk(lowered.graph) if ir.in_fallback(node)]
    assert [node.kind() for node in marked] == ["aten::linear"]


class Sizes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.shape[0]
        ramp = torch.arange(rows).float() / rows
        grown = x.new_zeros((rows * 2 + 1, 3)).reshape(-1, 3)
        return ramp, grown, x.view(rows, 2, -1), torch.where(x > 0, x, 0.5)


class Lists(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x.split([2, 4], dim=1)
        picked = x[:, [0, 3]]
        values, order = x.sort(dim=1)
        return (
            torch.cat([first, second, picked], 1),
            values,
            order,
            torch.stack(x.unbind(1)),
        )


class Writes(torch.nn.Module):
    """Writes in place to values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        y = self.norm(x).clone()
        y[:, 0] = 1
        return y.mul_(2)


@pytest.mark.parametrize(
    "build", [Sizes, Lists, Writes], ids=lambda kind: kind.__name__
)
def test_graphs_have_the_results_of_the_program(
    build: Callable[[], torch.nn.Module],
) -> None:
    """The lowered graph has the results of the program, at sizes that it was not exported with,
    and converts whole.
    """
    program = exported(build(), torch.randn(4, 6))
    module = ExportedModule(program)
    lowered = builder.lower(program, specs=module.axes.specs())
    for rows in (2, 7):
        x = torch.randn(rows, 6)
        expected, found = module(x.clone()), lowered.run(x)
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(torch.as_tensor(one), other)
    conversion = builder.convert(program)
    sample = torch.randn(5, 6)
    outputs = builder.reference.run(conversion, [sample])
    for one, other in zip(module(sample.clone()), outputs, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other, check_dtype=False)


class ControlFlow(torch.nn.Module):
    """Every operator that holds a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from torch._higher_order_ops import map as map_rows
        from torch._higher_order_ops import scan, while_loop

        chosen = torch.cond(
            x.sum() > 0, lambda y: self.yes(y).relu(), lambda y: self.no(y), (x,)
        )
        halved, count = while_loop(
            lambda y, n: y.abs().max() > 1,
            lambda y, n: (y / 2, n + 1),
            (x.clone(), torch.zeros(1, dtype=torch.int64)),
        )
        total, sums = scan(
            lambda total, row: (total + row, total * row), torch.ones(6), x
        )
        rows = map_rows(lambda row, scale: row * scale, x, torch.tensor(3.0))
        return chosen, halved, count, total, sums, rows


@pytest.mark.slow
def test_control_flow() -> None:
    """Branches and loops have the control flow of the program."""
    program = exported(ControlFlow(), torch.randn(4, 6))
    module = ExportedModule(program)
    lowered = builder.lower(program, specs=module.axes.specs())
    assert ir.nodes_of(lowered.graph, "prim::If") and ir.nodes_of(
        lowered.graph, "prim::Loop"
    )
    for x in (torch.full((3, 6), 2.0), -5 * torch.ones(5, 6)):
        for one, other in zip(module(x), lowered.run(x), strict=True):
            torch.testing.assert_close(one, other)


class Keeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return x + self.total


def test_state_is_refused() -> None:
    """A buffer that is written and read is state, which the error names."""
    with pytest.raises(
        LoweringError, match="keeps state in the buffer 'total'"
    ) as caught:
        ExportedModule(exported(Keeps(), torch.randn(4, 6)))
    assert "test_programs.py" in str(caught.value.where)


def test_training_mode_is_refused() -> None:
    """The error has the fix: export for inference."""
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5)).train()
    program = torch.export.export(module, (torch.randn(4, 6),))
    with pytest.raises(LoweringError, match="training mode") as caught:
        ExportedModule(program)
    assert "model.eval()" in str(caught.value.fix)


def test_specs_may_only_narrow_ranges(small: torch.export.ExportedProgram) -> None:
    """The program's own ranges hold; an error names the constraint."""
    axes = ExportedModule(small).axes
    own = axes.specs()
    assert own[0].shape == ("batch", 4) and own[0].dims["batch"] == (2, 8, 16)
    narrow = builder.TensorSpec("float32", ("rows", 4), dims={"rows": (3, 4, 5)})
    assert [spec.name for spec in axes.chosen([narrow, own[1]])] == ["x", "extra.bias"]
    wide = builder.TensorSpec("float32", ("rows", 4), dims={"rows": (1, 4, 32)})
    with pytest.raises(UsageError, match=r"2 <= s\d+ <= 16"):
        axes.chosen([wide, own[1]])
    single = builder.TensorSpec("float32", ("rows", 4), dims={"rows": (1, 1, 16)})
    assert axes.chosen([single, own[1]])[0].dims["rows"] == (1, 1, 16)
    fixed = builder.TensorSpec("float32", ("n",), dims={"n": (1, 4, 8)})
    with pytest.raises(UsageError, match="exported for the size 4 only"):
        axes.chosen([own[0], fixed])


class Options(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, *, scale: float = 2.0, mask: torch.Tensor | None = None
    ) -> dict[str, Any]:
        y = x * scale
        return {"y": y if mask is None else y * mask, "rows": x.shape[0], "none": None}


def test_compiled_program_has_the_signature_of_the_module() -> None:
    """Keywords, structures, numbers and None equal those of the original."""
    arguments, keywords = (
        (torch.randn(4, 6),),
        {"scale": 3.0, "mask": torch.randn(4, 6)},
    )
    shapes = {"x": {0: BATCH}, "scale": None, "mask": {0: BATCH}}
    program = torch.export.export(Options(), arguments, keywords, dynamic_shapes=shapes)
    compiled = builder.compile(program)
    x, mask = torch.randn(5, 6), torch.randn(5, 6)
    output = compiled(x, mask=mask, scale=3.0)
    assert output["rows"] == 5 and output["none"] is None
    torch.testing.assert_close(output["y"], x * 3 * mask)
    with pytest.raises(UsageError, match=r"exported with 3\.0"):
        compiled(x, mask=mask, scale=4.0)
    with pytest.raises(TypeError, match="structure"):
        compiled(x)


class Times(torch.nn.Module):
    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x * count


def test_symbolic_number_is_a_scalar_input() -> None:
    """An integer that was exported as dynamic is read from a tensor of one element."""
    shapes = ({0: BATCH}, Dim.DYNAMIC)
    program = torch.export.export(
        Times(), (torch.randn(2, 4), 3), dynamic_shapes=shapes
    )
    conversion = builder.convert(program)
    assert [spec.shape for spec in conversion.inputs][1] == ()
    x = torch.randn(5, 4)
    (output,) = builder.reference.run(conversion, [x, torch.tensor(7)])
    torch.testing.assert_close(output, x * 7)


def test_module_class_may_be_a_program_and_a_submodule() -> None:
    """Programs of one process share the types of modules, whichever comes first."""
    layer = torch.nn.Linear(4, 4)
    programs = [
        exported(module, torch.randn(2, 4)) for module in (layer, Deep(layer), layer)
    ]
    graphs = [builder.lower(program).graph for program in programs]
    assert [len(ir.nodes_of(graph, "aten::linear")) for graph in graphs] == [1, 1, 1]


class Deep(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class BoolNumbers(torch.nn.Module):
    def forward(self, mask: torch.Tensor, index: torch.Tensor) -> Any:
        return (
            torch.full((2, 3), True),
            mask == True,  # noqa: E712
            mask & True,
            torch.where(mask, True, False),
            mask.masked_fill(mask, False),
            mask.scatter(1, index, True),
            index**True,
            index.masked_fill(mask, True),
        )


def test_bool_numbers_keep_the_dtype_of_results() -> None:
    """TorchScript has no bool for a Scalar argument."""
    inputs = (torch.tensor([[True, False, True]] * 2), torch.tensor([[0, 2, 2]] * 2))
    expected = BoolNumbers()(*inputs)
    program = torch.export.export(BoolNumbers(), inputs)
    got = builder.lower(program).run(*inputs)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
