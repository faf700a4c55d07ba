"""Shape operators against torch: ranks 0 to 5, axes of size 1, dynamic axes one and two at a
time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import builder
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert

DTYPES = [
    torch.float32,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
]


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that are all different (modulo what the dtype holds)."""
    return (
        (
            torch.arange(int(torch.tensor(shape).prod())) * 3 % 251
            - (0 if dtype == torch.uint8 else 7)
        )
        .reshape(shape)
        .to(dtype)
    )


RESHAPES: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "view": (lambda x: x.view(6, 4), (2, 3, 4)),
    "view to 0-d": (lambda x: x.view([]), (1, 1)),
    "view from 0-d": (lambda x: x.view(1, 1), ()),
    "view with -1": (lambda x: x.view(4, -1, 2), (2, 3, 4)),
    "reshape of a permuted": (lambda x: x.permute(2, 0, 1).reshape(-1), (2, 3, 4)),
    "reshape to five axes": (lambda x: x.reshape(1, 2, 3, 1, 4), (2, 3, 4)),
    "view_as": (lambda x: x.view_as(torch.zeros(4, 6)), (2, 3, 4)),
    "reshape_as": (lambda x: x.reshape_as(torch.zeros(24)), (2, 3, 4)),
    "flatten": (lambda x: x.flatten(), (2, 3, 4)),
    "flatten of negative axes": (lambda x: x.flatten(-3, -2), (2, 3, 4, 5)),
    "flatten of one axis": (lambda x: x.flatten(1, 1), (2, 3)),
    "flatten of 0-d": (lambda x: x.flatten(), ()),
    "unflatten": (lambda x: x.unflatten(-1, (2, -1, 2)), (3, 8)),
    "unflatten of a middle axis": (lambda x: x.unflatten(1, (3, 2)), (2, 6, 4)),
    "ravel": (lambda x: x.ravel(), (2, 3)),
    "permute": (lambda x: x.permute(2, 0, -2), (2, 3, 4)),
    "permute of five axes": (lambda x: x.permute(4, 2, 0, 1, 3), (2, 1, 3, 4, 2)),
    "permute that keeps the order": (lambda x: x.permute(0, 1), (2, 3)),
    "transpose": (lambda x: x.transpose(-1, 0), (2, 3, 4)),
    "transpose of one axis": (lambda x: x.transpose(0, -1), (3,)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), (2, 3)),
    "swapdims": (lambda x: x.swapdims(0, 1), (2, 3)),
    "t": (lambda x: x.t(), (2, 3)),
    "t of a vector": (lambda x: x.t(), (3,)),
    "t of 0-d": (lambda x: x.t(), ()),
    "T": (lambda x: x.T, (2, 3)),
    "mT": (lambda x: x.mT, (2, 3, 4)),
    "mH": (lambda x: x.mH, (2, 3, 4)),
    "adjoint": (lambda x: x.adjoint(), (2, 3, 4)),
    "movedim": (lambda x: x.movedim(-1, 0), (2, 3, 4)),
    "movedim of two": (lambda x: x.movedim((0, 1), (-1, 0)), (2, 3, 4, 5)),
    "moveaxis": (lambda x: x.moveaxis(0, 2), (2, 3, 4)),
    "squeeze": (lambda x: x.squeeze(), (1, 3, 1, 2)),
    "squeeze to 0-d": (lambda x: x.squeeze(), (1, 1)),
    "squeeze of 0-d": (lambda x: x.squeeze(0), ()),
    "squeeze of an axis": (lambda x: x.squeeze(-2), (2, 1, 3)),
    "squeeze of an axis that is not 1": (lambda x: x.squeeze(0), (2, 1, 3)),
    "squeeze of several": (lambda x: x.squeeze((0, -1, 1)), (1, 2, 1)),
    "unsqueeze in front": (lambda x: x.unsqueeze(0), (2, 3)),
    "unsqueeze at the end": (lambda x: x.unsqueeze(-1), (2, 3)),
    "unsqueeze of 0-d": (lambda x: x.unsqueeze(0), ()),
    "expand": (lambda x: x.expand(4, -1, 5), (2, 1)),
    "expand that changes nothing": (lambda x: x.expand(2, 3), (2, 3)),
    "expand of 0-d": (lambda x: x.expand(2, 2), ()),
    "expand_as": (lambda x: x.expand_as(torch.zeros(3, 2, 4)), (2, 1)),
    "broadcast_to": (lambda x: x.broadcast_to(3, 2, 4), (2, 1)),
    "contiguous": (lambda x: x.transpose(0, 1).contiguous(), (2, 3)),
    "clone": (lambda x: x.clone(), (2, 3)),
    "detach": (lambda x: x.detach().t(), (2, 3)),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_values_match_torch(name: str) -> None:
    function, shape = RESHAPES[name]
    check(
        function,
        sample(*shape),
        compile=name in ("view", "permute", "expand", "squeeze", "unflatten"),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_moved(dtype: torch.dtype) -> None:
    check(
        lambda x: x.permute(1, 0, 2).reshape(3, -1).unsqueeze(1).expand(3, 2, 8),
        sample(2, 3, 4, dtype=dtype),
    )


DYNAMIC: dict[
    str,
    tuple[
        Callable[..., torch.Tensor],
        tuple[int, ...],
        dict[int, str],
        list[tuple[int, ...]],
    ],
] = {
    "view that keeps the batch": (
        lambda x: x.view(x.size(0), -1),
        (2, 3, 4),
        {0: "n"},
        [(1, 3, 4), (4, 3, 4)],
    ),
    "view with -1 in front": (
        lambda x: x.view(-1, 4),
        (2, 3, 4),
        {0: "n", 1: "t"},
        [(1, 1, 4), (4, 6, 4)],
    ),
    "sizes as a tensor": (
        lambda x: (
            x.expand(torch._shape_as_tensor(x)[0], -1) * torch._shape_as_tensor(x)[1]
        ),
        (2, 3),
        {0: "n"},
        [(1, 3), (4, 3)],
    ),
    "two dynamic axes stay": (
        lambda x: x.view(x.size(0), x.size(1), 2, 4),
        (2, 3, 8),
        {0: "n", 1: "t"},
        [(1, 6, 8), (3, 1, 8)],
    ),
    "two dynamic axes change places": (
        lambda x: x.reshape(x.size(1), x.size(0), 4),
        (2, 3, 4),
        {0: "n", 1: "t"},
        [(1, 5, 4), (4, 1, 4)],
    ),
    "two dynamic axes and -1": (
        lambda x: x.view(x.size(0), -1, x.size(2), 2),
        (2, 4, 3),
        {0: "n", 2: "w"},
        [(1, 4, 6), (3, 4, 1)],
    ),
    "halves of a dynamic axis": (
        lambda x: x.view(2, x.size(0) // 2, 3),
        (4, 3),
        {0: "n"},
        [(2, 3), (8, 3)],
    ),
    "flatten of two dynamic axes": (
        lambda x: x.flatten(1),
        (2, 3, 4, 2),
        {1: "h", 2: "w"},
        [(2, 1, 8, 2)],
    ),
    "flatten of all": (
        lambda x: x.flatten(),
        (2, 3),
        {0: "n", 1: "w"},
        [(1, 1), (4, 5)],
    ),
    "unflatten of a dynamic axis": (
        lambda x: x.unflatten(0, (-1, 2)),
        (4, 3),
        {0: "n"},
        [(2, 3), (8, 3)],
    ),
    "permute": (
        lambda x: x.permute(2, 0, 1),
        (2, 3, 4),
        {0: "n", 2: "w"},
        [(1, 3, 8), (4, 3, 1)],
    ),
    "transpose": (
        lambda x: x.transpose(1, 2),
        (2, 3, 4),
        {0: "n", 1: "t"},
        [(1, 1, 4)],
    ),
    "squeeze of a static axis": (
        lambda x: x.squeeze(1),
        (2, 1, 4),
        {0: "n", 2: "w"},
        [(1, 1, 1), (4, 1, 8)],
    ),
    "unsqueeze among dynamic axes": (
        lambda x: x.unsqueeze(1),
        (2, 4),
        {0: "n", 1: "w"},
        [(1, 1), (4, 8)],
    ),
    "expand of a new axis": (
        lambda x: x.expand(3, -1, -1),
        (2, 4),
        {0: "n", 1: "w"},
        [(1, 1), (4, 8)],
    ),
    "expand to a dynamic size": (
        lambda x: x[:1].expand(x.size(0), 4),
        (2, 4),
        {0: "n"},
        [(1, 4), (4, 4)],
    ),
    "flatten, then back": (
        lambda x: x.flatten(0, 1).view(x.size(0), x.size(1), -1),
        (2, 3, 4),
        {0: "n", 1: "t"},
        [(1, 6, 4), (4, 1, 4)],
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_axes_match_torch_at_every_size(name: str) -> None:
    function, shape, axes, more = DYNAMIC[name]
    check(
        function, sample(*shape), dynamic={0: axes}, more=[(sample(*m),) for m in more]
    )


def test_reshape_infers_no_axis_beside_an_axis_that_may_be_empty() -> None:
    check(
        lambda x: x.reshape(x.size(0), x.size(1) * 4),
        sample(2, 3, 4),
        dynamic={0: {0: "n", 1: "t"}},
        spans={"n": (0, 2, 4)},
        more=[(torch.zeros(0, 3, 4),)],
    )


def test_axis_of_possible_size_one_expands_only_at_one() -> None:
    check(
        lambda x, y: x.expand_as(y),
        sample(4, 3),
        sample(4, 3),
        dynamic={0: {0: "m"}, 1: {0: "n"}},
        more=[(sample(1, 3), sample(5, 3)), (sample(1, 3), sample(1, 3))],
    )


def test_broadcast_tensors_of_dynamic_axes() -> None:
    check(
        lambda x, y: tuple(torch.broadcast_tensors(x, y)),
        sample(4, 1, 3),
        sample(2, 1),
        dynamic={0: {0: "n"}, 1: {0: "m"}},
        more=[(sample(1, 1, 3), sample(4, 1))],
    )


@pytest.mark.parametrize("function", [lambda x: x.squeeze(), lambda x: x.squeeze(0)])
def test_squeeze_of_possible_size_one_axis_is_refused(
    function: Callable[..., torch.Tensor],
) -> None:
    with pytest.raises(UnsupportedOperators, match="dynamic axis 0"):
        convert(function, [sample(2, 3)], dynamic={0: {0: "n"}})


def test_squeeze_keeps_axis_larger_than_one() -> None:
    check(
        lambda x: x.squeeze(0),
        sample(3, 2),
        dynamic={0: {0: "n"}},
        spans={"n": (2, 3, 4)},
        more=[(sample(4, 2),)],
    )


def kinds(conversion: builder.Conversion) -> list[str]:
    """The types of the network's layers."""
    return [
        conversion.network.get_layer(i).type.name
        for i in range(conversion.network.num_layers)
    ]


def test_identity_view_adds_no_shuffle() -> None:
    conversion = convert(
        lambda x: x.view(x.size(0), 3).relu(), [sample(2, 3)], dynamic={0: {0: "n"}}
    )
    assert "SHUFFLE" not in kinds(conversion)


def test_a_view_with_one_open_axis_needs_no_shape_tensor() -> None:
    conversion = convert(
        lambda x: x.view(x.size(0), -1).relu(), [sample(2, 3, 4)], dynamic={0: {0: "n"}}
    )
    shuffle = next(i for i, kind in enumerate(kinds(conversion)) if kind == "SHUFFLE")
    assert conversion.network.get_layer(shuffle).num_inputs == 1


def test_one_shape_layer_serves_every_tensor_of_the_same_batch() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        z = y.sigmoid()
        return y.repeat(1, y.size(0)) + z.repeat(1, z.size(0))

    network = check(two, torch.randn(3, 4), dynamic={0: {0: "n"}}).network
    kinds = [network.get_layer(index).type.name for index in range(network.num_layers)]
    assert kinds.count("SHAPE") == 1
