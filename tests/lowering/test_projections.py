"""Packed projections of attention become one layer for each part, however the model splits them.
The outputs stay the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import builder
from builder.lowering import LoweredGraph
from tests.lowering.asserting import assert_equal_outputs, kinds
from tests.torchscript.saving import saved

WIDTH, HEADS = 12, 3
SIZE = WIDTH // HEADS


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / SIZE**0.5, dim=-1) @ v


def heads(x: Tensor) -> Tensor:
    return x.view(x.size(0), x.size(1), HEADS, SIZE).transpose(1, 2)


def interleaved(y: Tensor) -> Tensor:
    """As in GPT-NeoX: each head has its query, key and value side by side."""
    y = y.view(y.size(0), y.size(1), HEADS, 3 * SIZE).permute(0, 2, 1, 3)
    return attend(*y.chunk(3, dim=-1))


def stacked(y: Tensor) -> Tensor:
    """As in timm's vision transformers."""
    q, k, v = (
        y.reshape(y.size(0), y.size(1), 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
    )
    return attend(q, k, v)


def selected(y: Tensor) -> Tensor:
    y = y.unflatten(-1, (3, WIDTH)).unsqueeze(0).transpose(0, -2).squeeze(-2)
    return attend(heads(y[0]), heads(y[1]), heads(y[-1]))


def sliced(y: Tensor) -> Tensor:
    return attend(
        heads(y[..., :WIDTH]), heads(y[..., WIDTH : 2 * WIDTH]), heads(y[..., -WIDTH:])
    )


def multi_query(y: Tensor) -> Tensor:
    """Multi-query attention: a query for each head, and one key and value for all."""
    q, k, v = y.split([2 * WIDTH, SIZE, WIDTH - SIZE], dim=2)
    return attend(
        q.unflatten(-1, (2 * HEADS, SIZE)).transpose(1, 2),
        k.unsqueeze(1),
        v.unsqueeze(1),
    )


def two_of_three(y: Tensor) -> Tensor:
    q, k, _ = map(heads, y.chunk(3, dim=-1))
    return attend(q, k, k)


SPLITS: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda y: attend(*map(heads, y.chunk(3, dim=-1))),
    "split": lambda y: attend(*map(heads, y.split(WIDTH, dim=-1))),
    "split with sizes": multi_query,
    "slices": sliced,
    "select": selected,
    "unbind": stacked,
    "interleaved": interleaved,
    "two of three": two_of_three,
}


class Packed(nn.Module):
    def __init__(self, split: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.projection, self.split = nn.Linear(WIDTH, 3 * WIDTH, bias=bias), split

    def forward(self, x: Tensor) -> Tensor:
        return self.split(self.projection(x))


def lowered(module: nn.Module, *inputs: Tensor, **settings: object) -> LoweredGraph:
    """The traced module, lowered with these specs; its outputs must match at another size, too."""
    module = module.eval()
    traced = saved(torch.jit.trace(module, inputs, check_trace=False))
    dims = {"n": (1, 2, 8), "t": (1, 4, 16)}
    dtype = str(inputs[0].dtype).removeprefix("torch.")
    specs = [
        builder.TensorSpec(dtype, ("n", "t", x.size(2)), dims=dims) for x in inputs
    ]
    result = builder.lower(traced, specs=specs, **settings)
    for case in (inputs, [torch.randn(3, 7, x.size(2), dtype=x.dtype) for x in inputs]):
        assert_equal_outputs(result, module, case)
    return result


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("split", list(SPLITS))
def test_each_part_of_packed_projection_gets_its_own_layer(
    split: str, bias: bool
) -> None:
    node_kinds = kinds(lowered(Packed(SPLITS[split], bias), torch.randn(2, 4, WIDTH)))
    assert node_kinds["linear"] == (2 if split == "two of three" else 3)
    assert not any(
        node_kinds[kind]
        for kind in ("chunk", "split", "select", "slice", "unbind", "unsqueeze")
        if split != "split with sizes"
    )
    assert not node_kinds["split_with_sizes"] and not node_kinds["split"]


class WithPositions(Packed):
    """Positions are expanded to the tokens before their embedding, as in BERT; the axes of the sum
    are known only if those of the expanded indices are.
    """

    def __init__(self) -> None:
        super().__init__(selected)
        self.positions = nn.Embedding(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.size(1), device=x.device).expand_as(x[..., 0])
        return super().forward(x + self.positions(positions))


def test_axes_are_inferred_through_expand_as() -> None:
    assert kinds(lowered(WithPositions(), torch.randn(2, 4, WIDTH)))["linear"] == 3


class TwoReaders(nn.Module):
    """The whole projection is also an output."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.projection(x)
        return stacked(y), y


class Gate(nn.Module):
    """Not attention: two products are not known to be faster than one."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).chunk(2, dim=-1)
        return value * torch.sigmoid(gate)


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, WIDTH)


class OverTime(Square):
    """Split along another axis than the layer's outputs."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.projection(x)
        return torch.matmul(y[:, :1], y[:, 1:].transpose(1, 2))


class Overlapping(Square):
    def forward(self, x: Tensor) -> Tensor:
        y = self.projection(x)
        return torch.matmul(y[..., :8], y[..., 4:].transpose(1, 2))


@pytest.mark.parametrize(
    "module",
    [TwoReaders(), Gate(), OverTime(), Overlapping()],
    ids=lambda m: type(m).__name__,
)
def test_other_layers_are_not_split(module: nn.Module) -> None:
    assert kinds(lowered(module, torch.randn(2, 4, WIDTH)))["linear"] == 1


def test_projection_in_fallback_module_is_not_split() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Packed(stacked)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x * 2)

    lowered_graph = lowered(
        Model(), torch.randn(2, 4, WIDTH), fallback_modules=("attention",)
    )
    assert kinds(lowered_graph)["linear"] == 1


class MultiHead(nn.Module):
    """torch's module on its slow path, which a causal decoder, other keys or a trace with gradients
    take.
    """

    def __init__(self, **settings: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **settings)  # type: ignore[arg-type]

    def forward(self, *tensors: Tensor) -> Tensor:
        query, memory = tensors[0], tensors[-1]
        return self.attention(query, memory, memory, need_weights=False)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("inputs", [1, 2])
def test_multi_head_attention_computes_products_of_four_axes(
    inputs: int, batch_first: bool
) -> None:
    tensors = [torch.randn(2, 4, WIDTH) for _ in range(inputs)]
    with torch.enable_grad():
        lowered_graph = lowered(
            MultiHead(batch_first=batch_first, bias=inputs == 1), *tensors
        )
    assert kinds(lowered_graph)["linear"] == 4 and kinds(lowered_graph)["reshape"] == 4
    for node in (
        node for node in lowered_graph.graph.nodes() if node.kind() == "aten::reshape"
    ):
        producer, reader = (
            node.inputsAt(0).node().kind(),
            node.output().uses()[0].user.kind(),
        )
        assert (producer, reader) in (
            ("aten::linear", "aten::permute"),
            ("aten::permute", "aten::linear"),
        ), (producer, reader)


def test_projection_of_unknown_rank_is_not_split() -> None:
    """Without specs, the rank of the input is unknown."""
    traced = torch.jit.trace(
        Packed(SPLITS["chunk"]), torch.randn(2, 4, WIDTH), check_trace=False
    )
    assert kinds(builder.lower(traced))["linear"] == 1


def test_split_weights_keep_their_dtype() -> None:
    lowered_graph = lowered(Packed(stacked).double(), torch.randn(2, 4, WIDTH).double())
    weights = [
        node.inputsAt(1).toIValue()
        for node in lowered_graph.graph.nodes()
        if node.kind() == "aten::linear"
    ]
    assert [tuple(w.shape) for w in weights] == [(WIDTH, WIDTH)] * 3 and {
        w.dtype for w in weights
    } == {torch.float64}
    assert F.linear(torch.ones(WIDTH).double(), weights[0]).shape == (WIDTH,)


class Patches(nn.Module):
    """The rank of the projection's input is known only through flatten and cat."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = x.unflatten(2, (2, WIDTH // 2)).flatten(2)
        return stacked(self.projection(torch.cat([y, y], dim=1)))


def test_rank_is_inferred_through_cat_and_flatten() -> None:
    assert kinds(lowered(Patches(), torch.randn(2, 4, WIDTH)))["linear"] == 3
