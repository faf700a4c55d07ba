"""A model that amplifies rounding errors is reported as such, not as a converter defect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import builder
from builder.errors import ParityError
from builder.manifest import ModelSpec, TensorSpec
from builder.parity import record
from builder.pipeline.segment_goldens import AMPLIFIES, check_reference

SPEC = ModelSpec(
    "model",
    Path("/nowhere/model.pt"),
    (TensorSpec("float32", (4, 8), {}, "x"),),
    ({},),
    ("y",),
)


class Amplifies(nn.Module):
    """Each iteration multiplies a difference by up to 12, and there are 40."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = torch.sin(x * 3.0) * 4.0
        return x


class Reordered(nn.Module):
    """The same function, which rounds differently."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = torch.sin(x + x + x) * 4.0
        return x


@pytest.mark.parametrize(
    ("published", "original", "amplifies"),
    [(Amplifies(), Reordered(), True), (nn.Sigmoid(), nn.Tanh(), False)],
)
def test_amplified_rounding_error_is_not_a_defect(
    published: nn.Module, original: nn.Module, amplifies: bool
) -> None:
    conversion = builder.convert(torch.jit.script(published), list(SPEC.inputs))
    with pytest.raises(ParityError, match="differs from the module") as caught:
        check_reference(conversion, record(original, SPEC), SPEC)
    assert (caught.value.fix == AMPLIFIES) is amplifies


def test_padding_of_packed_batches_is_named_as_the_cause() -> None:
    """The difference was reported as a defect of a converter."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = torch.jit.script(nn.TransformerEncoder(layer, 1).eval())
    mask = TensorSpec("bool", (4, 5), {}, "src_key_padding_mask")
    inputs = (TensorSpec("float32", (4, 5, 8), {}, "src"), mask)
    spec = replace(SPEC, inputs=inputs)
    conversion = builder.convert(
        builder.lower(module, optional_inputs=("src", "src_key_padding_mask")), inputs
    )
    with pytest.raises(ParityError) as caught:
        check_reference(conversion, record(module, spec), spec, module)
    assert "enable_nested_tensor=False" in str(caught.value.fix)
