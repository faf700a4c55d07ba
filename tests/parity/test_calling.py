"""The original module and the lowered graph assign each tensor to the same argument."""

from __future__ import annotations

from typing import Optional

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.manifest.spec import TensorSpec
from builder.parity.calling import call_module


class Arguments(nn.Module):
    """A module with every kind of argument."""

    def forward(
        self,
        x: Tensor,
        mask: Optional[Tensor],  # noqa: UP045 (TorchScript syntax)
        pair: tuple[Tensor, tuple[Tensor, Tensor]],
        scale: float = 2.0,
        bias: Optional[Tensor] = None,  # noqa: UP045
        shift: Optional[Tensor] = None,  # noqa: UP045
    ) -> Tensor:
        y = x * scale + pair[0] * 3 + pair[1][0] * 5 + pair[1][1] * 7
        if mask is not None:
            y = y * mask
        if bias is not None:
            y = y + bias * 11
        if shift is not None:
            y = y - shift * 13
        return y


@pytest.mark.parametrize(
    "optional", [[], ["mask"], ["shift"], ["bias", "shift"], ["mask", "bias", "shift"]]
)
def test_module_and_lowered_graph_accept_the_same_tensors(optional: list[str]) -> None:
    script = torch.jit.script(Arguments())
    names = [
        n
        for n in ("x", "mask", "p", "q", "r", "bias", "shift")
        if len(n) == 1 or n in optional
    ]
    specs = [TensorSpec("float32", (2,), name=name) for name in names]
    tensors = [torch.randn(2) for _ in names]
    lowered = builder.lower(script, optional_inputs=optional)
    torch.testing.assert_close(
        call_module(script, specs, tensors), lowered.run(*tensors)[0]
    )


def test_function_without_schema_gets_tensors_in_order() -> None:
    specs = [TensorSpec("float32", (2,), name=name) for name in "ab"]
    assert (
        call_module(lambda a, b: a - b, specs, [torch.tensor(3), torch.tensor(1)]) == 2
    )
