"""A model that amplifies rounding errors is reported as such, not as a converter defect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import builder
from builder.conversion import Conversion
from builder.dtypes import name_of
from builder.errors import ParityError
from builder.manifest import ModelSpec, TensorSpec
from builder.parity import record
from builder.pipeline.segment_goldens import (
    ACCUMULATES,
    AMPLIFIES,
    check_reference,
    golden_of,
)
from builder.reference.registry import EVALUATORS

SPEC = ModelSpec(
    "model",
    Path("/nowhere/model.pt"),
    (TensorSpec("float32", (4, 8), {}, "x"),),
    ({},),
    ("y",),
)


def converted(published: nn.Module, spec: ModelSpec = SPEC) -> Conversion:
    return builder.convert(
        torch.jit.script(published), list(spec.inputs), output_names=["y"]
    )


def fix_of(
    published: nn.Module,
    original: nn.Module,
    spec: ModelSpec = SPEC,
    module: nn.Module | None = None,
) -> str:
    """The fix of the error where the network of `published` differs from `original`. `module` is
    given to the comparison as the original.
    """
    with pytest.raises(ParityError, match="differs from the module") as caught:
        check_reference(
            converted(published, spec), record(original, spec), spec, module
        )
    assert "elements differ" in caught.value.message
    return str(caught.value.fix)


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
            x = torch.sin(x * 0.3 * 10.0) * 4.0
        return x


@pytest.mark.parametrize(
    ("published", "original", "amplifies"),
    [(Amplifies(), Reordered(), True), (nn.Sigmoid(), nn.Tanh(), False)],
)
def test_amplified_rounding_error_is_not_a_defect(
    published: nn.Module, original: nn.Module, amplifies: bool
) -> None:
    assert (fix_of(published, original) == AMPLIFIES) is amplifies


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = x * 2.0
        return x


@pytest.mark.parametrize(
    ("error", "original", "accumulates"),
    [
        (2.0**-14, Doubles(), True),
        (2.0**-3, Doubles(), False),  # of an operator
        (2.0**-14, nn.Tanh(), False),  # of the graph
    ],
)
def test_errors_that_add_up_are_not_a_defect(
    error: float,
    original: nn.Module,
    accumulates: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were a defect of a converter, where a change of the inputs does not show them."""
    evaluate = EVALUATORS["ELEMENTWISE"]
    monkeypatch.setitem(
        EVALUATORS,
        "ELEMENTWISE",
        lambda layer, *operands: evaluate(layer, *operands) * (1 + error),
    )
    assert (fix_of(Doubles(), original) == ACCUMULATES) is accumulates


class Cancels(nn.Module):
    """Returns only the rounding error, as torch does for the real part of (x + ix)**2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x - (x * 0.1) * (x * 10)


class Zero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0


def test_rounding_error_of_a_cancellation_is_not_a_defect() -> None:
    module = torch.jit.script(Cancels())
    assert fix_of(Zero(), module, module=module) == AMPLIFIES


def test_half_input_is_nudged_in_its_dtype() -> None:
    """It became float32, which the network does not accept."""
    spec = replace(SPEC, inputs=(TensorSpec("float16", (4, 8), {}, "x"),))
    assert fix_of(nn.Sigmoid(), nn.Tanh(), spec) != AMPLIFIES


class HalfLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 64).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.half()).float()


class HalfLayerWithEightUlps(HalfLayer):
    """The same layer, whose results are up to eight rounding steps of float16 larger."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + 2.0**-7)


class HalfLayerWithOneUlp(HalfLayer):
    """Another library may round a result of float16 to its neighbor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + 2.0**-10)


class HalfLayerTwice(HalfLayer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize(
    ("original", "rounds"),
    [(HalfLayerWithEightUlps(), True), (HalfLayerTwice(), False)],
)
def test_rounding_of_half_layers_is_named_as_the_cause(
    original: nn.Module, rounds: bool
) -> None:
    """The difference was reported as a defect of a converter."""
    assert ("layers of float16" in fix_of(HalfLayer(), original)) is rounds


def test_one_rounding_step_of_half_layers_is_allowed() -> None:
    """Such models were served by torch."""
    check_reference(converted(HalfLayer()), record(HalfLayerWithOneUlp(), SPEC), SPEC)


def test_padding_of_packed_batches_is_named_as_the_cause() -> None:
    """The difference was reported as a defect of a converter."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = torch.jit.script(nn.TransformerEncoder(layer, 1).eval())
    tensors = {
        "src": torch.rand(2, 5, 8),
        "src_key_padding_mask": torch.arange(5) >= torch.tensor([[5], [3]]),
    }
    specs = [
        TensorSpec(name_of(tensor.dtype), tuple(tensor.shape), {}, name)
        for name, tensor in tensors.items()
    ]
    lowered = builder.lower(module, optional_inputs=tuple(tensors))
    conversion = builder.convert(lowered, specs, output_names=["y"])
    with torch.no_grad():
        golden = golden_of("packed", tensors, {"y": module(**tensors)})
    with pytest.raises(ParityError) as caught:
        check_reference(conversion, [golden], SPEC, module)
    assert "elements differ" in caught.value.message
    assert "enable_nested_tensor=False" in str(caught.value.fix)
