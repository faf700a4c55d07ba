"""Random inputs for a model: the shapes of a profile, and suitable values for each dtype.

Floats are standard normal, or their magnitudes if the module does not accept those. Integers are
mostly ids, whose range is not in the file, so ranges are tried from wide to narrow. If the module
accepts none of them, the lengths of another input's rows are tried, then ranges from 1. bool is
mostly a mask. So both polarities are tried, each with at least one True.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from builder.manifest import ModelSpec, Profile, TensorSpec

ID_LIMITS = (1000, 256, 64, 16, 4, 2, 1)
"""Exclusive upper bounds for int32 and int64 inputs, tried in this order."""
TRUE_SHARES = (0.25, 0.9)
"""The share of True in a bool input: a padding mask with few, a validity mask with many."""
_FULL_RANGE = {torch.uint8: (0, 256), torch.int8: (-128, 128)}


@dataclass(frozen=True)
class Style:
    """The distribution of the values: ids below `ids`, and a share `true` of True.

    If `lengths` names an axis, integers of rank 1 are lengths up to the size of that axis, the
    largest first. If `positive`, floats are magnitudes. Ids are at least `least`. If `offsets`,
    integers of rank 1 ascend from zero.
    """

    ids: int = ID_LIMITS[0]
    least: int = 0
    true: float = TRUE_SHARES[0]
    lengths: int | str | None = None
    positive: bool = False
    offsets: bool = False


def styles(spec: ModelSpec, *, offsets: bool = False) -> Iterator[Style]:
    """All styles that differ for this model's inputs, widest first. `offsets` is for a module with
    bags of embeddings, whose output is undefined if offsets are not sorted.
    """
    dtypes = {tensor.dtype for tensor in spec.inputs}
    ids = ID_LIMITS if dtypes & {"int32", "int64"} else ID_LIMITS[:1]
    shares = TRUE_SHARES if "bool" in dtypes else TRUE_SHARES[:1]
    signs = (False, True) if any("float" in dtype for dtype in dtypes) else (False,)
    least = (0, 1) if len(ids) > 1 else (0,)  # a count or a divisor is not zero
    axes = (None, *_measured(spec))
    for low, positive, axis in itertools.product(least, signs, axes):
        for limit, share in itertools.product(ids, shares):
            if limit > low:
                yield Style(limit, low, share, axis, positive, offsets)


def _measured(spec: ModelSpec) -> list[int | str]:
    """The axes whose lengths an integer input of rank 1 may hold: all except its own, dynamic ones
    first.
    """
    rows = {tensor.shape[0] for tensor in spec.inputs if _may_be_lengths(tensor)}
    if not rows:
        return []
    all_axes = dict.fromkeys(axis for tensor in spec.inputs for axis in tensor.shape)
    beside = [axis for axis in all_axes if axis not in rows]
    return sorted(beside, key=lambda axis: isinstance(axis, int))


def _may_be_lengths(tensor: TensorSpec) -> bool:
    return tensor.dtype in ("int32", "int64") and len(tensor.shape) == 1


def draw(
    tensors: Sequence[TensorSpec], sizes: Mapping[str, int], style: Style, seed: int
) -> list[torch.Tensor]:
    """One CPU tensor for each spec at these axis sizes. The same seed returns the same values."""
    generator = torch.Generator().manual_seed(seed)
    longest = (
        sizes.get(style.lengths) if isinstance(style.lengths, str) else style.lengths
    )
    drawn = []
    for tensor in tensors:
        shape = tensor.sized(sizes)
        if longest and _may_be_lengths(tensor):
            values = _lengths(tensor, shape, longest, generator)
        else:
            values = _draw(tensor, shape, style, generator)
        if style.offsets and _may_be_lengths(tensor):
            values = values.sort().values
            values[:1] = 0
        drawn.append(values)
    return drawn


def _lengths(
    tensor: TensorSpec, shape: tuple[int, ...], longest: int, generator: torch.Generator
) -> torch.Tensor:
    drawn = torch.randint(
        1, longest + 1, shape, generator=generator, dtype=getattr(torch, tensor.dtype)
    )
    return drawn.sort(descending=True).values


def _draw(
    tensor: TensorSpec, shape: tuple[int, ...], style: Style, generator: torch.Generator
) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if dtype == torch.bool:
        return _mask(shape, style.true, generator)
    if dtype.is_floating_point:
        drawn = torch.randn(shape, generator=generator)
        return (drawn.abs() if style.positive else drawn).to(dtype)
    low, high = _FULL_RANGE.get(dtype, (style.least, style.ids))
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def _mask(
    shape: tuple[int, ...], share: float, generator: torch.Generator
) -> torch.Tensor:
    """A mask with one True and, if possible, one False in every row along the last axis, because
    uniform rows are often invalid.
    """
    mask = torch.rand(shape, generator=generator) < share
    if mask.dim() and mask.shape[-1]:
        if mask.shape[-1] > 1 or share < 0.5:
            mask[..., 0] = False
        if mask.shape[-1] > 1 or share >= 0.5:
            mask[..., -1] = True
    return mask


def sizes_of(profile: Profile) -> dict[str, dict[str, int]]:
    """The axis sizes of the golden kinds min, opt, max and odd of one profile. Kinds that repeat an
    earlier one are omitted.
    """
    kinds = {
        "opt": {axis: span[1] for axis, span in profile.items()},
        "min": {axis: span[0] for axis, span in profile.items()},
        "max": {axis: span[2] for axis, span in profile.items()},
        "odd": {axis: odd(span) for axis, span in profile.items()},
    }
    unique: dict[str, dict[str, int]] = {}
    for kind, sizes in kinds.items():
        if sizes not in unique.values():
            unique[kind] = sizes
    return unique


def odd(span: tuple[int, int, int], divisor: int = 1) -> int:
    """A size other than min, opt and max if possible, preferably odd, nearest to the middle. It is
    a multiple of `divisor`, as min and max are.
    """
    low, _, high = span
    middle = (low + high) // 2 // divisor * divisor
    near = range(middle - 2 * divisor, middle + 3 * divisor, divisor)
    few = high - low < 4096 * divisor
    candidates = near
    if few:
        candidates = range(low, high + 1, divisor)
    return min(candidates, key=lambda n: (n in span, n % 2 == 0, abs(n - middle)))


def variations(
    tensors: Sequence[torch.Tensor], constants: Iterable[float], largest: float
) -> Iterator[list[torch.Tensor]]:
    """Other values of the same shapes and dtypes, from mild to extreme, to reach outcomes that
    standard normal values do not.

    They have other signs, scales up to `largest` and offsets, and values around each of
    `constants`. All tensors change at once, or one at a time if there are several.
    """
    for change in (
        *_mild(),
        *_around_constants(constants, largest),
        *_extreme(largest),
    ):
        yield [change(tensor) for tensor in tensors]
        if len(tensors) > 1:
            for index, tensor in enumerate(tensors):
                changed = list(tensors)
                changed[index] = change(tensor)
                yield changed


Change = Callable[[torch.Tensor], torch.Tensor]


def _mild() -> Iterator[Change]:
    yield lambda t: t if t.dtype == torch.bool else t.abs()
    yield lambda t: t.abs().neg() if t.is_floating_point() else torch.zeros_like(t)
    yield lambda t: ~t if t.dtype == torch.bool else torch.zeros_like(t)
    yield lambda t: torch.ones_like(t)


def _around_constants(constants: Iterable[float], largest: float) -> Iterator[Change]:
    """Values above, below and equal to each constant; floats only up to `largest`."""
    for constant in sorted(set(constants), key=abs):
        yield partial(_shifted, by=constant + 1, largest=largest)
        yield partial(_shifted, by=constant - 1, largest=largest)
        yield partial(_filled, value=constant, largest=largest)


def _extreme(largest: float) -> Iterator[Change]:
    size = 4.0
    while size <= largest:
        yield partial(_scaled, by=size)
        yield partial(_shifted, by=size)
        yield partial(_shifted, by=-size)
        size *= 4


def _scaled(tensor: torch.Tensor, by: float) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor * by
    return tensor


def _shifted(
    tensor: torch.Tensor, by: float, largest: float = math.inf
) -> torch.Tensor:
    """Floats around `by`, a tenth of a standard deviation wide; integers equal to it, from 0 on."""
    if tensor.is_floating_point():
        if abs(by) <= largest:
            return tensor * 0.1 + by
        return tensor
    if tensor.dtype == torch.bool or not 0 <= by <= torch.iinfo(tensor.dtype).max:
        return tensor
    return torch.full_like(tensor, int(by))


def _filled(tensor: torch.Tensor, value: float, largest: float) -> torch.Tensor:
    if tensor.is_floating_point():
        if abs(value) <= largest:
            return torch.full_like(tensor, value)
        return tensor
    return _shifted(tensor, value)
