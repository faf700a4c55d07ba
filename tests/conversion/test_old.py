"""Conversion for TensorRT 8.6, simulated with the installed flavor: nothing that 8.6 refuses, and
outputs like those of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import builder
from builder.conversion import precision
from builder.engine import capabilities, flavor
from builder.engine.capabilities import Capabilities
from builder.errors import UnsupportedOperators, UsageError
from builder.reference.layers.shape import reshape_dims
from builder.reference.node import read_layers
from tests.conversion import old
from tests.conversion.harness import check, convert

INTEGERS = torch.tensor(
    [[2**31 - 1, 5, -(2**31), 5], [2**24 + 1, 2**24, 2**24 + 2, -1]], dtype=torch.int32
)
"""Neighbors that are equal in float32, and equal values."""
SMALL = torch.tensor([[-3, 100, 0, 7]], dtype=torch.int8)
BOOLS = torch.tensor([[True, False], [False, True]])
HALVES = torch.tensor([[0.5, -2.0, 3.0], [1.0, 0.0, -0.25]], dtype=torch.float16)

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "sorted integers": (lambda x: x.sort(dim=1, stable=True), (INTEGERS,)),
    "sorted integers, descending": (
        lambda x: x.sort(dim=1, descending=True, stable=True),
        (INTEGERS,),
    ),
    "the best of integers": (lambda x: x.topk(2, 1)[0], (INTEGERS[1:],)),
    "the place of the greatest": (lambda x: x.argmax(1), (INTEGERS,)),
    "the least and its place": (lambda x: x.min(1), (INTEGERS,)),
    "small integers": (lambda x: (x.sort(1), x.max(1), x + 100, -x), (SMALL,)),
    "bytes": (
        lambda x: (x.to(torch.uint8), x.max(1)[0]),
        (SMALL.abs().to(torch.uint8),),
    ),
    "bools": (lambda x: (x.max(1), F.pad(x, (1, 2), value=True)), (BOOLS,)),
    "powers": (
        torch.pow,
        (torch.tensor([3, -2, -1, 1, 0, -1]), torch.tensor([19, 31, 101, 77, 0, -3])),
    ),
    "halves": (
        lambda x: (F.gelu(x), x * 2 + 1, x.clamp(max=0.5), x.float().sum(1), x > 0),
        (HALVES,),
    ),
    "products of halves": (
        lambda x: (x @ x.t(), F.linear(x, x, x[:, 0]), torch.bmm(x[None], x.t()[None])),
        (HALVES,),
    ),
    "half from others": (
        lambda x: (x.half(), x.bool().half()),
        (torch.tensor([1, 0, -7]),),
    ),
    "shifts": (
        torch.bitwise_right_shift,
        (torch.tensor([93, -93, -1]), torch.tensor([31, 40, 63])),
    ),
    "rows of nothing": (
        lambda x: (x.sort(1), x.argsort(1), x.topk(0, 0)),
        (torch.zeros(2, 0),),
    ),
    "the rectifier of a number": (F.prelu, (torch.tensor(-2.0), torch.tensor(0.5))),
    "the least of what falls on a part": (
        lambda x, at, y: (
            x.scatter_reduce(1, at, y, "amin"),
            x.scatter_reduce(1, at, y, "amax"),
        ),
        (
            torch.arange(-3, 9).reshape(4, 3),
            torch.tensor([[0, 0], [2, 1]]),
            torch.tensor([[-7, 8], [-1, 50]]),
        ),
    ),
    "the greatest of small integers": (
        lambda x: F.max_pool2d(x, 2, 2, 1),
        (torch.tensor([[[[-100, -3], [7, -128]]]], dtype=torch.int8),),
    ),
    "averages that round up": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, True),
        (torch.randn(1, 2, 7, 8),),
    ),
}


@pytest.fixture(autouse=True)
def dialect() -> Iterator[None]:
    with old.playing():
        yield


@pytest.mark.parametrize("name", CASES)
def test_operators_missing_in_8_6_are_decomposed(name: str) -> None:
    function, inputs = CASES[name]
    check(
        function,
        *inputs,
        rtol=2e-3 if "halves" in name else None,
        compile=flavor.name() == "tensorrt",
    )


@pytest.mark.parametrize("name", ["sorted integers", "bools", "averages that round up"])
def test_with_dynamic_axes(name: str) -> None:
    function, inputs = CASES[name]
    check(function, *inputs, dynamic={0: {0: "n"}}, compile=False)


BEYOND = "has values beyond torch.float16's range"


def test_a_weight_beyond_half_keeps_its_node_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8.6 would return an infinity if it chooses half precision."""
    pinned: list[str] = []
    monkeypatch.setattr(
        precision,
        "constrain",
        lambda net, first, spared: pinned.append(net.get_layer(first).name),
    )
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    module[0].weight.data[0, 0] = 1e6
    spec = builder.TensorSpec("float32", (2, 3))
    conversion = builder.convert(torch.jit.script(module), [spec], precision="fp16")
    assert [f"`weight` {BEYOND}" in text for text in conversion.warnings] == [
        True
    ] and len(pinned) == 1
    assert not builder.convert(torch.jit.script(module), [spec]).warnings


def test_mask_value_beyond_half_range_is_clamped() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.softmax(
                x.masked_fill(mask, torch.finfo(torch.float32).min), -1
            )

    x, mask = (
        torch.randn(2, 3),
        torch.tensor([[False, True, False], [True, True, True]]),
    )
    specs = [builder.TensorSpec("float32", (2, 3)), builder.TensorSpec("bool", (2, 3))]
    conversion = builder.convert(
        torch.jit.trace(Masked(), (x, mask)), specs, precision="fp16"
    )
    assert [f"`value` {BEYOND}" in text for text in conversion.warnings] == [True]
    numbers = [
        np.asarray(node.layer.weights)
        for node in layers(conversion)
        if node.kind == "CONSTANT"
    ]
    assert [number.min() for number in numbers] == [-65504.0]
    torch.testing.assert_close(
        builder.reference.run(conversion, [x, mask])[0], Masked()(x, mask)
    )


def test_number_beyond_half_range_is_preserved() -> None:
    class Shifted(torch.nn.Module):
        def forward(
            self, x: torch.Tensor, n: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1e6, n + 100000

    x, n = torch.randn(2), torch.tensor([1, 2], dtype=torch.int32)
    specs = [builder.TensorSpec("float32", (2,)), builder.TensorSpec("int32", (2,))]
    conversion = builder.convert(
        torch.jit.trace(Shifted(), (x, n)), specs, precision="fp16"
    )
    assert [f"`other` {BEYOND}" in text for text in conversion.warnings] == [True]
    for got, wanted in zip(
        builder.reference.run(conversion, [x, n]), Shifted()(x, n), strict=True
    ):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [(1, 0), (-2, 0), (7, 1), ((3, -4), (0, 1)), (5, ()), ((1, 1), (0, 0))],
)
def test_a_dynamic_roll_does_not_wrap(shifts: Any, dims: Any) -> None:
    x = torch.arange(12.0).reshape(4, 3)
    more = [[torch.arange(3.0 * n).reshape(n, 3)] for n in (1, 2, 8)]
    conversion = check(
        lambda x: x.roll(shifts, dims), x, dynamic={0: {0: "n"}}, more=more
    )
    modes = [
        node.layer.mode.name for node in layers(conversion) if node.kind == "SLICE"
    ]
    assert modes and "WRAP" not in modes


@pytest.mark.parametrize(
    "divided",
    [
        lambda x: x // 0.1,
        lambda x: torch.fmod(x, 0.3),
        lambda x: x.float() % 0.1,
        lambda x: 1.5 // x,
    ],
)
def test_exact_remainders_of_halves_are_refused(divided: Callable[..., Any]) -> None:
    """8.6 returns 10 for 1.0 // 0.1, and PyTorch 9."""
    with pytest.raises(UnsupportedOperators, match="half tensors incorrectly"):
        convert(divided, (HALVES,))
    check(lambda x: (x // 0.5, torch.div(x, 0.1)), HALVES)
    check(divided, HALVES.float() + 0.1)


def _filled(scores: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(scores > 1, -math.inf)


def _twice(scores: torch.Tensor, factor: float) -> torch.Tensor:
    masked = scores.masked_fill(scores > 1, -math.inf)
    if factor != 1:
        masked = masked * factor
    return masked.masked_fill(scores < -1, -math.inf)


def _attention(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=(x @ x.mT) > 0)


def _added(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x[:, 0]).masked_fill(x[:, 0] > 1, -math.inf)


def _zeroed(scores: torch.Tensor) -> torch.Tensor:
    empty = scores.amax(-1, keepdim=True) == -math.inf
    return scores.softmax(-1).masked_fill(empty, 0.0)


def _added_and_read(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _zeroed(x @ x.mT + _added(x)), _added(x) + 1


def _added_twice(x: torch.Tensor) -> torch.Tensor:
    return _zeroed(x @ x.mT + (_added(x) + _added(-x)))


@pytest.mark.parametrize(
    ("function", "gathers"),
    [
        (_filled, 1),
        (lambda x: (x == math.inf, _filled(x)), 2),
        (lambda x: _filled(x).softmax(-1), 1),  # x may be less than -1e38
        (lambda x: _filled(x @ x.mT + x[:, :1]).softmax(-1), 1),
        (lambda x: (x @ x.mT).masked_fill(x > 9, math.inf).softmax(-1), 1),
        (lambda x: _filled(x @ x.mT * 0.5).softmax(-1), 0),
        (lambda x: _twice(x @ x.mT, 1.0).softmax(-1), 0),
        (lambda x: _twice(x @ x.mT, 0.5).softmax(-1), 1),
        (lambda x: _filled(x @ x.mT).log_softmax(-1), 1),
        (_attention, 0),
        (lambda x: _zeroed(x @ x.mT + _added(x)), 0),
        (_added_and_read, 2),
        (_added_twice, 2),
        (lambda x: _filled(x @ x.mT).amax(-1) == -math.inf, 2),
        (lambda x: x.amax(-1) == -math.inf, 1),
    ],
)
def test_constant_infinities_come_from_tables(
    function: Callable[..., Any], gathers: int
) -> None:
    """8.6 computes with 1e38 if all elements of a constant are infinite. Masks of attention stay
    constants.
    """
    x = torch.tensor([[0.5, -1.5, 0.2], [-2.0, 0.1, 0.7], [0.3, 0.4, -0.6]])
    more = [(x.flip(0),), (torch.full((3, 3), 0.25),)]
    conversion = check(function, x, dynamic={0: {0: "n"}}, more=more)
    nodes = layers(conversion)
    assert [node.kind for node in nodes].count("GATHER") == gathers


class Parallel(torch.nn.Module):
    """A block of a transformer whose attention and feed-forward layers read the same value."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.qkv, self.dense = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        attention = self.dense((q @ k.mT).softmax(-1) @ v)
        if self.order == "sequential":
            return x + attention + self.down(self.up(x + attention).relu())
        read = x + attention * 0.5 if self.order == "dependent" else x
        hidden = self.down(self.up(read).relu())
        if self.order == "residual first":
            return (x + attention) + hidden
        return attention + (hidden + x) if self.order == "last" else hidden + attention


@pytest.mark.parametrize(
    ("order", "pooled", "shape"),
    [
        ("beside", 1, (2, 3, 8)),
        ("beside", 1, (3, 8)),
        ("beside", 0, (2, 2, 3, 8)),
        ("last", 1, (2, 3, 8)),
        ("dependent", 1, (2, 3, 8)),
        ("residual first", 0, (2, 3, 8)),
        ("sequential", 0, (2, 3, 8)),
    ],
)
def test_sum_of_parallel_products_reads_one_through_a_pooling(
    order: str, pooled: int, shape: tuple[int, ...]
) -> None:
    """8.6 computes a sum of an attention and of a product beside it incorrectly."""
    torch.manual_seed(0)
    more = [(torch.randn(5, *shape[1:]),)]
    conversion = check(
        Parallel(order).eval(),
        torch.randn(shape),
        dynamic={0: {0: "n"}},
        spans={"n": (1, 2, 8)},
        more=more,
        rtol=1e-5,
        atol=1e-5,
        trace=True,
    )
    kinds = [node.kind for node in layers(conversion)]
    assert kinds.count("POOLING") == pooled


class Patches(torch.nn.Module):
    """Patches with a class token, a block of a vision transformer, and the class token's result.
    With `late`, a convolution follows the block.
    """

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late = torch.nn.Conv1d(8, 8, 1) if late else torch.nn.Identity()
        self.patches = torch.nn.Conv2d(3, 8, 2, 2)
        self.token, self.positions = torch.randn(1, 1, 8), torch.randn(1, 5, 8)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(8) for _ in range(3))
        self.query, self.key, self.value, self.out = (
            torch.nn.Linear(8, 8) for _ in range(4)
        )
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.scale = torch.nn.Parameter(torch.randn(8))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(y.size(0), -1, -1), y], 1) + self.positions
        x = x + self.scale * self.attention(self.norms[0](x))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.late(self.norms[2](x).transpose(1, 2))[:, :, 0]

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, 2, 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


@pytest.mark.parametrize(
    ("batch", "late", "rank"),
    [(1, False, 2), (3, False, 2), ("n", False, 2), (3, True, 3)],
)
def test_tokens_of_a_convolution_are_rows_of_a_matrix(
    batch: int | str, late: bool, rank: int
) -> None:
    """8.6 then computes a residual sum and its layer_norm in one kernel."""
    torch.manual_seed(0)
    size = batch if isinstance(batch, int) else 2
    module, image = Patches(late).eval(), torch.randn(size, 3, 4, 4)
    dims = {} if isinstance(batch, int) else {"n": (1, 2, 4)}
    spec = builder.TensorSpec("float32", (batch, 3, 4, 4), dims=dims)
    traced = torch.jit.trace(module, image)
    conversion = builder.convert(traced, [spec], precision="fp16")
    (result,) = builder.reference.run(conversion, [image])
    torch.testing.assert_close(result, module(image), rtol=1e-5, atol=1e-5)
    ranks: dict[str, list[int]] = {}
    for layer in layers(conversion):
        ranks.setdefault(layer.kind, []).append(len(layer.outputs[0].shape))
    assert ranks["NORMALIZATION"] == [rank] * 3
    # the last of rank 3 computes the patches
    assert sorted(ranks["MATRIX_MULTIPLY"]) == sorted([rank] * 6 + [3] + [4] * 2)


class Embedding(torch.nn.Module):
    """Patches of an image as tokens `[batch, patches, 6]`, and their attention."""

    def __init__(self, form: str, channels: int = 3, **settings: Any) -> None:
        super().__init__()
        self.form = form
        settings = {"kernel_size": (2, 3), "stride": (2, 3), **settings}
        self.patches = torch.nn.Conv2d(channels, 6, **settings)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = self.patches(image)
        sizes = (y.size(0), y.size(1), y.size(2) * y.size(3))
        if self.form == "flatten":
            tokens = y.flatten(2).transpose(1, 2)
        elif self.form == "reshape":
            tokens = y.reshape(sizes).permute(0, 2, 1)
        elif self.form == "negative axes":
            tokens = y.flatten(-2, -1).transpose(-1, -2)
        elif self.form == "also transposed":
            flat = y.flatten(2)
            tokens = flat.transpose(1, 2) * flat.sum() + flat.mean(1).unsqueeze(2)
        elif self.form == "also an image":
            tokens = y.flatten(2).transpose(1, 2) + y.amax((2, 3)).unsqueeze(1)
        elif self.form == "rank 4":
            tokens = y.reshape(-1, 6, 3, 2).permute(0, 3, 2, 1).flatten(1, 2)
        elif self.form == "channels last":
            tokens = y.permute(0, 2, 3, 1).flatten(1, 2)
        else:
            tokens = y.flatten(1).unsqueeze(1)
        return torch.softmax(tokens @ tokens.transpose(1, 2), -1) @ tokens


EMBEDDINGS: list[tuple[str, dict[str, Any], bool]] = [
    ("flatten", {}, True),
    ("flatten", {"bias": False}, True),
    ("flatten", {"channels": 1}, True),
    ("reshape", {}, True),
    ("negative axes", {}, True),
    ("also transposed", {}, True),
    ("also an image", {}, False),
    ("rank 4", {}, False),
    ("channels last", {}, False),
    ("flat", {}, False),
    ("flatten", {"channels": 5}, False),
    ("flatten", {"stride": (2, 1)}, False),
    ("flatten", {"padding": (2, 0)}, False),
    ("flatten", {"dilation": (1, 2)}, False),
    ("flatten", {"groups": 3}, False),
    ("flatten", {"kernel_size": (3, 3), "stride": (3, 3)}, False),
]


@pytest.mark.parametrize(("form", "settings", "linear"), EMBEDDINGS)
@pytest.mark.parametrize("dynamic", [{}, {0: "n"}, {0: "n", 3: "w"}])
def test_patches_of_an_image_are_a_linear_layer(
    form: str, settings: dict[str, Any], linear: bool, dynamic: dict[int, str]
) -> None:
    """If they cover an image of static size, and only tokens are read."""
    torch.manual_seed(0)
    module = Embedding(form, **settings).eval()
    images = [torch.randn(n, settings.get("channels", 3), 4, 9) for n in (2, 3)]
    axes = [dynamic.get(axis, size) for axis, size in enumerate(images[0].shape)]
    dims = {"n": (1, 2, 4), "w": (6, 9, 12)}
    spec = builder.TensorSpec("float32", axes, dims=dims if dynamic else {})
    traced = torch.jit.trace(module, images[0])
    conversion = builder.convert(traced, [spec], precision="fp16")
    for image in images if dynamic else images[:1]:
        (result,) = builder.reference.run(conversion, [image])
        torch.testing.assert_close(result, module(image), rtol=1e-5, atol=1e-5)
    kinds = [node.kind for node in layers(conversion)]
    assert ("CONVOLUTION" not in kinds) == (linear and 3 not in dynamic)


def test_new_axis_before_an_empty_one() -> None:
    """A 0 in the shape tensor of a reshape is a length, and copies no axis."""
    check(
        lambda x: x.unsqueeze(0) + 1,
        torch.zeros(5, 0),
        dynamic={0: {0: "n", 1: "m"}},
        spans={"n": (0, 5, 8), "m": (0, 2, 8)},
        more=[(torch.zeros(0, 5),), (torch.ones(2, 3),)],
    )


def test_nested_reshape_copies_no_axis() -> None:
    """8.6 merges the two into one, whose copied axis has the size of the input of the first."""
    heads = lambda x: (  # noqa: E731
        x[2]
        .reshape(x.shape[1], x.shape[2] * 4, 2)
        .transpose(0, 1)
        .reshape(-1, x.shape[1], 2)
    )
    conversion = check(
        heads, torch.randn(3, 5, 2, 8), dynamic={0: {1: "t", 2: "n"}}, trace=True
    )
    shuffles = [node.layer for node in layers(conversion) if node.kind == "SHUFFLE"]
    copying = [
        s.name
        for s in shuffles
        if 0 in (reshape_dims(s) or ()) and s.zero_is_placeholder
    ]
    assert len(shuffles) >= 3 and not copying


def layers(conversion: builder.Conversion) -> list[Any]:
    """With the settings of their classes."""
    network = conversion.network
    return read_layers(network)


class Summed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = []
        for row in range(x.size(0)):
            sums.append(x[row].cumsum(0))
        return torch.stack(sums)


@pytest.mark.parametrize(
    ("axes", "widths"), [({0: "n"}, (4, 4)), ({0: "n", 1: "w"}, (1, 6))]
)
def test_running_sum_in_a_loop_needs_no_fill_slice(
    axes: dict[int, str], widths: tuple[int, int]
) -> None:
    """Myelin, which compiles the body, has no FILL."""
    more = [
        [torch.randn(rows, width)] for rows, width in zip((1, 7), widths, strict=True)
    ]
    conversion = check(
        Summed(),
        torch.randn(3, 4),
        dynamic={0: axes},
        spans={"n": (1, 3, 99)},
        more=more,
    )
    kinds = {node.kind for node in layers(conversion)}
    modes = {
        node.layer.mode.name for node in layers(conversion) if node.kind == "SLICE"
    }
    assert "TRIP_LIMIT" in kinds and "FILL" not in modes


class Padded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for row in range(x.size(0)):
            rows.append(torch.nn.functional.pad(x[row], (1, 2)))
        return torch.stack(rows)


def test_padding_in_a_loop_is_refused_with_source_line() -> None:
    spec = builder.TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 99)})
    with pytest.raises(
        UnsupportedOperators, match="a loop of unknown length that pads"
    ) as refusal:
        builder.convert(torch.jit.script(Padded()), [spec])
    assert "torch/nn/functional.py" in str(refusal.value) and "near" in str(
        refusal.value
    )
    assert "test_old.py" in str(refusal.value)


def break_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        if not bool(x.abs().sum() < 90):
            break
        x = x * 2 + 1
    return x


def loop_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 0):
        for _ in range(x.size(0)):
            x = x * 0.5 + 1
    return x


def loop_before_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(x.size(0) // 2):
        y = y + x[0]
    if bool(y.sum() > 0):
        x = x * 2
    return x + y


def exchange_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    a, b = x * 2, x + 1
    for _ in range(x.size(0)):
        a, b = b, a
        x = x + a
    return x + a * b


def unread_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    last = x
    for _ in range(x.size(0)):
        x = x / 2
        last = x.flip([0])
    return last + x


def branch_after_a_branch(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 0):
        x = x @ x.t() @ x
    if bool(x.max() > 1):
        x = x.cumsum(0)
    return x


def branch_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 0):
        x = x.cumsum(0) if bool(x.max() > 1) else x @ x.t() @ x
    return x


def values_that_move_up(x: torch.Tensor) -> torch.Tensor:
    a, b = x, x + 1
    for _ in range(x.size(0)):
        a, b = b, a + b
    return a * b


@pytest.mark.parametrize(
    ("function", "refusal"),
    [
        (break_in_a_loop, "has a loop of unknown length and a branch"),
        (loop_in_a_branch, "has a loop of unknown length and a branch"),
        (loop_before_a_branch, "has a loop of unknown length and a branch"),
        (exchange_in_a_loop, "exchanges carried values"),
        (unread_in_a_loop, "carries a value that no iteration reads"),
        (branch_after_a_branch, "depends on the result of another branch"),
        (branch_in_a_branch, None),
        (values_that_move_up, None),
    ],
)
def test_control_flow_that_the_engine_computes_incorrectly(
    function: Callable[..., Any], refusal: str | None
) -> None:
    """Random programs on an H100 and an H200 gave other values than torch."""
    spec = builder.TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 9)})
    with (
        pytest.raises(UnsupportedOperators, match=refusal) if refusal else nullcontext()
    ):
        builder.convert(torch.jit.script(function), [spec])


def loops_around_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(x.size(0)):
        y = y + x[0]
    if bool(y.sum() > 0):
        x = x * 2
    for _ in range(x.size(0)):
        y = y * 0.5
    return x + y


def test_only_the_branch_between_loops_is_refused() -> None:
    spec = builder.TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 9)})
    with pytest.raises(UnsupportedOperators) as refusal:
        builder.convert(torch.jit.script(loops_around_a_branch), [spec])
    kinds = [operator.schema for operator in refusal.value.operators]
    assert kinds == ["prim::If"]


def test_sorting_too_many_integers_is_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="sorts only floats"):
        convert(lambda x: x.topk(5), [torch.zeros(5000, dtype=torch.int32)])


def test_bfloat16_is_refused_with_a_reason() -> None:
    """8.6 would silently compute in float32: only a strongly typed network has the casts."""
    module = torch.jit.script(torch.nn.Linear(4, 4))
    with pytest.raises(
        UsageError, match=r"precision 'bf16': TensorRT .* has no bfloat16"
    ):
        builder.convert(
            module, [builder.TensorSpec("float32", (2, 4))], precision="bf16"
        )


@pytest.mark.skipif(
    not capabilities.current().strongly_typed, reason="8.6 itself refuses them"
)
def test_layer_refused_by_8_6_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the check of the other tests: without the composition, each of these is reported."""
    monkeypatch.setattr(
        Capabilities, "takes", lambda self, layer, dtype: layer != "UNARY.NEG"
    )
    assert old.refused(convert(lambda x: x.sort(1), [INTEGERS]).network)
    assert old.refused(convert(lambda x: F.pad(x, (1, 2), value=True), [BOOLS]).network)
