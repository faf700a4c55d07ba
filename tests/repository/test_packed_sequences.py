"""Packed sequences with dependent rows are not batched, even if goldens do not show it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import builder
from builder.pipeline.batching_safety import decision_on_data


class Packed(nn.Module):
    def __init__(self, enforce_sorted: bool, total: bool) -> None:
        super().__init__()
        self.rnn, self.enforce_sorted, self.total = (
            nn.GRU(5, 6, batch_first=True),
            enforce_sorted,
            total,
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=self.enforce_sorted
        )
        packed, _ = self.rnn(packed)
        if self.total:
            return pad_packed_sequence(
                packed, batch_first=True, total_length=x.size(1)
            )[0]
        return pad_packed_sequence(packed, batch_first=True)[0]


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize(
    ("enforce_sorted", "total", "reason"),
    [
        (False, True, None),
        (True, True, "sorted by length"),
        (False, False, "longest row determines"),
    ],
)
def test_packed_rows_are_batched_only_if_independent(
    enforce_sorted: bool, total: bool, reason: str | None, trace: bool
) -> None:
    module = Packed(enforce_sorted, total).eval()
    sample = torch.randn(3, 4, 5), torch.tensor([4, 3, 1])
    script = (
        torch.jit.trace(module, sample, check_trace=False)
        if trace
        else torch.jit.script(module)
    )
    decision = decision_on_data(builder.lower(script).graph)
    assert (decision is None) == (reason is None)
    assert (reason or "") in (decision or "")
