"""torch.einsum: a matrix product if the equation is one, else an IEinsumLayer for each pair of
operands.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.linear import matmul
from builder.conversion.converters.shape import permuted
from builder.conversion.layers import choose, combine, reduce
from builder.conversion.registry import converter
from builder.engine import ITensor


@dataclass(frozen=True)
class Equation:
    """The subscripts of each operand and of the result, one letter for each axis, without ellipsis
    and implicit output.
    """

    terms: list[str]
    result: str


def parsed(equation: str, ranks: Sequence[int]) -> Equation:
    """The equation with expanded ellipses and an explicit right side. Source: torch.einsum."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    used = {letter for letter in equation if letter.isalpha()}
    spare = [letter for letter in string.ascii_letters if letter not in used]
    pairs = list(zip(terms, ranks, strict=True))
    hidden = [rank - len(_letters(term)) for term, rank in pairs if "..." in term]
    dots = "".join(spare[: max(hidden, default=0)])
    full = [_expanded(term, rank, dots) for term, rank in pairs]
    if not arrow:
        letters = "".join(map(_letters, terms))
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        output = "..." + "".join(once)
    return Equation(full, output.replace("...", dots))


def _letters(term: str) -> str:
    return term.replace("...", "")


def _expanded(term: str, rank: int, dots: str) -> str:
    if "..." not in term:
        return term
    count = rank - len(_letters(term))
    return term.replace("...", dots[len(dots) - count :])


@converter("aten::einsum")
def einsum(ctx: ConversionContext, equation: str, tensors: list[ITensor]) -> ITensor:
    """Products summed over the axes that are not in the result; the path changes only the order"""
    form = parsed(equation, [ctx.rank(tensor) for tensor in tensors])
    operands = [
        _diagonal(ctx, tensor, term)
        for tensor, term in zip(tensors, form.terms, strict=True)
    ]
    lengths = _lengths(operands)
    operands = [_without_units(ctx, tensor, term, lengths) for tensor, term in operands]
    missing = [
        letter
        for letter in form.result
        if not any(letter in term for _, term in operands)
    ]
    result = "".join(letter for letter in form.result if letter not in missing)
    output = _contract(ctx, operands, result)
    return ctx.unsqueeze(output, [form.result.index(letter) for letter in missing])


Operand = tuple[ITensor, str]


def _diagonal(ctx: ConversionContext, x: ITensor, term: str) -> Operand:
    """A letter that occurs twice in one term selects a diagonal: all other elements are set to 0
    and summed.
    """
    while len(set(term)) < len(term):
        repeated = [i for i, letter in enumerate(term) if term.index(letter) != i]
        second = repeated[0]
        first = term.index(term[second])
        length = x.shape[second]
        if length < 0:
            raise Unconvertible(
                f"einsum takes the diagonal of axis {second}, whose length is dynamic"
            )
        shape = [1] * len(term)
        shape[first] = length
        shape[second] = length
        on_diagonal = torch.eye(length, dtype=torch.bool).reshape(shape)
        zero = torch.zeros((), dtype=ctx.dtype(x))
        x = choose(ctx, ctx.constant(on_diagonal), x, zero)
        x = reduce(ctx, "SUM", x, [second])
        term = term[:second] + term[second + 1 :]
    return x, term


def _lengths(operands: Sequence[Operand]) -> dict[str, int]:
    """The largest static length of each letter; -1 if all its axes are dynamic."""
    lengths: dict[str, int] = {}
    dynamic: set[str] = set()
    for tensor, term in operands:
        for letter, length in zip(term, tensor.shape, strict=True):
            lengths[letter] = max(lengths.get(letter, -1), int(length))
            if length < 0:
                dynamic.add(letter)
    lengths.update(dict.fromkeys(dynamic, -1))
    return lengths


def _without_units(
    ctx: ConversionContext, x: ITensor, term: str, lengths: dict[str, int]
) -> Operand:
    """Remove axes of size 1 whose letter is longer elsewhere; they broadcast."""
    units = [
        axis
        for axis, letter in enumerate(term)
        if x.shape[axis] == 1 and lengths[letter] != 1
    ]
    remaining = "".join(letter for axis, letter in enumerate(term) if axis not in units)
    return ctx.squeeze(x, units), remaining


def _contract(
    ctx: ConversionContext, operands: Sequence[Operand], result: str
) -> ITensor:
    """Contract floats in pairs from the left. Integers, which IEinsumLayer does not support, are
    multiplied and summed.
    """
    if not ctx.dtype(operands[0][0]).is_floating_point:
        return _contract_integers(ctx, _promoted(ctx, operands, result), result)
    (x, term), *others = operands
    for i, (y, other_term) in enumerate(others):
        is_last = i == len(others) - 1
        later = result + "".join(other for _, other in others[i + 1 :])
        needed = "".join(
            letter for letter in dict.fromkeys(term + other_term) if letter in later
        )
        output = result if is_last else needed
        x = _pair(ctx, (x, term), (y, other_term), output)
        term = output
    if term != result:
        return _layer(ctx, [(x, term)], result)
    return x


def _pair(ctx: ConversionContext, x: Operand, y: Operand, result: str) -> ITensor:
    """Contract one pair. A matrix product is preferred: TensorRT has kernels and fusions
    (attention) for it, and some versions compute einsum incorrectly in TF32 at some sizes.
    """
    orders = []
    for first, second in ((x, y), (y, x)):
        _, term = first
        _, other_term = second
        letters = _as_product(term, other_term, result)
        if letters:
            orders.append((first, second, letters))
    if not orders:
        return _layer(ctx, [x, y], result)
    in_order = [order for order in orders if "".join(order[2]) == result]
    first, second, (batch, rows, columns) = (in_order or orders)[0]
    _, term = first
    b, other_term = second
    (summed,) = (letter for letter in term if letter not in result)
    transposed = other_term == batch + columns + summed
    a = _ordered(ctx, first, batch + rows + summed)
    if not transposed:
        b = _ordered(ctx, second, batch + summed + columns)
    product = matmul(ctx, a, b, transpose_b=transposed)
    return _ordered(ctx, (product, batch + rows + columns), result)


def _as_product(term: str, other_term: str, result: str) -> tuple[str, str, str] | None:
    """The letters of batch, rows and columns if the pair is a matrix product: a sum over one shared
    letter. Several row letters are batch axes that the second operand does not have.
    """
    batch = "".join(
        letter for letter in result if letter in term and letter in other_term
    )
    rows = "".join(
        letter for letter in result if letter in term and letter not in batch
    )
    columns = "".join(
        letter for letter in result if letter in other_term and letter not in batch
    )
    summed = [letter for letter in term if letter not in batch + rows]
    if len(summed) != 1 or summed != [
        letter for letter in other_term if letter not in batch + columns
    ]:
        return None
    if len(columns) != 1 or not rows:
        return None
    if len(rows) > 1 and batch:
        return None
    return batch, rows, columns


def _ordered(ctx: ConversionContext, operand: Operand, letters: str) -> ITensor:
    x, term = operand
    return permuted(ctx, x, [term.index(letter) for letter in letters])


def _layer(ctx: ConversionContext, operands: Sequence[Operand], result: str) -> ITensor:
    tensors = [tensor for tensor, _ in operands]
    terms = [term for _, term in operands]
    letters = dict.fromkeys("".join(terms))
    lower_case = {
        ord(letter): string.ascii_lowercase[i] for i, letter in enumerate(letters)
    }
    equation = f"{','.join(terms)}->{result}".translate(lower_case)
    layer = ctx.net.add_einsum(tensors, equation)
    sizes = {}
    for tensor, term in reversed(operands):
        for axis, letter in enumerate(term):
            sizes[letter] = ctx.expr(tensor, axis)
    return ctx.set_sizes(layer.get_output(0), [sizes[letter] for letter in result])


def _promoted(
    ctx: ConversionContext, operands: Sequence[Operand], result: str
) -> Sequence[Operand]:
    """The sum of a single operand is int64, as that of torch.sum. Refuses several operands if one
    is summed alone, because torch then multiplies int64 by another dtype.
    """
    letters = "".join(term for _, term in operands)
    alone = {
        letter
        for letter in letters
        if letter not in result and letters.count(letter) == 1
    }
    if not alone:
        return operands
    if len(operands) > 1:
        raise Unconvertible(
            "einsum sums an axis of integers that only one operand has",
            "sum it with torch.sum before einsum",
        )
    ((x, term),) = operands
    return [(ctx.cast(x, torch.int64), term)]


def _contract_integers(
    ctx: ConversionContext, operands: Sequence[Operand], result: str
) -> ITensor:
    summed = dict.fromkeys(
        letter for _, term in operands for letter in term if letter not in result
    )
    letters = result + "".join(summed)
    views = []
    for x, term in operands:
        x = _ordered(ctx, (x, term), "".join(sorted(term, key=letters.index)))
        absent = [i for i, letter in enumerate(letters) if letter not in term]
        views.append(ctx.unsqueeze(x, absent))
    product = views[0]
    for view in views[1:]:
        product = combine(ctx, "PROD", product, view)
    axes = list(range(len(result), len(letters)))
    total = reduce(ctx, "SUM", product, axes)
    return ctx.wrapped(total, ctx.dtype(product))
