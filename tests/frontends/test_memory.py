"""In-place writes of programs: a new value where nothing else reads the memory, else a write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.frontends import ExportedModule


class Block(nn.Module):
    """In-place writes to values that only the write reads, as in most programs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(True)
        )
        self.norm, self.drop = nn.BatchNorm2d(3), nn.Dropout(0.5, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layers(x))
        y += x
        mask = torch.zeros_like(x, dtype=torch.float32).masked_fill_(x > 0.5, 2.0)
        y = self.drop(nn.functional.relu_(y)) * mask
        return y[:, :, 0:].contiguous().view(y.shape[0], -1)


def test_write_without_other_readers_becomes_a_new_value() -> None:
    module, x = Block().eval(), torch.randn(2, 3, 4, 4)
    program = torch.export.export(
        module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    kinds = {node.kind() for node in ExportedModule(program).graph.nodes()}
    assert {"aten::relu", "aten::add", "aten::masked_fill", "aten::reshape"} <= kinds
    assert not kinds & {
        "aten::view",
        "aten::contiguous",
        "aten::dropout",
        "aten::slice",
    }
    (output,) = builder.reference.run(builder.convert(program), [x])
    torch.testing.assert_close(output, module(x))


def view_is_read(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    y.relu_()
    return row + y


def argument_is_read(x: Tensor) -> Tensor:
    return x.relu_() + x


def written_to_itself(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(y)
    return y


def copy_is_kept(x: Tensor) -> Tensor:
    y = x * 2
    before = y.clone()
    y[0].mul_(3)
    return before - y


def view_is_written(x: Tensor) -> Tensor:
    y = x * 2
    y.contiguous().view(-1)[:3].mul_(-1.0)
    return y


def dropout_is_its_input(x: Tensor) -> Tensor:
    y = x * 2
    z = nn.functional.dropout(y, training=False)
    z.mul_(x)
    return y + z


def slice_is_its_input(x: Tensor) -> Tensor:
    y = x * 2
    y[:].mul_(x)
    return y


def of_another_dtype(x: Tensor) -> Tensor:
    y = torch.zeros(2, 3)
    y += x.to(torch.float16)
    return y


def of_a_wrapped_number(x: Tensor) -> Tensor:
    y = (x > 0).to(torch.int32) + 1
    y *= torch.ones(2, 3, dtype=torch.int64)
    return y


def in_a_branch(x: Tensor) -> Tensor:
    def yes(x: Tensor) -> Tensor:
        return (x * 2).relu_()

    def no(x: Tensor) -> Tensor:
        y = x + 1
        y[0].relu_()
        return y.clone()

    return torch.cond(x.sum() > 0, yes, no, (x,))  # type: ignore[no-any-return]


CASES = [
    view_is_read,
    argument_is_read,
    written_to_itself,
    copy_is_kept,
    view_is_written,
    dropout_is_its_input,
    slice_is_its_input,
    of_another_dtype,
    of_a_wrapped_number,
    in_a_branch,
]


class Written(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_writes_with_other_readers_keep_results(
    function: Callable[[Tensor], Tensor],
) -> None:
    x = torch.tensor([[-1.5, 2.0, 0.5], [3.0, -4.0, 1.0]])
    for sample in (x, -x):
        program = torch.export.export(Written(function), (x.clone(),))
        (output,) = builder.reference.run(builder.convert(program), [sample])
        expected = function(sample.clone())
        assert output.dtype is expected.dtype
        torch.testing.assert_close(output, expected)
