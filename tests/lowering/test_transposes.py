"""Transposes behind layers: attention asks its layers of the tensor as it came, and answers the
same.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.lowering import LoweredGraph, ir
from builder.lowering.passes.amounts import (
    ONE,
    Amount,
    alias,
    amount,
    common,
    filled,
    product,
    renamed,
)
from tests.torchscript.saving import saved

WIDTH, HEADS = 12, 3
MOVES = ("aten::transpose", "aten::permute")
DIMS = {"n": (1, 2, 8), "t": (1, 4, 16), "s": (1, 5, 16)}
SIZES = (
    {"n": 2, "t": 4, "s": 5},
    {"n": 3, "t": 7, "s": 2},
    {"n": 1, "t": 1, "s": 1},
    {"n": 4, "t": 4, "s": 4},
)
Axes = tuple[Any, ...]


def drawn(axes: Axes, sizes: dict[str, int], dtype: str) -> Tensor:
    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in axes]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    if dtype != "bool":
        return x
    masked = x > 0.5
    masked[..., 0] = False  # all masked is nan
    return masked


def lowered(
    module: nn.Module,
    *axes: Axes,
    script: bool = False,
    masks: int = 0,
    load: bool = True,
    **settings: Any,
) -> LoweredGraph:
    """The module lowered with what the specs say; its answers are the module's at every size. The
    last `masks` inputs hold booleans. It is saved and loaded first, if `load` is set.
    """

    module, dtypes = module.eval(), ["float32"] * (len(axes) - masks) + ["bool"] * masks
    cases = [
        [drawn(one, sizes, dtype) for one, dtype in zip(axes, dtypes, strict=True)]
        for sizes in SIZES
    ]
    with torch.enable_grad():
        made = (
            torch.jit.script(module)
            if script
            else torch.jit.trace(module, cases[0], check_trace=False)
        )
    specs = [
        builder.TensorSpec(
            dtype, one, dims={axis: DIMS[axis] for axis in one if isinstance(axis, str)}
        )
        for one, dtype in zip(axes, dtypes, strict=True)
    ]
    found = builder.lower(saved(made) if load else made, specs=specs, **settings)
    for case in cases:
        wanted = module(*case)
        for got, truth in zip(
            found.run(*case),
            wanted if isinstance(wanted, tuple) else [wanted],
            strict=True,
        ):
            torch.testing.assert_close(got, truth, rtol=2e-6, atol=2e-6)
    return found


def moves(found: LoweredGraph) -> list[Any]:
    return ir.nodes_of(found.graph, *MOVES)


def of_moved(found: LoweredGraph) -> list[Any]:
    """The layers that read a transposed value."""
    return [
        node
        for node in ir.nodes_of(found.graph, "aten::linear")
        if node.inputsAt(0).node().kind() in MOVES
    ]


def batch_first(found: LoweredGraph) -> bool:
    """Whether there is nothing but what attention written with the batch first has: a permute each
    for queries, keys, values and what comes out, and the transpose of the keys.
    """
    orders = [
        ir.int_list(node.inputsAt(1))
        for node in moves(found)
        if node.kind() == "aten::permute"
    ]
    return (
        not of_moved(found) and orders == [[0, 2, 1, 3]] * 4 and len(moves(found)) == 5
    )


class Attention(nn.Module):
    def __init__(self, asks: Callable[..., Any], **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(
            WIDTH, HEADS, batch_first=True, **settings
        )
        self.norm, self.asks = nn.LayerNorm(WIDTH), asks

    def forward(self, *tensors: Tensor) -> Any:
        return self.asks(self, *tensors)


def itself(m: Attention, x: Tensor) -> Tensor:
    y = m.norm(x)
    return x + m.attention(y, y, y, need_weights=False)[0]


def crossed(m: Attention, x: Tensor, memory: Tensor) -> Tensor:
    return m.attention(x, memory, memory, need_weights=False)[0]


def three(m: Attention, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return m.attention(x, keys, values, need_weights=False)[0]


def placed(m: Attention, x: Tensor, places: Tensor) -> Tensor:
    """As DETR: queries and keys know their places, values do not."""
    q = x + places
    return x + m.attention(q, q, x, need_weights=False)[0]


def causal(m: Attention, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
    return m.attention(x, x, x, need_weights=False, attn_mask=mask, is_causal=True)[0]


def biased(m: Attention, x: Tensor, mask: Tensor) -> Tensor:
    return m.attention(x, x, x, need_weights=False, attn_mask=mask)[0]


def padded(m: Attention, x: Tensor, mask: Tensor) -> Tensor:
    return m.attention(x, x, x, need_weights=False, key_padding_mask=mask)[0]


def padded_and_biased(m: Attention, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    return m.attention(
        x, x, x, need_weights=False, key_padding_mask=mask, attn_mask=bias
    )[0]


def weighed(m: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    return m.attention(x, x, x)  # type: ignore[no-any-return]


def weighed_by_head(m: Attention, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return m.attention(x, x, x, average_attn_weights=False, attn_mask=mask)  # type: ignore[no-any-return]


X, MEMORY = ("n", "t", WIDTH), ("n", "s", WIDTH)
PLAIN: dict[str, tuple[Attention, Sequence[Axes], int]] = {
    "of itself": (Attention(itself), [X], 0),
    "without bias": (Attention(itself, bias=False), [X], 0),
    "of another": (Attention(crossed), [X, MEMORY], 0),
    "of two others": (
        Attention(three, kdim=8, vdim=10),
        [X, ("n", "s", 8), ("n", "s", 10)],
        0,
    ),
    "with places": (Attention(placed), [X, X], 0),
    "with places of their own": (Attention(placed), [X, (1, "t", WIDTH)], 0),
    "causal": (Attention(causal), [X], 0),
    "biased": (Attention(biased), [X, ("t", "t")], 0),
    "padded": (Attention(padded), [X, ("n", "t")], 1),
    "static": (Attention(itself), [(2, 5, WIDTH)], 0),
    "static but the batch": (Attention(placed), [("n", 5, WIDTH), (1, 5, WIDTH)], 0),
}


@pytest.mark.parametrize("name", PLAIN)
def test_attention_is_what_it_is_with_the_batch_first(name: str) -> None:
    module, axes, masks = PLAIN[name]
    found = lowered(module, *axes, masks=masks)
    assert batch_first(found), found.graph


OTHERS: dict[str, tuple[Attention, Sequence[Axes], int]] = {
    "padded and biased": (Attention(padded_and_biased), [X, ("t", "t"), ("n", "t")], 1),
    "weights": (Attention(weighed), [X], 0),
    "weights of heads": (Attention(weighed_by_head), [X, ("t", "t")], 0),
    "more keys": (Attention(itself, add_bias_kv=True, add_zero_attn=True), [X], 0),
    "more keys, weights": (
        Attention(weighed, add_bias_kv=True, add_zero_attn=True),
        [X],
        0,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_layer_reads_a_transposed_value(name: str) -> None:
    module, axes, masks = OTHERS[name]
    assert not of_moved(lowered(module, *axes, masks=masks))


@pytest.mark.parametrize("name", ["weights", "weights of heads"])
def test_attention_with_weights_equals_the_batch_first_form(name: str) -> None:
    """Its products have the heads of all in one axis; each permute is read by the reshape that
    joins them.
    """
    module, axes, masks = OTHERS[name]
    found = lowered(module, *axes, masks=masks)
    orders = [
        ir.int_list(node.inputsAt(1))
        for node in moves(found)
        if node.kind() == "aten::permute"
    ]
    assert orders == [[0, 2, 1, 3]] * 4 and len(moves(found)) == 5


def test_without_a_batch() -> None:
    module = Attention(lambda m, x: m.attention(x, x, x, need_weights=False)[0])
    assert not of_moved(lowered(module, ("t", WIDTH)))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attention(x, memory, memory, need_weights=False)[0]


def test_a_scripted_module() -> None:
    assert batch_first(lowered(Scripted(), X, MEMORY, script=True))


class InARow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.second = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x, x, x)[0]
        return self.second(y, y, y)[0]


@pytest.mark.parametrize("script", [True, False])
def test_one_behind_another(script: bool) -> None:
    """Scripted, the second asks for the dtype of what the first makes; while that was not known,
    both of its ways of computing stayed in the graph, with the transposes of the one that is never
    taken.
    """
    found = lowered(InARow(), X, script=script)
    assert not of_moved(found) and len(moves(found)) == 10
    assert not ir.nodes_of(found.graph, "prim::If", "prim::dtype")


@pytest.mark.parametrize("script", [True, False])
def test_an_encoder_and_a_decoder(script: bool) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 16, batch_first=True)
    assert not of_moved(lowered(model, X, MEMORY, script=script))


def test_the_time_first_stays_as_it_is() -> None:
    """Nothing is transposed before a layer there."""
    torch.manual_seed(0)
    found = lowered(nn.TransformerEncoderLayer(WIDTH, HEADS, 16), X)
    assert not of_moved(found) and len(ir.nodes_of(found.graph, "aten::linear")) == 6


class Layer(nn.Module):
    """A layer with what stands around it."""

    def __init__(
        self,
        around: Callable[[Any, Tensor], Any],
        inputs: int = WIDTH,
        outputs: int = WIDTH,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.around = nn.Linear(inputs, outputs), around

    def forward(self, x: Tensor) -> Any:
        return self.around(self.linear, x)


def kinds(found: LoweredGraph) -> Counter[str]:
    return Counter(node.kind().removeprefix("aten::") for node in found.graph.nodes())


def embedded(layer: Any, indices: Tensor) -> Tensor:
    return nn.functional.embedding(indices, layer.weight)


def heads_of(layer: Any, x: Tensor, y: Tensor) -> Tensor:
    """A layer of `y`, the axes of `x` and one more; its heads have the sizes of `x`."""
    z = layer(y.transpose(0, 1)).view(
        x.size(1), x.size(0), WIDTH, HEADS, WIDTH // HEADS
    )
    return z.permute(1, 0, 2, 3, 4)


GONE: dict[str, Callable[[Any, Tensor], Any]] = {
    "there and back": lambda f, x: f(x.transpose(0, 1)).transpose(0, 1),
    "and forth": lambda f, x: f(f(x.permute(1, 0, 2)).permute(1, 0, 2)),
    "unflattened": lambda f, x: (
        f(x.transpose(0, 1)).unflatten(-1, (3, -1)).permute(1, 0, 2, 3)
    ),
    "heads": lambda f, x: (
        f(x.transpose(0, 1)).view(x.size(1), x.size(0), 3, 4).permute(1, 0, 2, 3)
    ),
    "inferred": lambda f, x: (
        f(x.transpose(0, 1)).reshape(x.size(1), x.size(0), 3, -1).permute(1, 0, 2, 3)
    ),
    "inferred batch": lambda f, x: (
        f(x.transpose(0, 1)).reshape(x.size(1), -1, 3, 4).permute(1, 0, 2, 3)
    ),
    "joined": lambda f, x: f(
        x.unflatten(2, (3, 4)).permute(1, 0, 2, 3).reshape(x.size(1), x.size(0), 12)
    ).transpose(0, 1),
    "a product": lambda f, x: torch.matmul(x.transpose(0, 1), f.weight).transpose(0, 1),
    "embedded": lambda f, x: heads_of(f, x, embedded(f, (x > 0).long())),
    "expanded": lambda f, x: heads_of(
        f, x, embedded(f, x.new_ones(1).long().expand_as(x))
    ),
    "nothing": lambda f, x: f(x.permute(0, 1, 2)),
}


@pytest.mark.parametrize("name", GONE)
def test_transposes_that_meet_are_gone(name: str) -> None:
    found = lowered(Layer(GONE[name]), X)
    assert not moves(found), found.graph


def test_the_only_size_that_is_not_a_number_is_inferred() -> None:
    found = lowered(
        Layer(
            lambda f, x: f(x.transpose(0, 1)).reshape(-1, 1, 3, 4).permute(1, 0, 2, 3)
        ),
        (1, "t", WIDTH),
    )
    assert not moves(found), found.graph


def test_a_number_has_no_axes_to_reduce() -> None:
    def around(f: Any, x: Tensor) -> Tensor:
        return f(x.transpose(0, 1)).transpose(0, 1) * x[0, 0, 0].amax(0, keepdim=True)

    assert not moves(lowered(Layer(around), X))


def test_sizes_of_what_is_transposed_stay_right() -> None:
    def around(f: Any, x: Tensor) -> Tensor:
        y = f(x.transpose(0, 1))
        return y.transpose(0, 1) * y.size(0) + y.size(1) * y.size(2)

    assert not moves(lowered(Layer(around), X))


def test_a_layer_keeps_the_module_that_it_is_of() -> None:
    """Also one that is made anew because of a transpose outside of it. A saved trace has no
    modules.
    """
    found = lowered(Layer(GONE["joined"]), X, load=False)
    assert [node.scopeName() for node in ir.nodes_of(found.graph, "aten::linear")] == [
        "__module.linear"
    ]


def test_every_reader_has_its_own() -> None:
    def around(f: Any, x: Tensor) -> Any:
        y = x.transpose(0, 1)
        z = f(y)
        return z + y, z.transpose(0, 1), f(torch.relu(y))

    found = lowered(Layer(around), X)
    assert kinds(found)["linear"] == 2 and len(of_moved(found)) == 0


def test_a_transpose_of_the_last_axis_stays() -> None:
    found = lowered(Layer(lambda f, x: f(x.transpose(1, 2)), inputs=5), ("n", 5, WIDTH))
    assert len(of_moved(found)) == 1


def test_a_value_of_unknown_rank_is_left_alone() -> None:
    traced = torch.jit.trace(
        Layer(GONE["there and back"]).eval(),
        torch.randn(2, 4, WIDTH),
        check_trace=False,
    )
    found = builder.lower(traced)
    assert len(of_moved(found)) == 1 and len(moves(found)) == 2


@pytest.mark.parametrize("module", ["layer", "layer.linear"])
def test_what_shall_run_in_torch_is_left_alone(module: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer(GONE["there and back"])

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * 2)

    found = lowered(Model(), X, fallback_modules=(module,))
    assert len(of_moved(found)) == 1


def test_a_value_that_is_written_in_place() -> None:
    def around(f: Any, x: Tensor) -> Tensor:
        y = (x * 2).transpose(0, 1)
        before = f(y)
        y[0] = 1
        y += 1
        return before.transpose(0, 1) + f(y).transpose(0, 1)

    assert kinds(lowered(Layer(around), X))["linear"] == 2


def test_a_layer_is_not_brought_into_a_branch() -> None:
    class Model(Layer):
        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x.unflatten(2, [3, 4]).permute(1, 0, 2, 3).flatten(2))
            if bool(x.sum() > 0):
                return y.transpose(0, 1) * 2
            return y.transpose(0, 1)

    found = lowered(Model(lambda f, x: x), X, script=True)
    assert len(ir.nodes_of(found.graph, "aten::linear")) == 1


def test_a_size_that_only_looks_the_same() -> None:
    """A table of one row for all, or of one for each: what is as long as it is told by the sum, not
    by one of both.
    """

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, row: Tensor) -> Tensor:
            y = self.linear((row + x).transpose(0, 1))
            return y.reshape(x.size(1), x.size(0), 3, 4).permute(1, 0, 2, 3)

    module = Model().eval()
    rows = builder.TensorSpec(
        "float32", ("m", "t", WIDTH), dims={"m": (1, 1, 8), "t": DIMS["t"]}
    )
    given = builder.TensorSpec("float32", X, dims={"n": DIMS["n"], "t": DIMS["t"]})
    traced = torch.jit.trace(
        module, (torch.randn(2, 4, WIDTH), torch.randn(1, 4, WIDTH)), check_trace=False
    )
    found = builder.lower(traced, specs=[given, rows])
    assert not of_moved(found)
    for n, m in ((3, 1), (3, 3), (1, 1)):
        x, row = torch.randn(n, 5, WIDTH), torch.randn(m, 5, WIDTH)
        torch.testing.assert_close(
            found.run(x, row)[0], module(x, row), rtol=2e-6, atol=2e-6
        )


def named(*names: str, number: int = 1) -> Amount:
    return Amount(number, tuple(sorted((ord(name),) for name in names)))


N, T = named("n"), named("t")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            [N, T, amount(12)],
            [N, T, amount(3), amount(4)],
            [(0, 0), (1, 1), (2, 2), (2, 3)],
        ),
        (
            [N, T, amount(12)],
            [N, named("t", number=3), amount(4)],
            [(0, 0), (1, 1), (2, 1), (2, 2)],
        ),
        (
            [N, T, amount(3), amount(4)],
            [named("n", "t"), amount(12)],
            [(0, 0), (1, 0), (2, 1), (3, 1)],
        ),
        ([amount(6), amount(4)], [amount(3), amount(8)], [(0, 0), (0, 1), (1, 1)]),
        ([N, amount(4)], [N, ONE, amount(4)], [(0, 0), (1, 1), (1, 2)]),
        ([ONE, N], [N], [(0, 0), (1, 0)]),
        ([amount(6), amount(4)], [amount(4), amount(6)], None),
        ([N, T], [T, N], None),
        ([N, amount(4)], [N, amount(3)], None),
        ([N, amount(4)], [N, amount(4), amount(2)], None),
        ([amount(0), N], [N, amount(0)], None),
    ],
    ids=str,
)
def test_what_a_reshape_makes_of_axes(
    before: list[Amount], after: list[Amount], expected: list[tuple[int, int]] | None
) -> None:
    found = common(before, after)
    assert (found and [(factor.before, factor.after) for factor in found]) == expected
    if found is not None:
        for at, length in enumerate(before):
            assert (
                product([factor.length for factor in found if factor.before == at])
                == length
            )


def test_an_inferred_axis_is_what_is_left() -> None:
    assert filled([N, T, amount(12)], [T, None, amount(6)]) == [
        T,
        named("n", number=2),
        amount(6),
    ]
    assert filled([N, T], [None, None]) is None and filled([N], [T, None]) is None


def test_one_size_may_have_two_names() -> None:
    other = alias(named("n", "t", number=4), named("n", "b", number=4))
    assert other == {(ord("b"),): (ord("t"),)} and renamed(
        named("n", "b"), other
    ) == named("n", "t")
    assert not alias(named("n", "t"), named("a", "b")) and not alias(
        named("n", number=2), named("b", number=4)
    )


class Program(nn.Module):
    """A random walk through transposes, reshapes and layers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.seed = seed
        self.layers = nn.ModuleDict({str(n): nn.Linear(n, n) for n in (2, 3, 4, 6, 12)})

    def forward(self, x: Tensor) -> Tensor:
        draw, axes = random.Random(self.seed), [["n"], ["t"], [2, 2, 3]]
        self.sizes = {"n": x.size(0), "t": x.size(1)}
        steps = [
            self.permuted,
            self.swapped,
            self.apart,
            self.joined,
            self.layered,
            self.joined,
            self.layered,
        ]
        for _ in range(10):
            x, axes = draw.choice(steps)(draw, x, axes)
        return x

    def permuted(
        self, draw: random.Random, x: Tensor, axes: list[Any]
    ) -> tuple[Tensor, list[Any]]:
        order = draw.sample(range(len(axes)), len(axes))
        return x.permute(order), [axes[axis] for axis in order]

    def swapped(
        self, draw: random.Random, x: Tensor, axes: list[Any]
    ) -> tuple[Tensor, list[Any]]:
        one, other = (draw.randrange(len(axes)) for _ in range(2))
        axes = list(axes)
        axes[one], axes[other] = axes[other], axes[one]
        return x.transpose(one, other - len(axes)), axes

    def shaped(self, x: Tensor, axes: list[Any]) -> tuple[Tensor, list[Any]]:
        sizes = []
        for factors in axes:
            size = math.prod(factor for factor in factors if isinstance(factor, int))
            for name in (factor for factor in factors if isinstance(factor, str)):
                size = self.sizes[name] if size == 1 else self.sizes[name] * size
            sizes.append(size)
        return x.reshape(sizes), axes

    def apart(
        self, draw: random.Random, x: Tensor, axes: list[Any]
    ) -> tuple[Tensor, list[Any]]:
        at = draw.randrange(len(axes))
        cut = draw.randrange(1, len(axes[at])) if len(axes[at]) > 1 else 0
        parts = [axes[at][:cut], axes[at][cut:]] if cut else [axes[at]]
        return self.shaped(x, [*axes[:at], *parts, *axes[at + 1 :]])

    def joined(
        self, draw: random.Random, x: Tensor, axes: list[Any]
    ) -> tuple[Tensor, list[Any]]:
        at = draw.randrange(len(axes))
        return self.shaped(
            x,
            [
                *axes[:at],
                [*axes[at], *(axes[at + 1] if at + 1 < len(axes) else [])],
                *axes[at + 2 :],
            ],
        )

    def layered(
        self, draw: random.Random, x: Tensor, axes: list[Any]
    ) -> tuple[Tensor, list[Any]]:
        if not all(isinstance(factor, int) for factor in axes[-1]):
            return x * 2, axes
        return self.layers[str(math.prod(axes[-1]))](x), axes


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_answer_the_same(seed: int) -> None:
    lowered(Program(seed), X)


def test_random_programs_are_not_left_alone() -> None:
    """The pass has something to do in most of them."""
    traced = [
        torch.jit.trace(
            Program(seed).eval(), torch.randn(2, 4, WIDTH), check_trace=False
        )
        for seed in range(20)
    ]
    spec = builder.TensorSpec(
        "float32", X, dims={axis: DIMS[axis] for axis in ("n", "t")}
    )
    traces = [builder.lower(one, specs=[spec], keep_text=True).trace for one in traced]
    changed = [
        step.before != step.after
        for trace in traces
        for step in trace
        if step.name == "sink-transposes"
    ]
    assert sum(changed) > 10, changed
