"""Finds the optimization profile for the shapes of a request, and the message if there is none."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

from typing import Any

import torch

from .errors import InvalidRequest
from .recent import Recent

SHAPES = 256
"""Number of sets of input shapes that are kept as valid: a lookup takes a tenth of the time of a
check.
"""


class Profiles:
    """The optimization profiles of one engine or model; `declared` are those of plan.json."""

    def __init__(self, declared: dict[str, Any]) -> None:
        self.declared = declared
        self.known = Recent(SHAPES)

    def check(self, tensors: list[torch.Tensor]) -> None:
        """Raise InvalidRequest for shapes that an engine would refuse, even if torch runs the
        model. The message names the axis and its range.
        """
        if self.declared["profiles"] and self.find(tensors) is None:
            raise InvalidRequest(outside(self.declared, tensors))

    def find(self, tensors: list[torch.Tensor]) -> Any:
        """The index of the profile that contains all shapes and has the nearest optimum, the
        tightest of several. None if no profile contains them.
        """
        shapes = tuple([tensor.shape for tensor in tensors])
        index = self.known.get(shapes)
        if index is None:
            index = _profile(self.declared, shapes)
            if index is not None:
                self.known.put(shapes, index)
        return index


def _profile(declared: dict[str, Any], shapes: tuple[tuple[int, ...], ...]) -> Any:
    shape_by_name = {
        tensor["name"]: shape for tensor, shape in zip(declared["inputs"], shapes)
    }
    fitting = [
        index
        for index, profile in enumerate(declared["profiles"])
        if all(_fits(profile[name], shape) for name, shape in shape_by_name.items())
    ]

    def order(index: int) -> tuple[int, int]:
        profile = declared["profiles"][index]
        return _distance(profile, shape_by_name), _width(profile)

    return min(fitting, key=order, default=None)


def _fits(span: dict[str, list[int]], shape: tuple[int, ...]) -> bool:
    return len(shape) == len(span["min"]) and all(
        least <= size <= most
        for least, size, most in zip(span["min"], shape, span["max"])
    )


def _distance(profile: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(
        abs(usual - size)
        for name, shape in shapes.items()
        for usual, size in zip(profile[name]["opt"], shape)
    )


def _width(profile: dict[str, Any]) -> int:
    """How many sizes the axes of a profile span: 0 if all shapes are static."""
    return sum(sum(span["max"]) - sum(span["min"]) for span in profile.values())


def outside(declared: dict[str, Any], tensors: list[torch.Tensor]) -> str:
    """The input's name and shape, and the shapes that the model was built for."""
    lines = []
    for declared_input, tensor in zip(declared["inputs"], tensors):
        name = declared_input["name"]
        shape = list(tensor.shape)
        spans = [profile[name] for profile in declared["profiles"]]
        if not any(_fits(span, tuple(shape)) for span in spans):
            allowed = " or ".join(f"{span['min']} to {span['max']}" for span in spans)
            lines.append(
                f"input {name!r} has shape {shape}, and the model was built for {allowed}"
            )
    together = "; ".join(
        f"{declared_input['name']!r} {list(tensor.shape)}"
        for declared_input, tensor in zip(declared["inputs"], tensors)
    )
    return (
        "; ".join(lines)
        or f"no single optimization profile of the model holds these shapes together: {together}"
    )
