"""torch finds values beyond float16's range, and the network keeps their layers in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import builder
from builder.engine import trt
from builder.lowering import lower
from builder.quantization import overflow
from builder.reference.node import Node, Values
from tests.conversion import old
from tests.conversion.harness import spec_of


class Large(nn.Module):
    """A large hidden value, as in Xception with random weights; input and output are small."""

    def __init__(self, scale: float = 1e4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)
        with torch.no_grad():
            self.first.weight.fill_(scale)
            self.second.weight.fill_(1e-4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


ONES = torch.ones(2, 8)
SPEC = builder.TensorSpec("float32", (2, 8))


def found(module: nn.Module, *batch: torch.Tensor) -> tuple[overflow.Beyond, ...]:
    return overflow.beyond_half(lower(torch.jit.script(module.eval())), [batch])


def test_large_value_and_its_readers_are_found() -> None:
    beyond = found(Large(), ONES)
    assert [round(item.greatest, -3) for item in beyond] == [80000, 80000]
    assert beyond[0].readers == (beyond[1].value,), (
        "relu reads the output of the first layer"
    )


def test_values_within_float16_are_not_found() -> None:
    assert found(Large(8e3), ONES) == ()


def test_layers_with_large_values_stay_in_float32() -> None:
    module = Large().eval()
    lowered = lower(torch.jit.script(module))
    plain = builder.convert(lowered, [SPEC], precision="fp16")
    beyond = overflow.beyond_half(lowered, [(ONES,)])
    layers = overflow.layers(plain, beyond)
    assert layers == ("first/aten::linear_0", "aten::relu_0", "second/aten::linear_0")
    fixed = builder.convert(lowered, [SPEC], precision="fp16", keep_fp32=layers)
    (wrong,), (right,) = (
        builder.reference.run(item, [ONES]) for item in (plain, fixed)
    )
    assert not torch.isfinite(wrong).all()
    torch.testing.assert_close(right, module(ONES), rtol=1e-3, atol=1e-3)
    same, (warning,) = overflow.with_layers_in_float32(plain, beyond)
    torch.testing.assert_close(builder.reference.run(same, [ONES]), [right])
    assert overflow.with_layers_in_float32(plain, ()) == (plain, ())
    assert (
        "keeps 3 layers in float32" in warning
        and "8e+04" in warning
        and "65504" in warning
    )


class Masked(nn.Module):
    def __init__(self, above: bool) -> None:
        super().__init__()
        self.above = above

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = (1.0 - mask) * (1e9 if self.above else -1e9)
        return torch.softmax(x + hidden, -1)


@pytest.mark.parametrize("above", [False, True])
def test_large_score_is_overflow_but_softmax_mask_is_not(above: bool) -> None:
    mask = torch.tensor([1.0, 0.0]).repeat(1, 4)
    beyond = found(Masked(above), ONES[:1], mask)
    assert any(not value.is_mask for value in beyond) is above


def test_value_that_is_infinite_in_torch_is_not_found() -> None:
    class Infinite(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x / 0.0) * 1e3

    assert found(Infinite(), ONES) == ()


class Scaled(nn.Module):
    """Reads an input beyond float16's range."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 2)
        with torch.no_grad():
            self.linear.weight.mul_(1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class LargeWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        with torch.no_grad():
            self.linear.weight.fill_(1e4)


class Looping(LargeWeights):
    """Has a large value in a loop that is not unrolled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = self.linear(x) * 1e-5
        return x


class Counted(nn.Module):
    """Multiplies by an integer beyond float16's range, which is also compared."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return ((self.linear(x) * 1e-5) * count).masked_fill(count.eq(3), 0.0)


class MaskedThenScaled(LargeWeights):
    """A large value beside masked elements, which are infinite."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x).masked_fill(mask, float("-inf"))
        return (hidden.permute(1, 0) * 1e-5).exp()


class Factor(nn.Module):
    """A constant beyond float16's range; all results are within it."""

    def __init__(self, divides: bool) -> None:
        super().__init__()
        self.linear, self.divides = nn.Linear(8, 8), divides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        return hidden / 3e5 * 1e5 if self.divides else hidden * 2e5 * 1e-4


class Alpha(nn.Module):
    """A product that is large before alpha scales it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(x[:, :1, :1], x, y, alpha=1e-4)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 2)
        with torch.no_grad():
            self.linear.weight.mul_(1e6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * 1e-4)


@pytest.mark.parametrize(
    ("module", "batch"),
    [
        (Factor(divides=True), [ONES]),
        (Factor(divides=False), [ONES * 0.1]),
        (Weights(), [ONES]),
        (Alpha(), [torch.full((2, 4, 64), 50.0), torch.full((2, 64, 4), 50.0)]),
        (Scaled(), [torch.full((2, 8), 2e5)]),
        (Looping(), [ONES]),
        (Counted(), [ONES, torch.full((2, 8), 100_000)]),
        (MaskedThenScaled(), [ONES, torch.tensor([[True], [False]])]),
    ],
    ids=[
        "divisor",
        "factor",
        "weights",
        "alpha",
        "input",
        "loop",
        "integer",
        "beside infinity",
    ],
)
def test_large_value_of_each_kind_is_found(
    module: nn.Module, batch: list[torch.Tensor]
) -> None:
    module.eval()
    plain = builder.convert(
        torch.jit.script(module), [spec_of(x, {}, {}) for x in batch], precision="fp16"
    )
    fixed, warnings = overflow.with_layers_in_float32(
        plain, overflow.beyond_half(plain.lowered, [batch])
    )
    (wrong,), (right,) = (builder.reference.run(item, batch) for item in (plain, fixed))
    assert warnings
    assert not torch.allclose(wrong, module(*batch), rtol=1e-2, atol=5e-3)
    torch.testing.assert_close(right, module(*batch), rtol=1e-2, atol=5e-3)


def test_large_indices_of_an_embedding_are_not_found() -> None:
    embedding = nn.Embedding(70_000, 4)
    assert found(embedding, torch.tensor([69_999])) == ()


class LeftPadded(nn.Module):
    """Attention as in language models of transformers: a padding token sees only masked ones."""

    def forward(self, x: torch.Tensor, attends: torch.Tensor) -> torch.Tensor:
        lowest = -3.4028234663852886e38
        mask = torch.triu(torch.full((x.size(1), x.size(1)), lowest), 1)[None]
        hidden = mask + attends[:, None, :] == 0
        mask = mask.expand(x.size(0), -1, -1).masked_fill(hidden, lowest)
        scores = x @ x.transpose(1, 2)
        return (scores + mask).softmax(-1) @ x


class MaskAsInput(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2) + mask).softmax(-1) @ x


class TwoMasks(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2) + mask + mask).softmax(-1) @ x


PADDED = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
LOWEST = torch.full((2, 4, 4), torch.finfo(torch.float32).min)
MASKS = [
    (LeftPadded(), PADDED),
    (MaskAsInput(), LOWEST.tril(1)),
    (TwoMasks(), LOWEST.tril(1) / 4),
]


def _checks_masks(module: nn.Module, mask: torch.Tensor) -> None:
    """Compare the network, in whose layers the masks are limited, with the module."""
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)) / 2
    plain = builder.convert(
        torch.jit.script(module),
        [spec_of(item, {}, {}) for item in (x, mask)],
        precision="fp16",
    )
    beyond = overflow.beyond_half(plain.lowered, [(x, mask)])
    fixed, _ = overflow.with_layers_in_float32(plain, beyond)
    (right,) = builder.reference.run(fixed, [x, mask])
    torch.testing.assert_close(
        right, module(x, mask), rtol=1e-2, atol=5e-3, equal_nan=True
    )


@pytest.mark.parametrize(
    ("module", "mask"),
    [*MASKS, (MaskAsInput(), torch.cat([LOWEST[:1] * 2, LOWEST[1:]]))],
)
def test_rows_that_are_masked_as_a_whole_stay_finite(
    module: nn.Module, mask: torch.Tensor
) -> None:
    """In half the mask would be infinite, and the softmax of such a row NaN. A row with an infinite
    mask is NaN in torch, too.
    """
    _checks_masks(module, mask)


class LesserOfMasks(nn.Module):
    def forward(self, x: torch.Tensor, attends: torch.Tensor) -> torch.Tensor:
        padding = (1.0 - attends[:, None, :].to(torch.float32)) * -1e9
        causal = torch.triu(torch.full((x.size(1), x.size(1)), -1e9), 1)[None]
        return (x @ x.transpose(1, 2) + torch.minimum(padding, causal)).softmax(-1) @ x


@pytest.mark.parametrize(("module", "mask"), [*MASKS, (LesserOfMasks(), PADDED)])
def test_masks_stay_finite_if_8_6_chooses_half(
    module: nn.Module, mask: torch.Tensor
) -> None:
    """TensorRT 8.6 may compute each layer in half that is not constrained to float32."""
    constrained = []
    evaluate = Node.evaluate

    def in_half(node: Node, values: Values) -> None:
        is_free = not any(tensor is node.outputs[0] for tensor in constrained)
        if is_free and node.kind in ("ELEMENTWISE", "SELECT", "MATRIX_MULTIPLY"):
            operands = {tensor: _rounded(values[tensor]) for tensor in node.inputs}
            evaluate(node, operands)
            values[node.outputs[0]] = _rounded(operands[node.outputs[0]])
        else:
            evaluate(node, values)

    with old.playing(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trt.ILayer,
            "precision",
            property(None, lambda layer, _: constrained.append(layer.get_output(0))),
        )
        patch.setattr(Node, "evaluate", in_half)
        _checks_masks(module, mask)


def _rounded(value: torch.Tensor) -> torch.Tensor:
    return value.half().float() if value.dtype == torch.float32 else value
