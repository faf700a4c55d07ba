"""Inputs of goldens from data: rows in a seeded order, at any sizes of the dynamic axes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from builder.manifest import TensorSpec, shared_first_axis

Sets = Sequence[Sequence[torch.Tensor]]
"""Sets of tensors, each in the order of the model's inputs."""


class Rows:
    """The rows of `sets`, which are tensors of `specs`, in an order that `seed` determines.

    Without a shared batch axis, a set is one row. `count` is the number of rows, `used` how many of
    them were taken.
    """

    def __init__(self, specs: Sequence[TensorSpec], sets: Sets, seed: int) -> None:
        self.specs = specs
        self.batch = shared_first_axis(specs)
        rows = [row for tensors in sets for row in self._divided(tensors)]
        order = torch.randperm(
            len(rows), generator=torch.Generator().manual_seed(seed)
        ).tolist()
        self.count = len(rows)
        self.used = 0
        self._rows = itertools.cycle([rows[at] for at in order])

    def _divided(self, tensors: Sequence[torch.Tensor]) -> Sets:
        if self.batch is None:
            return [tensors]
        return list(zip(*(torch.split(tensor, 1) for tensor in tensors), strict=True))

    def take(self, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """The next rows by input name, at these axis sizes; after the last row the first again.
        Other axes than the batch are cut, or repeated. Empty without rows.
        """
        if not self.count:
            return {}
        number = max(sizes[self.batch], 1) if self.batch else 1
        rows = list(itertools.islice(self._rows, number))
        self.used += number
        taken = {}
        for at, spec in enumerate(self.specs):
            parts = [self._resized(row[at], spec, sizes) for row in rows]
            tensor = parts[0]
            if self.batch:
                tensor = torch.cat(parts)[: sizes[self.batch]]
            taken[str(spec.name)] = tensor
        return taken

    def _resized(
        self, tensor: torch.Tensor, spec: TensorSpec, sizes: Mapping[str, int]
    ) -> torch.Tensor:
        """The tensor of a row with its dynamic axes, except the batch, at these sizes."""
        for at, axis in enumerate(spec.shape):
            if isinstance(axis, str) and (at or axis != self.batch):
                index = torch.arange(sizes[axis]) % tensor.shape[at]
                tensor = tensor.index_select(at, index)
        return tensor
