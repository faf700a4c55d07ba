"""Transposes move behind layers: the layers of attention read their input untransposed, and the
outputs stay the same.
"""

from __future__ import annotations

import math
import random
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
from tests.lowering.asserting import assert_equal_outputs, kinds
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


def random_tensor(axes: Axes, sizes: dict[str, int], dtype: str) -> Tensor:
    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in axes]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    if dtype != "bool":
        return x
    masked = x > 0.5
    masked[..., 0] = False  # a row with all keys masked gives NaN
    return masked


def lowered(
    module: nn.Module,
    *axes: Axes,
    script: bool = False,
    masks: int = 0,
    load: bool = True,
    **settings: Any,
) -> LoweredGraph:
    """The module lowered with these specs; its outputs must match at every size. The last `masks`
    inputs are booleans. With `load`, the exported module is saved and loaded first.
    """
    module, dtypes = module.eval(), ["float32"] * (len(axes) - masks) + ["bool"] * masks
    cases = [
        [
            random_tensor(one, sizes, dtype)
            for one, dtype in zip(axes, dtypes, strict=True)
        ]
        for sizes in SIZES
    ]
    with torch.enable_grad():
        exported = (
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
    result = builder.lower(
        saved(exported) if load else exported, specs=specs, **settings
    )
    for case in cases:
        assert_equal_outputs(result, module, case)
    return result


def moves(found: LoweredGraph) -> list[Any]:
    return ir.nodes_of(found.graph, *MOVES)


def layers_with_moved_input(found: LoweredGraph) -> list[Any]:
    """The layers that read a transposed value."""
    return [
        node
        for node in ir.nodes_of(found.graph, "aten::linear")
        if node.inputsAt(0).node().kind() in MOVES
    ]


def batch_first(found: LoweredGraph) -> bool:
    """Whether the graph has only the moves of batch-first attention: a permute each for queries,
    keys, values and the output, and the transpose of the keys.
    """
    orders = [
        ir.int_list(node.inputsAt(1))
        for node in moves(found)
        if node.kind() == "aten::permute"
    ]
    return (
        not layers_with_moved_input(found)
        and orders == [[0, 2, 1, 3]] * 4
        and len(moves(found)) == 5
    )


class Attention(nn.Module):
    def __init__(self, call: Callable[..., Any], **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(
            WIDTH, HEADS, batch_first=True, **settings
        )
        self.norm, self.call = nn.LayerNorm(WIDTH), call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(self, *tensors)


def self_attention(m: Attention, x: Tensor) -> Tensor:
    y = m.norm(x)
    return x + m.attention(y, y, y, need_weights=False)[0]


def cross_attention(m: Attention, x: Tensor, memory: Tensor) -> Tensor:
    return m.attention(x, memory, memory, need_weights=False)[0]


def separate_keys_and_values(
    m: Attention, x: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return m.attention(x, keys, values, need_weights=False)[0]


def with_positions(m: Attention, x: Tensor, positions: Tensor) -> Tensor:
    """As in DETR: positions are added to queries and keys, not to values."""
    q = x + positions
    return x + m.attention(q, q, x, need_weights=False)[0]


def causal(m: Attention, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
    return m.attention(x, x, x, need_weights=False, attn_mask=mask, is_causal=True)[0]


def with_float_mask(m: Attention, x: Tensor, mask: Tensor) -> Tensor:
    return m.attention(x, x, x, need_weights=False, attn_mask=mask)[0]


def with_padding_mask(m: Attention, x: Tensor, mask: Tensor) -> Tensor:
    return m.attention(x, x, x, need_weights=False, key_padding_mask=mask)[0]


def with_padding_and_float_mask(
    m: Attention, x: Tensor, bias: Tensor, mask: Tensor
) -> Tensor:
    return m.attention(
        x, x, x, need_weights=False, key_padding_mask=mask, attn_mask=bias
    )[0]


def with_weights(m: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    return m.attention(x, x, x)  # type: ignore[no-any-return]


def with_weights_by_head(
    m: Attention, x: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    return m.attention(x, x, x, average_attn_weights=False, attn_mask=mask)  # type: ignore[no-any-return]


X, MEMORY = ("n", "t", WIDTH), ("n", "s", WIDTH)
BATCH_FIRST: dict[str, tuple[Attention, Sequence[Axes], int]] = {
    "self-attention": (Attention(self_attention), [X], 0),
    "no bias": (Attention(self_attention, bias=False), [X], 0),
    "cross-attention": (Attention(cross_attention), [X, MEMORY], 0),
    "separate keys and values": (
        Attention(separate_keys_and_values, kdim=8, vdim=10),
        [X, ("n", "s", 8), ("n", "s", 10)],
        0,
    ),
    "positions": (Attention(with_positions), [X, X], 0),
    "broadcast positions": (Attention(with_positions), [X, (1, "t", WIDTH)], 0),
    "causal": (Attention(causal), [X], 0),
    "float mask": (Attention(with_float_mask), [X, ("t", "t")], 0),
    "padding mask": (Attention(with_padding_mask), [X, ("n", "t")], 1),
    "static shape": (Attention(self_attention), [(2, 5, WIDTH)], 0),
    "dynamic batch": (Attention(with_positions), [("n", 5, WIDTH), (1, 5, WIDTH)], 0),
}


@pytest.mark.parametrize("name", BATCH_FIRST)
def test_attention_becomes_batch_first_form(name: str) -> None:
    module, axes, masks = BATCH_FIRST[name]
    lowered_graph = lowered(module, *axes, masks=masks)
    assert batch_first(lowered_graph), lowered_graph.graph


OTHER_FORMS: dict[str, tuple[Attention, Sequence[Axes], int]] = {
    "padding and float mask": (
        Attention(with_padding_and_float_mask),
        [X, ("t", "t"), ("n", "t")],
        1,
    ),
    "weights": (Attention(with_weights), [X], 0),
    "weights by head": (Attention(with_weights_by_head), [X, ("t", "t")], 0),
    "bias_kv": (
        Attention(self_attention, add_bias_kv=True, add_zero_attn=True),
        [X],
        0,
    ),
    "bias_kv, weights": (
        Attention(with_weights, add_bias_kv=True, add_zero_attn=True),
        [X],
        0,
    ),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_no_layer_reads_a_transposed_value(name: str) -> None:
    module, axes, masks = OTHER_FORMS[name]
    assert not layers_with_moved_input(lowered(module, *axes, masks=masks))


@pytest.mark.parametrize("name", ["weights", "weights by head"])
def test_attention_with_weights_equals_the_batch_first_form(name: str) -> None:
    """Its products join batch and heads in one axis: a reshape reads each permute."""
    module, axes, masks = OTHER_FORMS[name]
    lowered_graph = lowered(module, *axes, masks=masks)
    orders = [
        ir.int_list(node.inputsAt(1))
        for node in moves(lowered_graph)
        if node.kind() == "aten::permute"
    ]
    assert orders == [[0, 2, 1, 3]] * 4 and len(moves(lowered_graph)) == 5


def test_layers_of_unbatched_attention_read_no_transposed_value() -> None:
    module = Attention(lambda m, x: m.attention(x, x, x, need_weights=False)[0])
    assert not layers_with_moved_input(lowered(module, ("t", WIDTH)))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attention(x, memory, memory, need_weights=False)[0]


def test_scripted_attention_becomes_batch_first_form() -> None:
    assert batch_first(lowered(Scripted(), X, MEMORY, script=True))


class TwoAttentions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.second = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x, x, x)[0]
        return self.second(y, y, y)[0]


@pytest.mark.parametrize("script", [True, False])
def test_layers_of_consecutive_attentions_read_no_transposed_value(
    script: bool,
) -> None:
    """Scripted, the second attention reads the dtype of the first one's output. While that was
    unknown, both of its branches stayed in the graph, with the transposes of the one that never
    runs.
    """
    lowered_graph = lowered(TwoAttentions(), X, script=script)
    assert (
        not layers_with_moved_input(lowered_graph) and len(moves(lowered_graph)) == 10
    )
    assert not ir.nodes_of(lowered_graph.graph, "prim::If", "prim::dtype")


@pytest.mark.parametrize("script", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_layers_of_transformer_read_no_transposed_value(script: bool) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 16, batch_first=True)
    assert not layers_with_moved_input(lowered(model, X, MEMORY, script=script))


def test_time_first_encoder_stays_unchanged() -> None:
    """It transposes no input of a layer."""
    torch.manual_seed(0)
    lowered_graph = lowered(nn.TransformerEncoderLayer(WIDTH, HEADS, 16), X)
    assert (
        not layers_with_moved_input(lowered_graph)
        and len(ir.nodes_of(lowered_graph.graph, "aten::linear")) == 6
    )


class Layer(nn.Module):
    """A layer with the operators around it."""

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


def embedded(layer: Any, indices: Tensor) -> Tensor:
    return nn.functional.embedding(indices, layer.weight)


def heads_of(layer: Any, x: Tensor, y: Tensor) -> Tensor:
    """A layer of `y`, which has one more axis than `x`, split into heads with the sizes of `x`."""
    z = layer(y.transpose(0, 1)).view(
        x.size(1), x.size(0), WIDTH, HEADS, WIDTH // HEADS
    )
    return z.permute(1, 0, 2, 3, 4)


REMOVED: dict[str, Callable[[Any, Tensor], Any]] = {
    "transpose and back": lambda f, x: f(x.transpose(0, 1)).transpose(0, 1),
    "two layers": lambda f, x: f(f(x.permute(1, 0, 2)).permute(1, 0, 2)),
    "unflatten": lambda f, x: (
        f(x.transpose(0, 1)).unflatten(-1, (3, -1)).permute(1, 0, 2, 3)
    ),
    "heads": lambda f, x: (
        f(x.transpose(0, 1)).view(x.size(1), x.size(0), 3, 4).permute(1, 0, 2, 3)
    ),
    "inferred head size": lambda f, x: (
        f(x.transpose(0, 1)).reshape(x.size(1), x.size(0), 3, -1).permute(1, 0, 2, 3)
    ),
    "inferred batch": lambda f, x: (
        f(x.transpose(0, 1)).reshape(x.size(1), -1, 3, 4).permute(1, 0, 2, 3)
    ),
    "heads joined": lambda f, x: f(
        x.unflatten(2, (3, 4)).permute(1, 0, 2, 3).reshape(x.size(1), x.size(0), 12)
    ).transpose(0, 1),
    "matmul": lambda f, x: torch.matmul(x.transpose(0, 1), f.weight).transpose(0, 1),
    "embedding": lambda f, x: heads_of(f, x, embedded(f, (x > 0).long())),
    "expanded embedding": lambda f, x: heads_of(
        f, x, embedded(f, x.new_ones(1).long().expand_as(x))
    ),
    "identity permute": lambda f, x: f(x.permute(0, 1, 2)),
}


@pytest.mark.parametrize("name", REMOVED)
def test_opposite_transposes_cancel(name: str) -> None:
    lowered_graph = lowered(Layer(REMOVED[name]), X)
    assert not moves(lowered_graph), lowered_graph.graph


def test_single_dynamic_size_is_inferred() -> None:
    lowered_graph = lowered(
        Layer(
            lambda f, x: f(x.transpose(0, 1)).reshape(-1, 1, 3, 4).permute(1, 0, 2, 3)
        ),
        (1, "t", WIDTH),
    )
    assert not moves(lowered_graph), lowered_graph.graph


def test_reduction_of_a_scalar_is_supported() -> None:
    def around(f: Any, x: Tensor) -> Tensor:
        return f(x.transpose(0, 1)).transpose(0, 1) * x[0, 0, 0].amax(0, keepdim=True)

    assert not moves(lowered(Layer(around), X))


def test_sizes_of_transposed_values_stay_correct() -> None:
    def around(f: Any, x: Tensor) -> Tensor:
        y = f(x.transpose(0, 1))
        return y.transpose(0, 1) * y.size(0) + y.size(1) * y.size(2)

    assert not moves(lowered(Layer(around), X))


def test_layer_keeps_its_module_scope() -> None:
    """Also if a transpose outside of the layer replaces it. A saved trace has no module scopes."""
    lowered_graph = lowered(Layer(REMOVED["heads joined"]), X, load=False)
    assert [
        node.scopeName() for node in ir.nodes_of(lowered_graph.graph, "aten::linear")
    ] == ["__module.linear"]


def test_transpose_with_several_readers_is_removed_from_layers() -> None:
    def around(f: Any, x: Tensor) -> Any:
        y = x.transpose(0, 1)
        z = f(y)
        return z + y, z.transpose(0, 1), f(torch.relu(y))

    lowered_graph = lowered(Layer(around), X)
    assert (
        kinds(lowered_graph)["linear"] == 2
        and len(layers_with_moved_input(lowered_graph)) == 0
    )


def test_transpose_of_last_axis_stays() -> None:
    lowered_graph = lowered(
        Layer(lambda f, x: f(x.transpose(1, 2)), inputs=5), ("n", 5, WIDTH)
    )
    assert len(layers_with_moved_input(lowered_graph)) == 1


def test_transpose_of_unknown_rank_stays() -> None:
    traced = torch.jit.trace(
        Layer(REMOVED["transpose and back"]).eval(),
        torch.randn(2, 4, WIDTH),
        check_trace=False,
    )
    result = builder.lower(traced)
    assert len(layers_with_moved_input(result)) == 1 and len(moves(result)) == 2


@pytest.mark.parametrize("module", ["layer", "layer.linear"])
def test_transpose_in_fallback_module_stays(module: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer(REMOVED["transpose and back"])

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * 2)

    lowered_graph = lowered(Model(), X, fallback_modules=(module,))
    assert len(layers_with_moved_input(lowered_graph)) == 1


def test_written_transposed_value_matches_torch() -> None:
    def around(f: Any, x: Tensor) -> Tensor:
        y = (x * 2).transpose(0, 1)
        before = f(y)
        y[0] = 1
        y += 1
        return before.transpose(0, 1) + f(y).transpose(0, 1)

    assert kinds(lowered(Layer(around), X))["linear"] == 2


def test_layer_is_not_moved_into_a_branch() -> None:
    class Model(Layer):
        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x.unflatten(2, [3, 4]).permute(1, 0, 2, 3).flatten(2))
            if bool(x.sum() > 0):
                return y.transpose(0, 1) * 2
            return y.transpose(0, 1)

    lowered_graph = lowered(Model(lambda f, x: x), X, script=True)
    assert len(ir.nodes_of(lowered_graph.graph, "aten::linear")) == 1


def test_size_of_broadcast_sum_is_not_that_of_one_operand() -> None:
    """The table has one row for all samples or one for each; the sum has the size of the larger."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, row: Tensor) -> Tensor:
            y = self.linear((row + x).transpose(0, 1))
            return y.reshape(x.size(1), x.size(0), 3, 4).permute(1, 0, 2, 3)

    module = Model().eval()
    row_spec = builder.TensorSpec(
        "float32", ("m", "t", WIDTH), dims={"m": (1, 1, 8), "t": DIMS["t"]}
    )
    input_spec = builder.TensorSpec("float32", X, dims={"n": DIMS["n"], "t": DIMS["t"]})
    traced = torch.jit.trace(
        module, (torch.randn(2, 4, WIDTH), torch.randn(1, 4, WIDTH)), check_trace=False
    )
    result = builder.lower(traced, specs=[input_spec, row_spec])
    assert not layers_with_moved_input(result)
    for n, m in ((3, 1), (3, 3), (1, 1)):
        x, row = torch.randn(n, 5, WIDTH), torch.randn(m, 5, WIDTH)
        torch.testing.assert_close(
            result.run(x, row)[0], module(x, row), rtol=2e-6, atol=2e-6
        )


def symbolic(*names: str, number: int = 1) -> Amount:
    return Amount(number, tuple(sorted((ord(name),) for name in names)))


N, T = symbolic("n"), symbolic("t")


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
            [N, symbolic("t", number=3), amount(4)],
            [(0, 0), (1, 1), (2, 1), (2, 2)],
        ),
        (
            [N, T, amount(3), amount(4)],
            [symbolic("n", "t"), amount(12)],
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
def test_common_factors_of_reshape_sizes(
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


def test_inferred_axis_is_the_remaining_factor() -> None:
    assert filled([N, T, amount(12)], [T, None, amount(6)]) == [
        T,
        symbolic("n", number=2),
        amount(6),
    ]
    assert filled([N, T], [None, None]) is None and filled([N], [T, None]) is None


def test_alias_maps_two_names_of_one_size() -> None:
    other = alias(symbolic("n", "t", number=4), symbolic("n", "b", number=4))
    assert other == {(ord("b"),): (ord("t"),)} and renamed(
        symbolic("n", "b"), other
    ) == symbolic("n", "t")
    assert not alias(symbolic("n", "t"), symbolic("a", "b")) and not alias(
        symbolic("n", number=2), symbolic("b", number=4)
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
            self.split,
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

    def split(
        self, draw: random.Random, x: Tensor, axes: list[Any]
    ) -> tuple[Tensor, list[Any]]:
        at = draw.randrange(len(axes))
        split_at = draw.randrange(1, len(axes[at])) if len(axes[at]) > 1 else 0
        parts = [axes[at][:split_at], axes[at][split_at:]] if split_at else [axes[at]]
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
def test_random_programs_match_torch(seed: int) -> None:
    lowered(Program(seed), X)


def test_pass_changes_most_random_programs() -> None:
    """Otherwise the programs would not test the pass."""
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
