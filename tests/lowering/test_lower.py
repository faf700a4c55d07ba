"""`lower` as callers use it: modules and graphs in, flat tensors out, errors with a source location
and a fix.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple, Optional

import pytest
import torch

import builder
from builder.errors import LoweringError, UsageError


class State(NamedTuple):
    hidden: torch.Tensor
    cell: torch.Tensor


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(
        self,
        x: torch.Tensor,
        state: State,
        shift: torch.Tensor | None = None,
        scale: int = 3,
    ):
        x = self.norm(self.linear(x))
        if shift is not None:
            x = x + shift
        return {"x": x, "state": State(state.hidden * scale, state.cell)}


def test_structured_arguments_get_names_and_defaults_are_bound() -> None:
    module = torch.jit.script(Nested())
    lowered = builder.lower(module)
    assert lowered.inputs == ("x", "state.hidden", "state.cell")
    assert lowered.outputs == ("x", "state.hidden", "state.cell")
    x = torch.randn(2, 4)
    expected = module.eval()(x, State(x, x))
    torch.testing.assert_close(
        lowered.run(x, x, x)[1], expected["state"].hidden, rtol=0, atol=0
    )


class Part(NamedTuple):
    x: torch.Tensor
    mask: Optional[torch.Tensor]  # noqa: UP045


class ReturnsPart(torch.nn.Module):
    """Unpacks a tuple with None, which another method returns."""

    def part(self, x: torch.Tensor, mask: Optional[torch.Tensor]) -> Part:  # noqa: UP045
        return Part(x + 1, mask)

    def forward(self, x: torch.Tensor) -> Part:
        x, mask = self.part(x, None)
        return Part(x * 2, mask)


def test_none_in_unpacked_tuple_is_left_out() -> None:
    lowered = builder.lower(torch.jit.script(ReturnsPart()))
    assert lowered.outputs == ("x",)
    torch.testing.assert_close(
        lowered.run(torch.ones(2))[0], torch.full((2,), 4.0), rtol=0, atol=0
    )


def test_optional_input_becomes_a_tensor_when_named() -> None:
    lowered = builder.lower(torch.jit.script(Nested()), optional_inputs=["shift"])
    assert lowered.inputs == ("x", "state.hidden", "state.cell", "shift")


def test_module_keeps_its_training_flags() -> None:
    module = torch.jit.script(Nested())
    module.linear.eval()
    builder.lower(module)
    assert module.training and module.norm.training and not module.linear.training


def test_saved_file_runs_the_lowered_graph() -> None:
    lowered, buffer, x = (
        builder.lower(torch.jit.script(Nested())),
        io.BytesIO(),
        torch.randn(2, 4),
    )
    lowered.save(buffer)
    buffer.seek(0)
    for saved, run in zip(
        torch.jit.load(buffer)(x, x, x), lowered.run(x, x, x), strict=True
    ):
        torch.testing.assert_close(saved, run, rtol=0, atol=0)


class CarriesTuple(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pair = (1, x)
        for row in range(x.size(0)):
            first, y = pair
            pair = (4, y + 1) if bool(x[row].sum() > 0) else (first, y * 2)
        return pair[1] if pair[0] == 4 else -pair[1]


def test_numbers_in_carried_tuples_keep_their_type() -> None:
    """The saved file declared them as tensors, and could not be loaded."""
    scripted = torch.jit.script(CarriesTuple())
    saved = builder.lower(scripted).function()
    for x in (torch.ones(2, 3), -torch.ones(2, 3), torch.eye(3) - 0.5):
        torch.testing.assert_close(saved(x)[0], scripted(x))


def test_graph_binds_trailing_params() -> None:
    graph = torch._C.parse_ir(
        """graph(%x : Tensor, %w : Tensor, %k : int):
          %y : Tensor = aten::mul(%x, %w)
          %z : Tensor = aten::add(%y, %k, %k)
          return (%z)"""
    )
    lowered = builder.lower(graph, params=[torch.tensor([2.0]), 3])
    assert (lowered.inputs, lowered.outputs) == (("x",), ("output",))
    assert lowered.run(torch.tensor([5.0]))[0].item() == 19.0
    assert len(list(graph.inputs())) == 3


class Silent(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        assert x.dim() > 0


class Empty(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[()]:
        return ()


@pytest.mark.parametrize("module", [Silent(), Empty()])
def test_module_without_outputs_is_refused(module: torch.nn.Module) -> None:
    with pytest.raises(LoweringError, match="forward returns nothing"):
        builder.lower(torch.jit.script(module))


def test_list_argument_is_refused_by_name() -> None:
    class Wants(torch.nn.Module):
        def forward(self, images: list[torch.Tensor]):
            return images[0]

    with pytest.raises(LoweringError, match=r"'images'.*List\[Tensor\]") as caught:
        builder.lower(torch.jit.script(Wants()))
    assert caught.value.fix


def test_state_of_module_is_refused_with_source_line() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen = self.seen + 1
            return x + self.seen

    with pytest.raises(LoweringError, match="'seen'") as caught:
        builder.lower(torch.jit.script(Counts()))
    assert "test_lower.py" in caught.value.where


def test_unbatched_convolution_runs_in_torch() -> None:
    """aten::_convolution takes no unbatched input: such a lowered graph would crash the runtime."""
    module = torch.jit.script(torch.nn.Conv2d(3, 4, 3).eval())
    image = torch.randn(3, 8, 9)
    spec = builder.TensorSpec("float32", (3, 8, 9))
    lowered = builder.lower(module, specs=[spec])
    torch.testing.assert_close(lowered.run(image)[0], module(image), rtol=0, atol=0)
    assert builder.convert(module, [spec]).network.get_output(0).shape == (4, 6, 7)


def test_scripted_and_traced_functions_are_lowered() -> None:
    def half_relu(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 0.5

    x = torch.randn(2, 3)
    for function in (torch.jit.script(half_relu), torch.jit.trace(half_relu, x)):
        lowered = builder.lower(function)
        assert lowered.inputs == ("x",)
        torch.testing.assert_close(lowered.run(x)[0], half_relu(x), rtol=0, atol=0)


class Attention(torch.nn.Module):
    """torch compiles the early return of its fast path to a value that is uninitialized in one
    branch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0] * 2.0


def test_uninitialized_branch_values_are_left_out() -> None:
    module, x = torch.jit.script(Attention().eval()), torch.randn(2, 3, 8)
    lowered = builder.lower(module)
    assert any(node.kind() == "prim::Uninitialized" for node in lowered.graph.nodes())
    values = lowered.values(x)
    (output,) = lowered.graph.outputs()
    torch.testing.assert_close(values[output.debugName()], module(x))


class Pooled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x.mean(1).amax(-1, keepdim=True).expand(-1, -1, 8))


def tuples_from_branches(x: torch.Tensor) -> torch.Tensor:
    state = (x, 1, "a", True)
    if bool(x.sum() > 8):
        state = (x, 7, "bb", False)
    if state[3]:
        return state[0] * state[1] + len(state[2])
    return state[0] / state[1]


def tuples_in_loop(x: torch.Tensor) -> torch.Tensor:
    state = (x, (1, 0.5))
    for i in range(int(x[0])):
        if bool(state[0].sum() > 30):
            state = (x, (7, 1.0))
        else:
            state = (state[0] * 2, (state[1][0] + i, state[1][1] * 3))
    return state[0] * state[1][0] + state[1][1]


@pytest.mark.parametrize("function", [tuples_from_branches, tuples_in_loop])
def test_numbers_in_tuples_of_ifs_and_loops_keep_their_types(function: Any) -> None:
    scripted = torch.jit.script(function)
    lowered = builder.lower(scripted)
    for value in (0.0, 1.0, 3.0, 5.0):
        x = torch.full((3,), value)
        assert torch.equal(lowered.run(x)[0], scripted(x))


def test_rank_is_inferred_by_torchs_meta_kernels() -> None:
    """trt-build has no rule for these operators. The rank folds the checks of attention."""
    spec = builder.TensorSpec(
        "float32", ("b", 4, 3, 8), dims={"b": (1, 2, 4)}, name="x"
    )
    lowered = builder.lower(torch.jit.script(Pooled().eval()), specs=[spec])
    kinds = {node.kind() for node in lowered.graph.nodes()}
    assert not kinds & {"prim::If", "aten::dim", "prim::Uninitialized"}


def test_values_have_the_names_of_the_graph() -> None:
    """A copy of a graph renumbers its values; the names must be those of the original graph."""

    class Tanhs(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = torch.tanh(x + 1.0) * 2.0
            return x

    x = torch.randn(2, 3)
    lowered = builder.lower(torch.jit.trace(Tanhs(), x))
    values = lowered.values(x)
    (output,) = lowered.graph.outputs()
    assert torch.equal(values[output.debugName()], lowered.run(x)[0])
    named = {
        v.debugName(): n.kind() for n in lowered.graph.nodes() for v in n.outputs()
    }
    tanhs = [value for name, value in values.items() if named[name] == "aten::tanh"]
    assert len(tanhs) == 3 and all(bool((value.abs() <= 1).all()) for value in tanhs)


class MayBeNone(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if x.size(0) > 3:
            return (x, None)
        return (x, x + 1)


def test_output_that_may_be_none_has_a_flag() -> None:
    lowered = builder.lower(torch.jit.script(MayBeNone()))
    assert lowered.results == ("output_0", "output_1")
    assert lowered.flags == {"output_1": "output_1_is_present"}
    assert "test_lower.py" in lowered.decided_at["output_1"]
    long, short = torch.ones(4), torch.ones(2)
    assert lowered.named_outputs(lowered.run(long)).keys() == {"output_0"}
    assert torch.equal(lowered.named_outputs(lowered.run(short))["output_1"], short + 1)


def test_assertion_on_values_is_noted() -> None:
    """torch removes such a node when it scripts a function, but not from a graph."""
    graph = torch._C.parse_ir("""
    graph(%x : Tensor):
      %zero : int = prim::Constant[value=0]()
      %size : int = aten::size(%x, %zero)
      %positive : Tensor = aten::gt(%x, %zero)
      %all : Tensor = aten::all(%positive)
      aten::_assert_async(%all)
      aten::sym_constrain_range(%size)
      return (%positive)
    """)
    assert len(builder.lower(graph).unchecked) == 1


class ReturnsStrides(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides = [8, 16]

    def forward(self, x: torch.Tensor):
        return x, self.strides


def test_constant_list_gives_one_output_per_element() -> None:
    lowered = builder.lower(torch.jit.script(ReturnsStrides()))
    assert lowered.outputs == ("output_0", "output_1_0", "output_1_1")
    assert [int(size) for size in lowered.run(torch.ones(2))[1:]] == [8, 16]


class CallsPython(torch.nn.Module):
    @torch.jit.ignore
    def ignored(self, x):
        return x * 2

    def forward(self, x: torch.Tensor):
        return self.ignored(x) + 1


def test_ignored_method_is_refused() -> None:
    with pytest.raises(LoweringError, match=r"@torch\.jit\.ignore"):
        builder.lower(torch.jit.script(CallsPython()))


def test_graph_inputs_get_distinct_names() -> None:
    """`%x.0` and `%x.1` are both `x` without the number that torch adds."""
    graph = torch._C.parse_ir(
        """graph(%x.0 : Tensor, %x.1 : Tensor, %x_1 : Tensor):
          %one : int = prim::Constant[value=1]()
          %s : Tensor = aten::sub(%x.0, %x.1, %one)
          %t : Tensor = aten::sub(%s, %x_1, %one)
          return (%t)"""
    )
    specs = [builder.TensorSpec("float32", (2,))] * 3
    conversion = builder.convert(graph, specs)
    assert conversion.lowered.inputs == ("x", "x_2", "x_1")
    values = [
        torch.tensor([7.0, 8.0]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([0.5, 0.25]),
    ]
    (result,) = builder.reference.run(conversion, values)
    assert torch.equal(result, torch.tensor([5.5, 5.75]))


def test_duplicate_input_and_output_names_are_refused() -> None:
    module = torch.jit.script(torch.nn.Bilinear(2, 2, 1).eval())
    specs = [builder.TensorSpec("float32", (1, 2), name="x")] * 2
    with pytest.raises(UsageError, match="two inputs have the name 'x'"):
        builder.convert(module, specs)
    named = [builder.TensorSpec("float32", (1, 2), name=name) for name in "ab"]
    with pytest.raises(UsageError, match="two outputs have the name 'y'"):
        builder.convert(
            torch.jit.script(SumAndDifference()), named, output_names=["y", "y"]
        )


class SumAndDifference(torch.nn.Module):
    def forward(self, a, b):
        return a + b, a - b


ADDMM_BRANCHES = """graph(%x.1 : Tensor, %weight : Tensor, %bias : Tensor):
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %dim : int = aten::dim(%x.1)
  %cond : bool = aten::eq(%dim, %two)
  %wt : Tensor = aten::t(%weight)
  %y : Tensor = prim::If(%cond)
    block0():
      %r : Tensor = aten::addmm(%bias, %x.1, %wt, %one, %one)
      -> (%r)
    block1():
      %out : Tensor = aten::matmul(%x.1, %wt)
      %o2 : Tensor = aten::add_(%out, %bias, %one)
      -> (%o2)
  return (%y)"""
"""nn.Linear as torch 1.5 writes it."""


def test_branches_of_torch_1_5_linear_become_one_linear() -> None:
    weight, bias = torch.randn(3, 4), torch.randn(3)
    lowered = builder.lower(torch._C.parse_ir(ADDMM_BRANCHES), [weight, bias])
    kinds = [
        node.kind() for node in lowered.graph.nodes() if node.kind() != "prim::Constant"
    ]
    assert kinds == ["aten::linear"]
    for x in (torch.randn(2, 4), torch.randn(5, 2, 4)):
        torch.testing.assert_close(
            lowered.run(x)[0], torch.nn.functional.linear(x, weight, bias)
        )


def test_matmul_whose_dtype_is_read_matches_torch() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(4, 3))
            self.register_buffer("bias", torch.randn(3))

        def forward(self, x):
            product = torch.matmul(x, self.weight)
            sum = product + self.bias
            return sum, torch.ones(2, dtype=product.dtype)

    model, x = Model().eval(), torch.randn(2, 4)
    lowered = builder.lower(torch.jit.script(model))
    for output, expected in zip(lowered.run(x), model(x), strict=True):
        torch.testing.assert_close(output, expected)


def test_devices_of_a_model_traced_on_a_gpu_become_the_cpu() -> None:
    graph = torch._C.parse_ir(
        """graph(%x : Tensor):
  %device : Device = prim::Constant[value="cuda:0"]()
  %no : bool = prim::Constant[value=0]()
  %none : NoneType = prim::Constant()
  %float : int = prim::Constant[value=6]()
  %one : int = prim::Constant[value=1]()
  %y : Tensor = aten::zeros_like(%x, %float, %none, %device, %no, %none)
  %z : Tensor = aten::add(%x, %y, %one)
  return (%z)"""
    )
    lowered = builder.lower(graph)
    assert "cuda" not in str(lowered.graph)
    torch.testing.assert_close(lowered.run(torch.ones(2))[0], torch.ones(2))
