"""Statistics composed of sums and sorts: means and sums past NaN, integrals, covariances,
quantiles, medians, modes.
"""

from __future__ import annotations

from builder.conversion.composing import compose, function

_AXES = "self: Tensor, dim: Optional[List[int]], keepdim: bool, dtype: Optional[int]"
_AXES_SCHEMA = "Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None"
_KNOWN = (
    "x = self",
    "if torch.is_floating_point(self):",
    "    x = torch.where(torch.isnan(self), torch.zeros_like(self), self)",
)

_EQUAL_STEPS = (
    "n = y.size(dim) - 1",
    "areas = torch.narrow(y, dim, 1, n) + torch.narrow(y, dim, 0, n)",
)
_STEPS = (
    "at = x",
    "if x.dim() == 1 and y.dim() > 1:",
    "    shape = [1] * y.dim()",
    "    shape[dim] = -1",
    "    at = x.reshape(shape)",
    *_EQUAL_STEPS,
    "areas = areas * (torch.narrow(at, dim, 1, n) - torch.narrow(at, dim, 0, n))",
)

compose(
    __name__,
    {
        f"aten::nansum({_AXES_SCHEMA}) -> Tensor": (
            "the sum without what is NaN",
            function(_AXES, *_KNOWN, "return torch.sum(x, dim, keepdim, dtype=dtype)"),
        ),
        f"aten::nanmean({_AXES_SCHEMA}) -> Tensor": (
            "the mean of what is not NaN",
            function(
                _AXES,
                *_KNOWN,
                "known = torch.logical_not(torch.isnan(self)).to(x.dtype)",
                "return torch.sum(x, dim, keepdim, dtype=dtype) / torch.sum(known, dim, keepdim,"
                " dtype=dtype)",
            ),
        ),
        "aten::trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor": (
            "the integral over equal steps, by trapezoids",
            function(
                "y: Tensor, dx: number, dim: int",
                *_EQUAL_STEPS,
                "return torch.sum(areas, [dim]) * (dx / 2.0)",
            ),
        ),
        "aten::trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor": (
            "the integral over the steps of x, by trapezoids",
            function(
                "y: Tensor, x: Tensor, dim: int", *_STEPS, "return torch.sum(areas, [dim]) / 2.0"
            ),
        ),
        "aten::cumulative_trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor": (
            "the integral up to each of equal steps, by trapezoids",
            function(
                "y: Tensor, dx: number, dim: int",
                *_EQUAL_STEPS,
                "return torch.cumsum(areas, dim) * (dx / 2.0)",
            ),
        ),
        "aten::cumulative_trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor": (
            "the integral up to each of the steps of x, by trapezoids",
            function(
                "y: Tensor, x: Tensor, dim: int", *_STEPS, "return torch.cumsum(areas, dim) / 2.0"
            ),
        ),
        "aten::trapz.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor": (
            "trapezoid",
            function("y: Tensor, x: Tensor, dim: int", "return torch.trapezoid(y, x, dim=dim)"),
        ),
        "aten::trapz.dx(Tensor y, *, float dx=1., int dim=-1) -> Tensor": (
            "trapezoid",
            function("y: Tensor, dx: float, dim: int", "return torch.trapezoid(y, dx=dx, dim=dim)"),
        ),
        "aten::cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor": (
            "the covariances of the rows",
            function(
                "self: Tensor, correction: int, fweights: Optional[Tensor], aweights:"
                " Optional[Tensor]",
                "x = self",
                "if self.dim() < 2:",
                "    x = self.reshape([1, -1])",
                "weights = torch.ones_like(x[0]) * 1.0",
                "if fweights is not None:",
                "    weights = weights * fweights",
                "if aweights is not None:",
                "    weights = weights * aweights",
                "total = torch.sum(weights)",
                "x = x - torch.sum(x * weights, [1], True) / total",
                "norm = total - correction",
                "if aweights is not None and correction != 0:",
                "    norm = total - correction * torch.sum(weights * aweights) / total",
                "result = torch.matmul(x * weights, torch.transpose(x, 0, 1)) /"
                " torch.clamp_min(norm, 0.0)",
                "if x.size(0) == 1:",
                "    result = result.reshape([])",
                "return result",
            ),
        ),
        "aten::corrcoef(Tensor self) -> Tensor": (
            "the covariances of the rows by their standard deviations, between -1 and 1",
            function(
                "self: Tensor",
                "c = torch.cov(self)",
                "if c.dim() == 0:",
                "    result = c / c",
                "else:",
                "    deviation = torch.sqrt(torch.diagonal(c))",
                "    result = c / deviation.unsqueeze(-1) / deviation",
                "return torch.clamp(result, -1.0, 1.0)",
            ),
        ),
    },
)

_ROWS = (
    "x = self",
    "axis = 0",
    "if dim is None or self.dim() == 0:",
    "    x = self.reshape([-1])",
    "else:",
    "    axis = dim",
    "    if axis < 0:",
    "        axis = axis + self.dim()",
    "shape = [1] * x.dim()",
    "shape[axis] = -1",
)
_ROUNDED = (
    "if interpolation == 'lower':",
    "    places = torch.floor(places)",
    "elif interpolation == 'higher':",
    "    places = torch.ceil(places)",
    "elif interpolation == 'nearest':",
    "    places = torch.round(places)",
    "below = torch.floor(places)",
    "rest = places - below",
    "if interpolation == 'midpoint':",
    "    rest = torch.where(rest > 0, torch.full_like(rest, 0.5), rest)",
)
_ARRANGED = (
    "result = torch.movedim(result, axis, 0)",
    "if keepdim:",
    "    if dim is None or self.dim() == 0:",
    "        result = result.reshape([result.size(0)] + [1] * self.dim())",
    "    else:",
    "        result = result.unsqueeze(axis + 1)",
)
_QUANTILE = (
    *_ROWS,
    "ordered = torch.sort(x, axis)[0]",
    "places = q.reshape([-1]) * (x.size(axis) - 1)",
    *_ROUNDED,
    "low = torch.index_select(ordered, axis, below.to(torch.long))",
    "high = torch.index_select(ordered, axis, torch.ceil(places).to(torch.long))",
    "result = torch.lerp(low, high, rest.reshape(shape).expand_as(low))",
    *_ARRANGED,
)
_KNOWN_QUANTILE = (
    *_ROWS,
    "unknown = torch.isnan(x)",
    "ordered = torch.sort(torch.where(unknown, torch.full_like(x, float('inf')), x), axis)[0]",
    "known = torch.sum(torch.logical_not(unknown), [axis], True)",
    "places = q.reshape(shape) * torch.clamp_min(known - 1, 0)",
    *_ROUNDED,
    "low = torch.gather(ordered, axis, below.to(torch.long))",
    "high = torch.gather(ordered, axis, torch.ceil(places).to(torch.long))",
    (
        "result = torch.where(known == 0, torch.full_like(low, float('nan')), torch.lerp(low, high,"
        " rest))"
    ),
    *_ARRANGED,
)
_SETTINGS = "dim: Optional[int], keepdim: bool, interpolation: str"
_REST = 'int? dim=None, bool keepdim=False, *, str interpolation="linear") -> Tensor'
_MANY = ("if q.dim() == 0:", "    result = result.squeeze(0)", "return result")
_ONE = ("return result.squeeze(0)",)
_PLACE = "q = torch.full([], place, dtype=self.dtype)"
compose(
    __name__,
    {
        f"aten::quantile(Tensor self, Tensor q, {_REST}": (
            (
                "between the ordered values at q (n - 1), as `interpolation` says (NaN is not"
                " looked for)"
            ),
            function(f"self: Tensor, q: Tensor, {_SETTINGS}", *_QUANTILE, *_MANY),
        ),
        f"aten::quantile.scalar(Tensor self, float q, {_REST}": (
            "quantile at one place",
            function(f"self: Tensor, place: float, {_SETTINGS}", _PLACE, *_QUANTILE, *_ONE),
        ),
        f"aten::nanquantile(Tensor self, Tensor q, {_REST}": (
            "quantile of what is not NaN",
            function(f"self: Tensor, q: Tensor, {_SETTINGS}", *_KNOWN_QUANTILE, *_MANY),
        ),
        f"aten::nanquantile.scalar(Tensor self, float q, {_REST}": (
            "nanquantile at one place",
            function(f"self: Tensor, place: float, {_SETTINGS}", _PLACE, *_KNOWN_QUANTILE, *_ONE),
        ),
    },
)

_WITHIN = "self: Tensor, dim: int, keepdim: bool"
_PLACED = "(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"
_ONE_PLACE = (
    "if not keepdim:",
    "    value = value.squeeze(dim)",
    "    place = place.squeeze(dim)",
    "return value, place",
)
_NO_AXIS = ("if self.dim() == 0:", "    return self, torch.zeros([], dtype=torch.long)")
_FLAT = "torch.{}(self.reshape([-1]), 0)[0]"
_NAN = "NaN is not looked for; among equal values TensorRT states no order"
compose(
    __name__,
    {
        f"aten::median.dim{_PLACED}": (
            "the lower of the middle values along an axis, and its place",
            function(
                _WITHIN,
                *_NO_AXIS,
                "half = (self.size(dim) + 1) // 2",
                "values, places = torch.topk(self, half, dim, False)",
                "value = torch.narrow(values, dim, half - 1, 1)",
                "place = torch.narrow(places, dim, half - 1, 1)",
                *_ONE_PLACE,
            ),
        ),
        "aten::median(Tensor self) -> Tensor": (
            "the lower of the middle values",
            function("self: Tensor", f"return {_FLAT.format('median')}"),
        ),
        f"aten::nanmedian.dim{_PLACED}": (
            "the median of what is not NaN",
            function(
                _WITHIN,
                *_NO_AXIS,
                "x = self",
                "unknown = torch.zeros_like(self, dtype=torch.bool)",
                "if torch.is_floating_point(self):",
                "    unknown = torch.isnan(self)",
                "    x = torch.where(unknown, torch.full_like(self, float('inf')), self)",
                "values, places = torch.sort(x, dim)",
                "known = torch.sum(torch.logical_not(unknown), [dim], True)",
                "middle = torch.div(torch.clamp_min(known - 1, 0), 2, rounding_mode='floor')",
                "value = torch.gather(values, dim, middle)",
                "if torch.is_floating_point(self):",
                "    value = torch.where(known == 0, torch.full_like(value, float('nan')), value)",
                "place = torch.gather(places, dim, middle)",
                *_ONE_PLACE,
            ),
        ),
        "aten::nanmedian(Tensor self) -> Tensor": (
            "the median of what is not NaN",
            function("self: Tensor", f"return {_FLAT.format('nanmedian')}"),
        ),
        "aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)": (
            (
                "the least of the most frequent values along an axis, every pair compared, and its"
                " last place"
            ),
            function(
                _WITHIN,
                *_NO_AXIS,
                "x = torch.movedim(self, dim, -1)",
                "counts = torch.sum(x.unsqueeze(-1) == x.unsqueeze(-2), [-1])",
                "most = counts == torch.amax(counts, [-1], True)",
                "value = torch.amin(torch.where(most, x, torch.amax(x, [-1], True)), [-1], True)",
                "places = torch.arange(x.size(-1)).expand(x.size())",
                "place = torch.amax(torch.where(x == value, places, torch.zeros_like(places)),"
                " [-1], True)",
                "value, place = torch.movedim(value, -1, dim), torch.movedim(place, -1, dim)",
                *_ONE_PLACE,
            ),
        ),
    },
    note=_NAN,
)
