"""Lists whose length only the engine knows, against the scripted module.

Tolerance: some steps of a cell, each off by about 1e-7 because of other orders of summation.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
TIMES: dict[str, Any] = {
    "dynamic": {0: {0: "t", 1: "n"}},
    "spans": {"t": (1, 5, 100), "n": (1, 2, 4)},
}
MORE = [(torch.randn(1, 1, 3),), (torch.randn(9, 4, 3),)]


class Recurrent(nn.Module):
    """A handwritten cell, forward and backward in time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, k = torch.zeros(x.size(1), 4), torch.zeros(x.size(1), 4)
        forwards, backwards = [], []
        for i in range(x.size(0)):
            h = self.cell(x[i], h)
            forwards.append(h)
            k = self.cell(x[-1 - i], k)
            backwards.append(k)
        return torch.stack(forwards), torch.stack(backwards, dim=1)


class Joined(nn.Module):
    """Along an axis that the parts have, after the first elements of the list."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts, wide = [x[0], x[0] * 2], [x[0][:, :1]]
        for row in range(x.size(0)):
            parts.append(x[row].cumsum(1))
            wide += [x[row] + 1]
        return torch.cat(parts), torch.cat(wide, -1)


class ListReads(nn.Module):
    """Other reads of a list: its elements and its length."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows: list[Tensor] = []
        for row in range(x.size(0)):
            rows.append(x[row] * row)
        return rows[-1], rows[0], torch.zeros(1) + len(rows)


class Numbers(nn.Module):
    """Tensors without axes, and bools."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        sums, signs = [], []
        for row in range(x.size(0)):
            sums.append(x[row].sum())
            signs.append(x[row] > 0)
        return torch.stack(sums), torch.stack(signs, -1)


class Reversed(nn.Module):
    """As PyTorch's own scripted layers run backward in time (fastrnns/custom_lstms.py): both lists
    are reversed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inputs = x.unbind(0)[::-1]
        h = torch.zeros(x.size(1), 4)
        outputs: list[Tensor] = []
        for i in range(len(inputs)):
            h = self.cell(inputs[i], h)
            outputs += [h]
        return torch.stack(outputs[::-1]), h


class Turned(nn.Module):
    """The ways to build a list in reverse in Python."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        front: list[Tensor] = []
        back: list[Tensor] = []
        for row in x.unbind(0):
            front.insert(0, row.cumsum(-1))
            back.append(row * 2)
        back.reverse()
        down: list[Tensor] = []
        for at in range(x.size(0) - 1, -1, -1):
            down.append(x[at] - 1)
        return torch.stack(front), torch.cat(back), torch.stack(down, 1)


class Parts(nn.Module):
    """Of a list that a loop builds, and of the slices of an axis."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows: list[Tensor] = []
        for row in range(x.size(0)):
            rows.append(x[row])
        columns = x.unbind(1)
        return (
            torch.stack(rows[::2]),
            torch.stack(columns[:1], 1),
            columns[0] * len(columns),
            torch.cat(columns, -1),
        )


class Lengthened(nn.Module):
    """By torch.cat in the loop, from an empty and from a filled tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.zeros(x.size(1), 4)
        steps, wide, flat = torch.zeros(x.size(1), 0, 4), x[0], torch.zeros(0)
        for t in range(x.size(0)):
            h = self.cell(x[t], h)
            steps = torch.cat([steps, h.unsqueeze(1)], 1)
            wide = torch.cat([wide, x[t], h], -1)
            flat = torch.cat((flat, h.sum(1)))
        return steps, wide, flat


class LastElements(nn.Module):
    """Each iteration reads the elements appended by the last ones, by indices from either end."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sums, indexed = [x[0]], [x[0] * 2]
        pairs, totals = [x[0], x[0] + 1, x[0] - 1], [x.sum(0)]
        for row in range(x.size(0)):
            sums.append(sums[-1] * 0.5 + x[row])
            indexed.append(indexed[row] * 0.5 + x[row] + indexed[0])
            pairs.append(pairs[-1] - pairs[-3] * 0.5 + x[row])
            totals += [x[row] + totals[-1]]
        return (
            torch.stack(sums, 1),
            torch.stack(indexed),
            torch.cat(pairs, -1),
            torch.stack(totals),
        )


class ReadsAfterAppending(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, y = [x[0]], x[0]
        for row in range(x.size(0)):
            rows.append(x[row] + 1)
            y = y * 0.5 + rows[-1] * rows[-2]
        return torch.stack(rows), y


class Branched(nn.Module):
    """Only some iterations read the list."""

    def forward(self, x: Tensor) -> Tensor:
        rows = [x[0]]
        for row in range(x.size(0)):
            y = x[row]
            if row > 1:
                y = y + rows[-1]
            rows.append(y)
        return torch.stack(rows)


class Viterbi(nn.Module):
    """The decoder of a conditional random field: back from the last tag, and then reversed."""

    def __init__(self) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(3, 3), requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        score, history = x[0], [torch.zeros_like(x[0], dtype=torch.int64)]
        for row in range(1, x.size(0)):
            options = score.unsqueeze(2) + self.transitions + x[row].unsqueeze(1)
            score, best = options.max(1)
            history.append(best)
        tag = score.argmax(1)
        path, inserted = [tag], [tag]
        for back in range(len(history) - 1):
            best = history[len(history) - 1 - back]
            tag = best.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
            inserted.insert(0, tag)
        path.reverse()
        return torch.stack(path), torch.stack(inserted, 1)


class Filled(nn.Module):
    """Reads of a list that had elements before the loop."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = [x[0] - 1, x[0] + 1]
        for row in range(x.size(0)):
            rows.append(x[row] * 2)
        total = x[0]
        for row in range(len(rows)):
            total = total * 0.5 + rows[row]
        parts = torch.stack(rows[1::2]), torch.stack(rows[::-1])
        return rows[-1] - rows[1], total, *parts


class ByIteration(nn.Module):
    """A list of tensors, and one of constants, by an index that changes in each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.tensor([1.0, -2.0, 3.0]))
        self.register_buffer("second", torch.tensor([0.5, 0.25, -1.0]))

    def forward(self, x: Tensor) -> Tensor:
        weights, layers, y = [self.first, self.second], [x[0], x[0] + 1, x[-1]], x[0]
        for row in range(x.size(0)):
            y = y * weights[row % 2] * 0.5 + layers[row % 3] - layers[-1 - row % 2]
        return y


@pytest.mark.parametrize(
    "module",
    [
        Viterbi(),
        Filled(),
        ByIteration(),
        Recurrent(),
        Joined(),
        ListReads(),
        Numbers(),
        Reversed(),
        Turned(),
        Parts(),
        Lengthened(),
        LastElements(),
        ReadsAfterAppending(),
        Branched(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_tensors_appended_in_a_loop(module: nn.Module) -> None:
    check(module, torch.randn(5, 2, 3), **TIMES, more=MORE, **CLOSE)


def test_loop_beyond_unrolling_limit() -> None:
    check(Recurrent(), torch.randn(100, 2, 3), **CLOSE, compile=False)


class Outdated(nn.Module):
    """The element read is farther from the end in each iteration."""

    def forward(self, x: Tensor) -> Tensor:
        rows = [x[0], x[0]]
        for row in range(x.size(0)):
            rows.append(rows[row // 2] + x[row])
        return torch.stack(rows)


class EmptyBefore(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for row in range(x.size(0)):
            if row > 0:
                rows.append(rows[-1] + x[row])
            else:
                rows.append(x[row])
        return torch.stack(rows)


class Several(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for row in range(x.size(0)):
            rows += [x[row], x[row] * 2]
        return torch.stack(rows)


class Ended(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        while bool(x.abs().max() > 1):
            x = x * 0.5
            rows.append(x)
        return torch.stack(rows)


class Sizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second = x.unbind(0)
        return first + second


class OtherSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = [x[0, :, :1]]
        for row in range(x.size(0)):
            rows.insert(0, x[row])
        return torch.cat(rows, -1)


class OtherSizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        layers, y = [x[0], x[0, :, :1]], x[0]
        for row in range(x.size(0)):
            y = y + layers[row % 2]
        return y


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Outdated(), "is not one of the last that the list had before the loop"),
        (EmptyBefore(), "append one tensor per iteration, read the last elements"),
        (Ended(), "append one tensor per iteration, .* and not end early"),
        (Several(), "must append exactly one tensor per iteration"),
        (Sizes(), "reads a list whose length is known only at run time"),
        (OtherSize(), "its tensors may have different dtypes or sizes"),
        (OtherSizes(), "its tensors may have different dtypes or sizes"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_unsupported_lists_are_refused(module: nn.Module, reason: str) -> None:
    spec = builder.TensorSpec(
        "float32", ("t", "n", 3), {"t": (1, 5, 9), "n": (1, 2, 4)}
    )
    with pytest.raises(UnsupportedOperators, match=reason):
        builder.convert(torch.jit.script(module), [spec])


class KeyOfData(nn.Module):
    """Two entries, or one if the sum is 3."""

    def forward(self, x: Tensor) -> Tensor:
        entries: dict[int, Tensor] = {int(x.sum()): x, 3: x * 2}
        return torch.stack(list(entries.values())).sum(0)


class KeyOfSize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        entries = {x.size(0): x, 3: x * 2}
        return x * len(entries)


class KeyOfTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(list({x: x, x + 1: x * 2}.values()))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (KeyOfData, "a key of a dictionary must be known at build time"),
        (
            KeyOfSize,
            "a key of a dictionary must be known at build time but depends on n",
        ),
        (KeyOfTensor, "a dictionary has tensors as keys"),
    ],
)
def test_possibly_equal_keys_are_refused_with_source_line(
    module: Any, reason: str
) -> None:
    spec = builder.TensorSpec("float32", ("n", 2), dims={"n": (1, 2, 4)})
    with pytest.raises(UnsupportedOperators, match=reason) as error:
        builder.convert(torch.jit.script(module()), [spec])
    assert "test_lists.py:" in str(error.value)
