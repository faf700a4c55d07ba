"""The values of generated inputs: their order, and the changes that reach other outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builder.manifest import ModelSpec, TensorSpec
from builder.parity.inputs import (
    ID_LIMITS,
    Style,
    draw,
    odd,
    sizes_of,
    styles,
    variations,
)


def _spec(dtype: str) -> ModelSpec:
    return ModelSpec("net", Path("net.pt"), (TensorSpec(dtype, (2,)),))


def test_styles_begin_with_the_defaults_and_vary_only_what_the_inputs_have() -> None:
    assert list(styles(_spec("uint8"))) == [Style()]
    assert list(styles(_spec("float32"))) == [Style(), Style(positive=True)]
    assert [style.true for style in styles(_spec("bool"))] == [0.25, 0.9]
    ids = list(styles(_spec("int64")))
    assert [style.ids for style in ids[:7]] == list(ID_LIMITS)
    assert not any(style.positive for style in ids)
    assert {style.least for style in ids} == {0, 1}
    assert all(style.ids > style.least for style in ids)


def test_drawn_ids_are_below_the_limit_and_offsets_ascend_from_zero() -> None:
    tensors = [TensorSpec("int64", (50,))]
    (ids,) = draw(tensors, {}, Style(ids=3, least=1), 0)
    assert set(ids.tolist()) == {1, 2}
    (offsets,) = draw(tensors, {}, Style(ids=9, least=1, offsets=True), 0)
    assert offsets[0] == 0 < offsets[1] and offsets.tolist() == sorted(offsets.tolist())
    (lengths,) = draw(tensors, {"t": 4}, Style(lengths="t"), 0)
    assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)
    assert set(lengths.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("length", [1, 2, 5])
def test_each_row_of_a_mask_has_both_values_if_it_can(length: int) -> None:
    for share in (0.25, 0.9):
        (mask,) = draw([TensorSpec("bool", (8, length))], {}, Style(true=share), 0)
        if length > 1:
            assert not mask[:, 0].any() and mask[:, -1].all()
        else:
            assert bool(mask.all()) == bool(mask.any()) == (share >= 0.5)


def test_mask_without_elements_or_axes_is_drawn() -> None:
    for shape in ((), (2, 0)):
        (mask,) = draw([TensorSpec("bool", shape)], {}, Style(), 0)
        assert mask.shape == shape


def test_sizes_are_those_of_the_profile_once_each() -> None:
    assert sizes_of({"n": (1, 4, 8), "m": (2, 2, 9)}) == {
        "opt": {"n": 4, "m": 2},
        "min": {"n": 1, "m": 2},
        "max": {"n": 8, "m": 9},
        "odd": {"n": 3, "m": 5},
    }
    assert list(sizes_of({"n": (3, 3, 3)})) == ["opt"]


def test_odd_size_differs_from_the_profile_and_keeps_the_divisor() -> None:
    assert odd((1, 4, 8)) == 3
    assert odd((2, 2, 2)) == 2
    assert odd((8, 16, 32), 8) == 24
    assert odd((0, 1, 1 << 20)) == (1 << 19) - 1


def test_variations_change_each_tensor_and_stay_within_their_dtypes() -> None:
    x, n, mask = torch.tensor([-2.0, 3.0]), torch.tensor([1, 2]), torch.tensor([True])
    changed = list(variations([x, n, mask], [7.0, 300.0], 16.0))
    floats = {tuple(round(v, 1) for v in one.tolist()) for one, _, _ in changed}
    assert {(2.0, 3.0), (-2.0, -3.0), (0.0, 0.0), (1.0, 1.0)} <= floats
    # around 7 and, beyond `largest`, not around 300; scales of 4 and 16
    assert {(7.8, 8.3), (5.8, 6.3), (7.0, 7.0), (-8.0, 12.0), (-32.0, 48.0)} <= floats
    assert {(3.8, 4.3), (-4.2, -3.7), (15.8, 16.3), (-16.2, -15.7)} <= floats
    assert max(abs(v) for pair in floats for v in pair) < 49
    whole = {tuple(one.tolist()) for _, one, _ in changed}
    assert {(8, 8), (6, 6), (7, 7), (300, 300), (4, 4), (16, 16)} <= whole
    assert min(v for pair in whole for v in pair) == 0
    assert {tuple(one.tolist()) for _, _, one in changed} == {(True,), (False,)}


def test_variation_that_a_dtype_cannot_hold_leaves_the_integers() -> None:
    numbers = torch.tensor([5], dtype=torch.uint8)
    values = {int(one) for (one,) in variations([numbers], [255.0, 256.0], 1.0)}
    assert values == {5, 0, 1, 254, 255}
