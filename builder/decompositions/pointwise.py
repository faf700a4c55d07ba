"""Element-wise arithmetic, comparisons and aliases of operators."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.decompositions.registry import Number, decomposition


@decomposition("aten::rsqrt")
def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(x)"""
    return torch.reciprocal(torch.sqrt(self))


@decomposition("aten::floor_divide")
def floor_divide(self: Tensor, other: Tensor) -> Tensor:
    """floor(self / other), of negative integers too"""
    return torch.div(self, other, rounding_mode="floor")


@decomposition("aten::floor_divide.Scalar")
def floor_divide_by_number(self: Tensor, other: Number) -> Tensor:
    """floor(self / other), of negative integers too"""
    return torch.div(self, other, rounding_mode="floor")


@decomposition("aten::true_divide.Tensor", "aten::divide.Tensor")
def divide(self: Tensor, other: Tensor) -> Tensor:
    """div"""
    return torch.div(self, other)


@decomposition("aten::true_divide.Scalar", "aten::divide.Scalar")
def divide_by_number(self: Tensor, other: Number) -> Tensor:
    """div"""
    return torch.div(self, other)


@decomposition("aten::multiply.Tensor")
def multiply(self: Tensor, other: Tensor) -> Tensor:
    """mul"""
    return torch.mul(self, other)


@decomposition("aten::multiply.Scalar")
def multiply_by_number(self: Tensor, other: Number) -> Tensor:
    """mul"""
    return torch.mul(self, other)


@decomposition("aten::type_as")
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """self.to(other.dtype)"""
    return self.to(other.dtype)


@decomposition(
    "aten::resolve_conj", "aten::resolve_neg", "aten::real", "aten::conj_physical"
)
def unchanged(self: Tensor) -> Tensor:
    """the tensor itself: no network has complex or lazily negated tensors"""
    return self


@decomposition("aten::isreal")
def isreal(self: Tensor) -> Tensor:
    """true everywhere"""
    return torch.ones_like(self, dtype=torch.bool)


@decomposition("aten::isin.Tensor_Tensor")
def isin(
    elements: Tensor, test_elements: Tensor, assume_unique: bool, invert: bool
) -> Tensor:
    """whether each element is among the others, every pair compared"""
    is_member = torch.any(elements.unsqueeze(-1) == test_elements.reshape([-1]), -1)
    if invert:
        is_member = torch.logical_not(is_member)
    return is_member


@decomposition("aten::isin.Tensor_Scalar")
def isin_number(
    elements: Tensor, test_element: Number, assume_unique: bool, invert: bool
) -> Tensor:
    """whether each element is the number"""
    is_member = elements == test_element
    if invert:
        is_member = torch.logical_not(is_member)
    return is_member


@decomposition("aten::isclose")
def isclose(
    self: Tensor, other: Tensor, rtol: float, atol: float, equal_nan: bool
) -> Tensor:
    """|self - other| <= atol + rtol |other|, or equal"""
    close = self == other
    if equal_nan and torch.is_floating_point(self):
        close = torch.logical_or(
            close, torch.logical_and(torch.isnan(self), torch.isnan(other))
        )
    if self.dtype == torch.bool:
        return close
    if rtol == 0.0 and atol == 0.0:
        return close
    other = other * 1.0  # a difference of integers may wrap around
    difference = torch.abs(self - other)
    near = difference <= atol + torch.abs(rtol * other)
    return torch.logical_or(close, torch.logical_and(torch.isfinite(difference), near))


@decomposition("aten::hypot")
def hypot(self: Tensor, other: Tensor) -> Tensor:
    """the root of self^2 + other^2, by the ratio of the smaller to the larger, which does not
    overflow
    """
    dtype = (self + other).dtype
    a = torch.abs(self.to(dtype))
    b = torch.abs(other.to(dtype))
    larger = torch.maximum(a, b)
    smaller = torch.minimum(a, b)
    safe = torch.where(larger == 0, torch.ones_like(larger), larger)
    ratio = smaller / safe
    ratio = torch.where(smaller == larger, torch.ones_like(ratio), ratio)
    root = torch.where(larger == 0, larger, larger * torch.sqrt(1.0 + ratio * ratio))
    # inf if one of the two is infinite, even if the other is NaN
    root = torch.where(torch.isinf(other), b, root)
    return torch.where(torch.isinf(self), a, root)


@decomposition("aten::signbit")
def signbit(self: Tensor) -> Tensor:
    """whether the sign is negative, of -0 too (of NaN: no)"""
    if torch.is_floating_point(self):
        negative_zero = torch.logical_and(self == 0, torch.reciprocal(self) < 0)
        return torch.logical_or(self < 0, negative_zero)
    return self < 0


@decomposition("aten::copysign.Tensor")
def copysign(self: Tensor, other: Tensor) -> Tensor:
    """|self| with the sign of other"""
    dtype = ((self + other) * 1.0).dtype
    size = torch.abs(self.to(dtype))
    negative = torch.signbit(other)
    return torch.where(negative, -size, size)


@decomposition("aten::copysign.Scalar")
def copysign_of_number(self: Tensor, other: Number) -> Tensor:
    """|self| with the sign of a number"""
    return torch.copysign(self, torch.full([], float(other)))


@decomposition("aten::heaviside")
def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, `values` at 0"""
    return torch.where(self == 0, values, (self > 0).to(self.dtype))


@decomposition("aten::ldexp.Tensor")
def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """self 2^other, in the dtype of self if the exponents are integers"""
    result = self * torch.pow(2.0, other)
    if torch.is_floating_point(self) and not torch.is_floating_point(other):
        result = result.to(self.dtype)
    return result


@decomposition("aten::angle")
def angle(self: Tensor) -> Tensor:
    """pi below 0, else 0; NaN stays"""
    x = self * 1.0
    turned = torch.where(
        x < 0, torch.full_like(x, 3.141592653589793), torch.zeros_like(x)
    )
    return torch.where(torch.isnan(x), x, turned)
