"""Fills in the optional inputs that a request leaves out."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

from typing import Any

import torch

from .errors import InvalidRequest


class Defaults:
    """The defaults of one model; `inputs` are those of plan.json's `serving`."""

    def __init__(self, inputs: list[dict[str, Any]]) -> None:
        self.inputs = inputs

    def fill(self, tensors: list[Any]) -> list[torch.Tensor]:
        """The tensors of a request, with the default for each None. Its named axes have the sizes
        that the other inputs give them.
        """
        present = [tensor for tensor in tensors if tensor is not None]
        if len(present) == len(tensors):
            return present
        sizes: dict[str, int] = {}
        for declared, tensor in zip(self.inputs, tensors):
            if tensor is not None:
                names_and_sizes = zip(declared["axes"], tensor.shape)
                sizes.update({name: size for name, size in names_and_sizes if name})
        return [
            self._filled(declared, sizes, present[0].device)
            if tensor is None
            else tensor
            for declared, tensor in zip(self.inputs, tensors)
        ]

    def _filled(
        self, declared: dict[str, Any], sizes: dict[str, int], device: torch.device
    ) -> torch.Tensor:
        shape = [
            sizes[name] if name else size
            for name, size in zip(declared["axes"], declared["shape"])
        ]
        dtype = getattr(torch, declared["dtype"])
        value = torch.tensor(declared["default"], dtype=dtype, device=device)
        return value.expand(shape).contiguous()


def is_missing(tensor: Any, declared: dict[str, Any]) -> bool:
    """Whether a request leaves out an optional input. Raises InvalidRequest for a required one."""
    if tensor is None and "default" not in declared:
        raise InvalidRequest(f"input {declared['name']!r} is missing")
    return tensor is None
