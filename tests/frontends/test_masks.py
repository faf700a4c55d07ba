"""Attention masks that are true everywhere are removed, and no others."""

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
