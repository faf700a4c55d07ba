"""Meta kernels give dtypes and ranks. They are called only where a call cannot crash."""

from __future__ import annotations

import pytest
import torch

from builder.analysis import kernels

FLOAT = torch.float32


def facts(name: str, *described: object) -> object:
    return kernels._evaluated(name, "default", described)


def tensor(rank: int, dtype: torch.dtype = FLOAT) -> tuple[object, ...]:
    return torch.dtype, dtype, rank


def test_a_meta_kernel_gives_dtype_and_rank() -> None:
    assert facts("matmul", tensor(3), tensor(2)) == [(FLOAT, 3)]
    assert facts("topk", tensor(2), 1, -1, True, True) == [(FLOAT, 2), (torch.int64, 2)]
    assert facts("argmax", tensor(3), 1, False) == [(torch.int64, 2)]


def test_a_call_that_torch_refuses_gives_no_facts() -> None:
    assert facts("bmm", tensor(2), tensor(3)) is None


@pytest.mark.parametrize("weights", [4, 8])
def test_kernels_that_read_beyond_a_list_are_not_called(weights: int) -> None:
    """Each would be a segmentation fault: the kernel splits gates that its weights do not have."""
    state = (tensor(3), tensor(3))
    layers = tuple(tensor(2 if at % 4 < 2 else 1) for at in range(weights))
    call = (tensor(3), state, layers, True, weights // 4, 0.0, False, False, False)
    assert kernels._evaluated("lstm", "input", call) is None


def test_unchecked_enumerations_are_not_passed_on() -> None:
    """77 is not a dtype. torch would read a table at that index."""
    assert kernels._evaluated("to", "dtype", (tensor(2), 77, False, False, None)) is None
    assert facts("sum", tensor(2), 77) is None
    assert facts("sum", tensor(2), None) == [(FLOAT, 0)]
