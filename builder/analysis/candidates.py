"""The calls to try for an operator of whose arguments not everything is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from builder.analysis.arguments import Constant, OneOf, Sizes, Tensor

# Different ones first, so that a disagreement shows early.
_DTYPES = (
    torch.float32,
    torch.int64,
    torch.bool,
    torch.float16,
    torch.complex64,
    torch.uint8,
    torch.float64,
    torch.int32,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.complex128,
)
_FEW_DTYPES = _DTYPES[:6]
_RANKS = (2, 4, 3, 1, 0, 5, 6)
_FEW_RANKS = (2, 4, 3, 1, 0)
SIZES = (2, 1, 3)
"""The sizes of examples. The later ones are for operators that do not accept the first, such as
`cross`, whose axis has size 3.
"""
_LIMIT = 1500
_LENGTHS = (1, 2, 3, 4)

Candidate = tuple[Any, bool]
"""An argument, and whether it has the largest rank that is tried for a tensor of unknown rank."""


class Ranges(NamedTuple):
    """What is tried for unknown dtypes and ranks. The product of all is tried."""

    dtypes: tuple[torch.dtype, ...]
    ranks: tuple[int, ...]
    are_ranks_known: bool

    @property
    def has_all_ranks(self) -> bool:
        """Whether a rank may be concluded. The dtype depends only on which tensors have rank 0."""
        return self.ranks is _RANKS


def ranges(arguments: tuple[Any, ...]) -> Ranges:
    """The dtypes and ranks to try: fewer if more tensors are unknown."""
    tensors = _flat(arguments)
    unknown_dtypes = sum(tensor.dtype is None for tensor in tensors)
    unknown_ranks = sum(tensor.rank is None for tensor in tensors)
    dtypes: tuple[torch.dtype, ...] = _DTYPES
    if unknown_dtypes >= 2:
        dtypes = _FEW_DTYPES
    ranks: tuple[int, ...] = _RANKS
    if unknown_ranks > 2 or (unknown_ranks > 0 and unknown_dtypes + unknown_ranks > 3):
        ranks = _FEW_RANKS
    return Ranges(dtypes, ranks, are_ranks_known=unknown_ranks == 0)


def has_unknown_dtype(arguments: tuple[Any, ...]) -> bool:
    """Whether the dtype of a tensor in the arguments is unknown."""
    return any(tensor.dtype is None for tensor in _flat(arguments))


def _flat(items: Iterable[Any]) -> list[Tensor]:
    """The tensors of the arguments, including those of lists."""
    tensors = []
    for item in items:
        if isinstance(item, Tensor):
            tensors.append(item)
        elif type(item) is tuple:
            tensors += _flat(item)
    return tensors


def calls(
    arguments: tuple[Any, ...], trials: Ranges, size: int
) -> Iterator[tuple[list[Any], bool]]:
    """The arguments of each call, and whether one of them has the largest rank that is tried.
    Raises LookupError if there are too many.
    """
    tensors = sum(isinstance(item, Tensor) for item in arguments)
    options = [
        _options(argument, trials, size, numbers=tensors > 1) for argument in arguments
    ]
    for chosen in _product(options):
        values = [value for value, _ in chosen]
        if tensors < 2 or any(isinstance(value, torch.Tensor) for value in values):
            yield values, any(is_largest for _, is_largest in chosen)


def _product(options: list[list[Candidate]]) -> Iterator[tuple[Candidate, ...]]:
    if math.prod(map(len, options)) > _LIMIT:
        raise LookupError
    return itertools.product(*options)


def _options(item: Any, trials: Ranges, size: int, *, numbers: bool) -> list[Candidate]:
    """The values to try for one argument."""
    if isinstance(item, Constant):
        return [(item.value, False)]
    if isinstance(item, Tensor):
        return _tensors(item, trials, size, numbers=numbers)
    if isinstance(item, OneOf):
        return [(value, False) for value in item.values]
    if isinstance(item, Sizes):
        return [(sizes, False) for sizes in _sizes(item.length, size)]
    inner = [_options(element, trials, size, numbers=False) for element in item]
    lists: list[Candidate] = []
    for chosen in _product(inner):
        values = [value for value, _ in chosen]
        lists.append((values, any(is_largest for _, is_largest in chosen)))
    return lists


def _tensors(
    item: Tensor, trials: Ranges, size: int, *, numbers: bool
) -> list[Candidate]:
    """Examples of a tensor. With `numbers`, one of rank 0 is also tried as a number: it has a lower
    priority in type promotion, and torch's executor treats some constants as numbers (see
    `builder.lowering.executor`).
    """
    examples: list[Candidate] = []
    dtypes = trials.dtypes if item.dtype is None else (item.dtype,)
    ranks = trials.ranks if item.rank is None else (item.rank,)
    for dtype, rank in itertools.product(dtypes, ranks):
        is_largest = item.rank is None and rank == max(ranks)
        examples.append((_example(dtype, rank, size), is_largest))
        if rank == 0 and numbers:
            examples.append((_number(dtype), False))
    return examples


@lru_cache(maxsize=512)
def _example(dtype: torch.dtype, rank: int, size: int) -> torch.Tensor:
    return torch.empty([size] * rank, dtype=dtype, device="meta")


def _number(dtype: torch.dtype) -> bool | int | float | complex:
    if dtype.is_complex:
        return 1j
    if dtype.is_floating_point:
        return 1.0
    return True if dtype == torch.bool else 1


def _sizes(length: int | None, size: int) -> list[list[int]]:
    """Lists of sizes: those of an example, and one that fits every number of elements."""
    lengths = _LENGTHS if length is None else (length,)
    equal = [[size] * count for count in lengths]
    inferred = [[-1, *[1] * (count - 1)] for count in lengths if count]
    return equal + inferred
