"""The tensors of a nested result have lowering's names, and the result is rebuilt from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.jit import annotations

from builder.errors import ModelFileError
from builder.parity.structure import (
    ListTooLong,
    check_lengths,
    leaves,
    length_of,
    rebuilt,
)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def _pair(x: Tensor) -> Pair:
    return Pair(x, x)


PAIR = torch.jit.script(_pair).schema.returns[0].type
A, B, C = (torch.tensor([float(number)]) for number in range(3))


@pytest.mark.parametrize(
    ("kind", "value", "names"),
    [
        (Tensor, A, ["output"]),
        (int, 3, ["output"]),
        (float, 0.5, ["output"]),
        (bool, True, ["output"]),
        (tuple[Tensor, int], (A, 3), ["output_0", "output_1"]),
        (Pair, Pair(A, B), ["left", "right"]),
        (list[Tensor], [A, B], ["output_0", "output_1"]),
        (list[Tensor], [], []),
        (dict[str, Tensor], {"a": A, "b": B}, ["a", "b"]),
        (dict[int, Tensor], {0: A, 2: B}, ["output_0", "output_2"]),
        (dict[str, tuple[Tensor, Tensor]], None, []),
        (Tensor | None, None, []),
        (list[Tensor] | None, None, []),
        (
            tuple[Tensor, dict[str, Tensor], dict[int, Tensor]],
            (A, {"a": B}, {1: C}),
            ["output_0", "output_1.a", "output_2_1"],
        ),
        (Tensor | None, A, ["output"]),
        (tuple[Tensor, Tensor | None], (A, None), ["output_0"]),
    ],
)
def test_nested_value_round_trips(kind: Any, value: Any, names: list[str]) -> None:
    tensors = dict(leaves(value))
    assert list(tensors) == names
    type_of_kind = annotations.try_ann_to_type(kind, None) if kind is not Pair else PAIR
    again = rebuilt(type_of_kind, tensors)
    if value is None and type_of_kind.kind() == "DictType":
        value = {}
    assert _plain(again) == _plain(value)
    assert getattr(again, "_fields", None) == getattr(value, "_fields", None)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__ == "list", [_plain(item) for item in value]
    return type(value), value


def test_keys_that_are_no_indices_are_names() -> None:
    value = {-1: A, 2: B, "c": C}
    assert [name for name, _ in leaves(value)] == ["-1", "output_2", "c"]


def test_value_that_is_no_tensor_is_refused_by_its_type() -> None:
    with pytest.raises(ModelFileError, match="returns a str"):
        list(leaves("text"))


def test_length_of_a_list_counts_the_elements_with_tensors() -> None:
    names = ["boxes_0", "boxes_2.scores", "boxes_1_0", "boxes2_7", "other_9"]
    assert length_of(names, "boxes") == 3
    assert length_of(names, "missing") == 0
    tensors = dict.fromkeys(names, A)
    check_lengths(tensors, {"boxes": 3}, "p0-opt")
    with pytest.raises(ListTooLong, match="'boxes' has 3 elements"):
        check_lengths(tensors, {"boxes": 2}, "p0-opt")
