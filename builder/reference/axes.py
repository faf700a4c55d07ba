"""Vectors along one axis of a tensor."""

from __future__ import annotations

from torch import Tensor


def along_axis(vector: Tensor, axis: int, rank: int) -> Tensor:
    """The vector with `rank` axes, all of size 1 except `axis`."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)
