"""Special functions, element by element."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from builder.decompositions.registry import Number, decomposition

LOG_2 = 0.6931471805599453
LOG2_E = 1.4426950408889634


def times_logarithm(self: Tensor, other: Tensor, logarithm: Tensor) -> Tensor:
    product = self * logarithm
    zero = torch.zeros_like(product)
    known = torch.logical_not(torch.isnan(other))
    return torch.where(torch.logical_and(self == 0, known), zero, product)


@decomposition("aten::xlogy.Tensor", "aten::special_xlogy")
def xlogy(self: Tensor, other: Tensor) -> Tensor:
    """self log(other), 0 where self is 0"""
    other = other.to(((self + other) * 1.0).dtype)
    return times_logarithm(self, other, torch.log(other))


@decomposition("aten::xlogy.Scalar_Other", "aten::special_xlogy.other_scalar")
def xlogy_of_number(self: Tensor, other: Number) -> Tensor:
    """self log(other), 0 where self is 0"""
    number = torch.full_like(self * 1.0, other)
    return times_logarithm(self, number, torch.log(number))


@decomposition("aten::xlogy.Scalar_Self", "aten::special_xlogy.self_scalar")
def number_xlogy(self: Number, other: Tensor) -> Tensor:
    """self log(other), 0 where self is 0"""
    number = torch.full_like(other * 1.0, self)
    return times_logarithm(number, other, torch.log(other))


@decomposition("aten::special_xlog1py")
def xlog1py(self: Tensor, other: Tensor) -> Tensor:
    """self log1p(other), 0 where self is 0"""
    other = other.to(((self + other) * 1.0).dtype)
    return times_logarithm(self, other, torch.log1p(other))


@decomposition("aten::special_xlog1py.other_scalar")
def xlog1py_of_number(self: Tensor, other: Number) -> Tensor:
    """self log1p(other), 0 where self is 0"""
    number = torch.full_like(self * 1.0, other)
    return times_logarithm(self, number, torch.log1p(number))


@decomposition("aten::special_xlog1py.self_scalar")
def number_xlog1py(self: Number, other: Tensor) -> Tensor:
    """self log1p(other), 0 where self is 0"""
    number = torch.full_like(other * 1.0, self)
    return times_logarithm(number, other, torch.log1p(other))


@decomposition("aten::logaddexp")
def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    """log(exp(self) + exp(other)), computed as the larger operand plus log1p of the exponentiated
    difference
    """
    larger = torch.maximum(self, other)
    correction = torch.log1p(torch.exp(-torch.abs(self - other)))
    return torch.where(self == other, larger + LOG_2, larger + correction)


@decomposition("aten::logaddexp2")
def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    """the same to the base 2"""
    larger = torch.maximum(self, other)
    correction = torch.log1p(torch.exp2(-torch.abs(self - other))) * LOG2_E
    return torch.where(self == other, larger + 1.0, larger + correction)


@decomposition("aten::special_entr")
def special_entr(self: Tensor) -> Tensor:
    """-self log(self), 0 at 0, -inf below"""
    x = self * 1.0
    value = -torch.xlogy(x, torch.abs(x))
    return torch.where(x < 0, torch.full_like(x, -math.inf), value)


@decomposition("aten::special_ndtr")
def special_ndtr(self: Tensor) -> Tensor:
    """the normal distribution function, erfc(-self / sqrt(2)) / 2"""
    return 0.5 * torch.erfc(self * -0.7071067811865476)
