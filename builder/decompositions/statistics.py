"""Statistics composed of sums and sorts: means and sums without NaN, integrals, covariances,
quantiles, medians, modes.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from builder.decompositions.registry import Number, decomposition


def zero_for_nan(self: Tensor) -> Tensor:
    x = self
    if torch.is_floating_point(self):
        x = torch.where(torch.isnan(self), torch.zeros_like(self), self)
    return x


@decomposition("aten::nansum")
def nansum(
    self: Tensor, dim: list[int] | None, keepdim: bool, dtype: torch.dtype | None
) -> Tensor:
    """the sum of the elements that are not NaN"""
    return torch.sum(zero_for_nan(self), dim, keepdim, dtype=dtype)


@decomposition("aten::nanmean")
def nanmean(
    self: Tensor, dim: list[int] | None, keepdim: bool, dtype: torch.dtype | None
) -> Tensor:
    """the mean of the elements that are not NaN"""
    x = zero_for_nan(self)
    known = torch.logical_not(torch.isnan(self)).to(x.dtype)
    total = torch.sum(x, dim, keepdim, dtype=dtype)
    return total / torch.sum(known, dim, keepdim, dtype=dtype)


def areas_of_equal_steps(y: Tensor, dim: int) -> Tensor:
    n = max(y.size(dim) - 1, 0)
    return torch.narrow(y, dim, 1, n) + torch.narrow(y, dim, 0, n)


def areas_of_steps(y: Tensor, x: Tensor, dim: int) -> Tensor:
    at = x
    if x.dim() == 1 and y.dim() > 1:
        at = x.reshape(along(y, dim))
    n = max(y.size(dim) - 1, 0)
    areas = areas_of_equal_steps(y, dim)
    return areas * (torch.narrow(at, dim, 1, n) - torch.narrow(at, dim, 0, n))


@decomposition("aten::trapezoid.dx")
def trapezoid_of_equal_steps(y: Tensor, dx: Number, dim: int) -> Tensor:
    """the integral over equal steps: the sum without half of both ends, which does not wrap"""
    n = min(y.size(dim), 1)
    ends = torch.narrow(y, dim, 0, n) + torch.narrow(y, dim, y.size(dim) - n, n)
    return (torch.sum(y, [dim]) - torch.sum(ends, [dim]) * 0.5) * dx


@decomposition("aten::trapezoid.x")
def trapezoid(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """the integral over the steps of x, by trapezoids"""
    return torch.sum(areas_of_steps(y, x, dim), [dim]) / 2.0


@decomposition("aten::cumulative_trapezoid.dx")
def cumulative_trapezoid_of_equal_steps(y: Tensor, dx: Number, dim: int) -> Tensor:
    """the integral up to each of equal steps, by trapezoids"""
    return torch.cumsum(areas_of_equal_steps(y, dim), dim) * (dx / 2.0)


@decomposition("aten::cumulative_trapezoid.x")
def cumulative_trapezoid(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """the integral up to each of the steps of x, by trapezoids"""
    return torch.cumsum(areas_of_steps(y, x, dim), dim) / 2.0


@decomposition("aten::trapz.x")
def trapz(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """trapezoid"""
    return torch.trapezoid(y, x, dim=dim)


@decomposition("aten::trapz.dx")
def trapz_of_equal_steps(y: Tensor, dx: float, dim: int) -> Tensor:
    """trapezoid"""
    return torch.trapezoid(y, dx=dx, dim=dim)


@decomposition("aten::cov")
def cov(
    self: Tensor, correction: int, fweights: Tensor | None, aweights: Tensor | None
) -> Tensor:
    """the covariances of the rows"""
    x = self
    if self.dim() < 2:
        x = self.reshape([1, -1])
    weights = torch.ones_like(x[0]) * 1.0
    if fweights is not None:
        weights = weights * fweights
    if aweights is not None:
        weights = weights * aweights
    total = torch.sum(weights)
    x = x - torch.sum(x * weights, [1], True) / total
    norm = total - correction
    if aweights is not None and correction != 0:
        norm = total - correction * torch.sum(weights * aweights) / total
    result = torch.matmul(x * weights, torch.transpose(x, 0, 1)) / torch.clamp_min(
        norm, 0.0
    )
    if x.size(0) == 1:
        result = result.reshape([])
    return result


@decomposition("aten::corrcoef")
def corrcoef(self: Tensor) -> Tensor:
    """the covariances of the rows by their standard deviations, between -1 and 1"""
    c = torch.cov(self)
    if c.dim() == 0:
        result = c / c
    else:
        deviation = torch.sqrt(torch.diagonal(c))
        result = c / deviation.unsqueeze(-1) / deviation
    return torch.clamp(result, -1.0, 1.0)


def flat_without_dim(self: Tensor, dim: int | None) -> Tensor:
    x = self
    if dim is None or self.dim() == 0:
        x = self.reshape([-1])
    return x


def axis_of(self: Tensor, dim: int | None) -> int:
    axis = 0
    if dim is not None:
        if self.dim() > 0:
            axis = dim
            if axis < 0:
                axis = axis + self.dim()
    return axis


def along(x: Tensor, axis: int) -> list[int]:
    shape = [1] * x.dim()
    shape[axis] = -1
    return shape


def rounded(positions: Tensor, interpolation: str) -> Tensor:
    if interpolation == "lower":
        positions = torch.floor(positions)
    elif interpolation == "higher":
        positions = torch.ceil(positions)
    elif interpolation == "nearest":
        positions = torch.round(positions)
    return positions


def fraction(positions: Tensor, interpolation: str) -> Tensor:
    weight = positions - torch.floor(positions)
    if interpolation == "midpoint":
        weight = torch.where(weight > 0, torch.full_like(weight, 0.5), weight)
    return weight


def between(low: Tensor, high: Tensor, weight: Tensor, interpolation: str) -> Tensor:
    """between two values; `low` itself at rounded positions, where lerp would make inf NaN"""
    result = low
    if interpolation == "linear" or interpolation == "midpoint":
        result = torch.lerp(low, high, weight)
    return result


def arranged(
    result: Tensor, self: Tensor, q: Tensor, axis: int, dim: int | None, keepdim: bool
) -> Tensor:
    result = torch.movedim(result, axis, 0)
    if keepdim:
        if dim is None or self.dim() == 0:
            result = result.reshape([result.size(0)] + [1] * self.dim())
        else:
            result = result.unsqueeze(axis + 1)
    if q.dim() == 0:
        result = result.squeeze(0)
    return result


def nan_if_any(result: Tensor, x: Tensor, axis: int) -> Tensor:
    if torch.is_floating_point(x):
        unknown = torch.any(torch.isnan(x), axis, True)
        result = torch.where(unknown, torch.full_like(result, math.nan), result)
    return result


@decomposition("aten::quantile")
def quantile(
    self: Tensor, q: Tensor, dim: int | None, keepdim: bool, interpolation: str
) -> Tensor:
    """between the ordered values at q (n - 1), by `interpolation`; NaN if one is among them"""
    x = flat_without_dim(self, dim)
    axis = axis_of(self, dim)
    ordered = torch.sort(x, axis)[0]
    positions = rounded(q.reshape([-1]) * (x.size(axis) - 1), interpolation)
    low = torch.index_select(ordered, axis, torch.floor(positions).to(torch.long))
    high = torch.index_select(ordered, axis, torch.ceil(positions).to(torch.long))
    weight = fraction(positions, interpolation).reshape(along(x, axis))
    result = between(low, high, weight.expand_as(low), interpolation)
    result = nan_if_any(result, x, axis)
    return arranged(result, self, q, axis, dim, keepdim)


@decomposition("aten::quantile.scalar")
def quantile_at_number(
    self: Tensor, q: float, dim: int | None, keepdim: bool, interpolation: str
) -> Tensor:
    """quantile for one q"""
    number = torch.full([], q, dtype=self.dtype)
    return quantile(self, number, dim, keepdim, interpolation)


@decomposition("aten::nanquantile")
def nanquantile(
    self: Tensor, q: Tensor, dim: int | None, keepdim: bool, interpolation: str
) -> Tensor:
    """quantile of the elements that are not NaN"""
    x = flat_without_dim(self, dim)
    axis = axis_of(self, dim)
    unknown = torch.isnan(x)
    ordered = torch.sort(torch.where(unknown, torch.full_like(x, math.inf), x), axis)[0]
    known = torch.sum(torch.logical_not(unknown), [axis], True)
    positions = q.reshape(along(x, axis)) * torch.clamp_min(known - 1, 0)
    positions = rounded(positions, interpolation)
    low = torch.gather(ordered, axis, torch.floor(positions).to(torch.long))
    high = torch.gather(ordered, axis, torch.ceil(positions).to(torch.long))
    weight = fraction(positions, interpolation)
    result = between(low, high, weight, interpolation)
    result = torch.where(known == 0, torch.full_like(low, math.nan), result)
    return arranged(result, self, q, axis, dim, keepdim)


@decomposition("aten::nanquantile.scalar")
def nanquantile_at_number(
    self: Tensor, q: float, dim: int | None, keepdim: bool, interpolation: str
) -> Tensor:
    """nanquantile for one q"""
    number = torch.full([], q, dtype=self.dtype)
    return nanquantile(self, number, dim, keepdim, interpolation)


TIES = "TensorRT does not define the order of equal values"
NO_NAN = f"NaN is not handled; {TIES}"


def without_axis(
    value: Tensor, position: Tensor, dim: int, keepdim: bool
) -> tuple[Tensor, Tensor]:
    if not keepdim:
        value = value.squeeze(dim)
        position = position.squeeze(dim)
    return value, position


@decomposition("aten::median.dim", note=TIES)
def median_along(self: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """the lower of the middle values along an axis, or NaN if one is among them, and its index"""
    if self.dim() == 0:
        return self, torch.zeros([], dtype=torch.long)
    half = (self.size(dim) + 1) // 2
    values, positions = torch.topk(self, half, dim, False)
    value = torch.narrow(values, dim, half - 1, 1)
    position = torch.narrow(positions, dim, half - 1, 1)
    if torch.is_floating_point(self):
        unknown, first = torch.max(torch.isnan(self).to(torch.float32), dim, True)
        value = torch.where(unknown > 0, torch.full_like(value, math.nan), value)
        position = torch.where(unknown > 0, first, position)
    return without_axis(value, position, dim, keepdim)


def not_empty(call: SimpleNamespace) -> str | None:
    if 0 in tuple(getattr(call.self, "shape", ())):
        return "the median of an empty tensor is undefined"
    return None


@decomposition("aten::median", when=not_empty, note=TIES)
def median(self: Tensor) -> Tensor:
    """the lower of the middle values, or NaN if one is among them"""
    return torch.median(self.reshape([-1]), 0)[0]


@decomposition("aten::nanmedian.dim", note=TIES)
def nanmedian_along(self: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """the median of the elements that are not NaN"""
    if self.dim() == 0:
        return self, torch.zeros([], dtype=torch.long)
    x = self
    unknown = torch.zeros_like(self, dtype=torch.bool)
    if torch.is_floating_point(self):
        unknown = torch.isnan(self)
        x = torch.where(unknown, torch.full_like(self, math.inf), self)
    values, positions = torch.sort(x, dim)
    known = torch.sum(torch.logical_not(unknown), [dim], True)
    middle = torch.div(torch.clamp_min(known - 1, 0), 2, rounding_mode="floor")
    value = torch.gather(values, dim, middle)
    if torch.is_floating_point(self):
        value = torch.where(known == 0, torch.full_like(value, math.nan), value)
    position = torch.gather(positions, dim, middle)
    return without_axis(value, position, dim, keepdim)


@decomposition("aten::nanmedian", when=not_empty, note=TIES)
def nanmedian(self: Tensor) -> Tensor:
    """the median of the elements that are not NaN"""
    return torch.nanmedian(self.reshape([-1]), 0)[0]


@decomposition("aten::mode", note=NO_NAN)
def mode(self: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """the smallest of the most frequent values along an axis and its last index, by comparing all
    pairs
    """
    if self.dim() == 0:
        return self, torch.zeros([], dtype=torch.long)
    x = torch.movedim(self, dim, -1)
    counts = torch.sum(x.unsqueeze(-1) == x.unsqueeze(-2), [-1])
    most = counts == torch.amax(counts, [-1], True)
    value = torch.amin(torch.where(most, x, torch.amax(x, [-1], True)), [-1], True)
    positions = torch.arange(x.size(-1)).expand(x.size())
    position = torch.amax(
        torch.where(x == value, positions, torch.zeros_like(positions)), [-1], True
    )
    value, position = torch.movedim(value, -1, dim), torch.movedim(position, -1, dim)
    return without_axis(value, position, dim, keepdim)
