"""Attention masks that are true everywhere are removed, and expansions over the heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import builder
from builder.frontends import ExportedModule


def positions(x: Tensor) -> Tensor:
    """As transformers 5 computes the mask of an encoder."""
    at = (torch.arange(x.shape[1]) + 0)[None, None, :, None]
    return (at >= 0).expand(x.shape[0], -1, x.shape[1], x.shape[1])


def after_the_first(x: Tensor) -> Tensor:
    return (torch.arange(x.shape[1]) >= 1)[None].expand(x.shape[1], -1)[None]


def shifted(x: Tensor) -> Tensor:
    return ((torch.arange(x.shape[1]) + (-1)) >= 0)[None, None]


def causal(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[1])
    return (at[None, :] <= at[:, None])[None]


def of_an_input(x: Tensor) -> Tensor:
    return (x[:, :1, :1, 0] >= -1).expand(-1, x.shape[1], x.shape[1])[:, None]


def written(x: Tensor) -> Tensor:
    mask = torch.arange(x.shape[1]) >= 0
    mask[-1:].logical_not_()
    return mask[None, None]


class Attention(nn.Module):
    def __init__(self, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(
            rows, rows, rows, self.mask(x)
        )


@pytest.mark.parametrize(
    "mask",
    [positions, after_the_first, shifted, causal, of_an_input, written],
    ids=lambda mask: mask.__name__,
)
def test_only_always_true_masks_are_removed(mask: Callable[[Tensor], Tensor]) -> None:
    module, shapes = (
        Attention(mask),
        ({0: Dim("n", max=8), 1: Dim("t", min=2, max=16)},),
    )
    program = torch.export.export(
        module, (torch.randn(2, 5, 2, 4),), dynamic_shapes=shapes
    )
    exported = ExportedModule(program)
    (node,) = exported.graph.findAllNodes("aten::scaled_dot_product_attention")
    is_removed = node.inputsAt(3).type().kind() == "NoneType"
    assert is_removed == (mask is positions)
    conversion = builder.convert(program)
    for sizes in ((2, 5), (1, 2), (3, 7)):
        x = torch.randn(*sizes, 2, 4)
        (output,) = builder.reference.run(conversion, [x])
        torch.testing.assert_close(output, module(x))


def expanded(x: Tensor) -> Tensor:
    """As torch.nn expands a padding mask."""
    batch, time, heads, _ = x.shape
    mask = x[:, :, 0, 0].view(batch, 1, 1, time).expand(-1, heads, -1, -1)
    return mask.reshape(batch * heads, 1, time).view(batch, heads, -1, time)


def reshaped(x: Tensor) -> Tensor:
    """Expanded to other sizes than those of the mask."""
    batch, time, _, _ = x.shape
    return x[:, :1, :1, :1].expand(-1, 1, time, 1).reshape(batch, 1, 1, time)


def of_rank_three(x: Tensor) -> Tensor:
    _, time, heads, _ = x.shape
    return x[0, :, 0, :1].T.expand(heads, time, time)


@pytest.mark.parametrize(
    "mask", [expanded, reshaped, of_rank_three], ids=lambda mask: mask.__name__
)
def test_attention_expands_the_mask_over_its_heads(
    mask: Callable[[Tensor], Tensor],
) -> None:
    module = Attention(mask)
    axes = {0: Dim("n", max=8), 1: Dim("t", min=2, max=16)}
    program = torch.export.export(
        module, (torch.randn(2, 5, 2, 4),), dynamic_shapes=(axes,)
    )
    lowered = builder.lower(program)
    assert ("aten::expand" in str(lowered.graph)) == (mask is not expanded)
    for sizes in ((2, 5), (1, 2), (3, 7)):
        x = torch.randn(*sizes, 2, 4)
        torch.testing.assert_close(lowered.run(x), [module(x)])
