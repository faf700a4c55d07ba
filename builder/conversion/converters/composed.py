"""Operators composed of others: special functions, statistics, comparisons, unpooling, bags of embeddings."""

from __future__ import annotations

from typing import Any

from builder.conversion.composing import compose, function

SAME = "the tensor itself: no network has complex or lazily negated tensors"

compose(__name__, {
    f"aten::{name}(Tensor{alias} self) -> Tensor{alias}": (SAME, function("self: Tensor", "return self"))
    for name, alias in (("resolve_conj", "(a)"), ("resolve_neg", "(a)"), ("real", "(a)"), ("conj_physical", ""))
})  # fmt: skip
compose(__name__, {
    f"aten::{name}(Tensor(a) self) -> Tensor(a)": (
        "the last two axes exchanged", function("self: Tensor", "return torch.transpose(self, -2, -1)"))
    for name in ("matrix_H", "matrix_H.a")
})  # fmt: skip

_XLOGY = (
    "logarithm = {function}(other)",
    "product = self * logarithm",
    "zero = torch.zeros_like(product)",
    "return torch.where(torch.logical_and(self == 0, torch.logical_not(torch.isnan(other))), zero, product)",
)


def _xlogy(name: str, log: str, kinds: tuple[str, str, str]) -> dict[str, tuple[str, str]]:
    """The overloads of xlogy or xlog1py: two tensors, a number second, a number first."""
    tensor, second, first = kinds
    lines = [line.format(function=log) for line in _XLOGY]
    doc = f"self {log.removeprefix('torch.')}(other), 0 where self is 0"
    return {
        f"aten::{name}{tensor}(Tensor self, Tensor other) -> Tensor": (
            doc,
            function("self: Tensor, other: Tensor", *lines),
        ),
        f"aten::{name}.{second}(Tensor self, Scalar other) -> Tensor": (
            doc,
            function("self: Tensor, number: number", "other = torch.full_like(self * 1.0, number)", *lines),
        ),
        f"aten::{name}.{first}(Scalar self, Tensor other) -> Tensor": (
            doc,
            function("number: number, other: Tensor", "self = torch.full_like(other * 1.0, number)", *lines),
        ),
    }


compose(__name__, _xlogy("xlogy", "torch.log", (".Tensor", "Scalar_Other", "Scalar_Self")))
compose(__name__, _xlogy("special_xlogy", "torch.log", ("", "other_scalar", "self_scalar")))
compose(__name__, _xlogy("special_xlog1py", "torch.log1p", ("", "other_scalar", "self_scalar")))

TWO = "self: Tensor, other: Tensor"
ONE = "self: Tensor"

compose(__name__, {
    "aten::logaddexp(Tensor self, Tensor other) -> Tensor": (
        "log(exp(self) + exp(other)), by the larger of the two and log1p of what the other adds",
        function(TWO, "larger = torch.maximum(self, other)",
                 "rest = torch.log1p(torch.exp(-torch.abs(self - other)))",
                 "return torch.where(self == other, larger + 0.6931471805599453, larger + rest)")),
    "aten::logaddexp2(Tensor self, Tensor other) -> Tensor": (
        "the same to the base 2",
        function(TWO, "larger = torch.maximum(self, other)",
                 "rest = torch.log1p(torch.exp2(-torch.abs(self - other))) * 1.4426950408889634",
                 "return torch.where(self == other, larger + 1.0, larger + rest)")),
    "aten::hypot(Tensor self, Tensor other) -> Tensor": (
        "the root of self^2 + other^2, by the ratio of the smaller to the larger, which does not overflow",
        function(TWO, "a = torch.abs(self)", "b = torch.abs(other)",
                 "larger = torch.maximum(a, b)", "smaller = torch.minimum(a, b)",
                 "safe = torch.where(larger == 0, torch.ones_like(larger), larger)",
                 "ratio = smaller / safe",
                 "ratio = torch.where(smaller == larger, torch.ones_like(ratio), ratio)",
                 "return torch.where(larger == 0, larger, larger * torch.sqrt(1.0 + ratio * ratio))")),
    "aten::signbit(Tensor self) -> Tensor": (
        "whether the sign is negative, of -0 too (of NaN: no)",
        function(ONE, "if torch.is_floating_point(self):",
                 "    return torch.logical_or(self < 0, torch.logical_and(self == 0, torch.reciprocal(self) < 0))",
                 "return self < 0")),
    "aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor": (
        "|self| with the sign of other",
        function(TWO, "size = torch.abs(self * 1.0)", "negative = torch.signbit(other)",
                 "return torch.where(negative, -size, size)")),
    "aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor": (
        "|self| with the sign of a number",
        function("self: Tensor, other: number", "return torch.copysign(self, torch.full([], float(other)))")),
    "aten::heaviside(Tensor self, Tensor values) -> Tensor": (
        "0 below 0, 1 above, `values` at 0",
        function("self: Tensor, values: Tensor",
                 "return torch.where(self == 0, values, (self > 0).to(self.dtype))")),
    "aten::ldexp.Tensor(Tensor self, Tensor other) -> Tensor": (
        "self 2^other", function(TWO, "return self * torch.pow(2.0, other)")),
    "aten::isclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08, "
    "bool equal_nan=False) -> Tensor": (
        "|self - other| <= atol + rtol |other|, or equal",
        function(f"{TWO}, rtol: float, atol: float, equal_nan: bool",
                 "close = self == other",
                 "if equal_nan and torch.is_floating_point(self):",
                 "    close = torch.logical_or(close, torch.logical_and(torch.isnan(self), torch.isnan(other)))",
                 "if self.dtype == torch.bool:",
                 "    return close",
                 "if rtol == 0.0 and atol == 0.0:",
                 "    return close",
                 "difference = torch.abs(self - other)",
                 "near = difference <= atol + torch.abs(rtol * other)",
                 "return torch.logical_or(close, torch.logical_and(torch.isfinite(difference), near))")),
    "aten::isreal(Tensor self) -> Tensor": (
        "true everywhere", function(ONE, "return torch.ones_like(self, dtype=torch.bool)")),
    "aten::angle(Tensor self) -> Tensor": (
        "pi below 0, else 0; NaN stays",
        function(ONE, "x = self * 1.0",
                 "turned = torch.where(x < 0, torch.full_like(x, 3.141592653589793), torch.zeros_like(x))",
                 "return torch.where(torch.isnan(x), x, turned)")),
    "aten::special_entr(Tensor self) -> Tensor": (
        "-self log(self), 0 at 0, -inf below",
        function(ONE, "x = self * 1.0", "value = -torch.xlogy(x, torch.abs(x))",
                 "return torch.where(x < 0, torch.full_like(x, -float('inf')), value)")),
    "aten::special_ndtr(Tensor self) -> Tensor": (
        "the normal distribution function, erfc(-self / sqrt(2)) / 2",
        function(ONE, "return 0.5 * torch.erfc(self * -0.7071067811865476)")),
    "aten::special_expit(Tensor self) -> Tensor": ("sigmoid", function(ONE, "return torch.sigmoid(self)")),
    "aten::special_logit(Tensor self, float? eps=None) -> Tensor": (
        "logit", function("self: Tensor, eps: Optional[float]", "return torch.logit(self, eps)")),
    "aten::special_log1p(Tensor self) -> Tensor": ("log1p", function(ONE, "return torch.log1p(self)")),
    "aten::special_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor": (
        "softmax", function("self: Tensor, dim: int, dtype: Optional[int]",
                            "return torch.softmax(self, dim, dtype)")),
    "aten::special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor": (
        "log_softmax", function("self: Tensor, dim: int, dtype: Optional[int]",
                                "return torch.log_softmax(self, dim, dtype)")),
    "aten::special_logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor": (
        "logsumexp", function("self: Tensor, dim: List[int], keepdim: bool",
                              "return torch.logsumexp(self, dim, keepdim)")),
    "aten::_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor": (
        "softmax; 0 along an axis of nothing but -inf",
        function("self: Tensor, dim: int, dtype: Optional[int]",
                 "hidden = torch.amax(self, [dim], True) == -float('inf')",
                 "return torch.masked_fill(torch.softmax(self, dim, dtype), hidden, 0.0)")),
})  # fmt: skip

_AXES = "self: Tensor, dim: Optional[List[int]], keepdim: bool, dtype: Optional[int]"
_AXES_SCHEMA = "Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None"
_KNOWN = ("x = self", "if torch.is_floating_point(self):",
          "    x = torch.where(torch.isnan(self), torch.zeros_like(self), self)")  # fmt: skip

compose(__name__, {
    f"aten::nansum({_AXES_SCHEMA}) -> Tensor": (
        "the sum without what is NaN", function(_AXES, *_KNOWN, "return torch.sum(x, dim, keepdim, dtype=dtype)")),
    f"aten::nanmean({_AXES_SCHEMA}) -> Tensor": (
        "the mean of what is not NaN",
        function(_AXES, *_KNOWN, "known = torch.logical_not(torch.isnan(self)).to(x.dtype)",
                 "return torch.sum(x, dim, keepdim, dtype=dtype) / torch.sum(known, dim, keepdim, dtype=dtype)")),
    "aten::trace(Tensor self) -> Tensor": (
        "the sum of the diagonal", function(ONE, "return torch.sum(torch.diagonal(self))")),
    "aten::diagflat(Tensor self, int offset=0) -> Tensor": (
        "a matrix whose diagonal is the flattened tensor",
        function("self: Tensor, offset: int", "return torch.diag_embed(self.reshape([-1]), offset)")),
    "aten::linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)": (
        "diagonal", function("A: Tensor, offset: int, dim1: int, dim2: int",
                             "return torch.diagonal(A, offset, dim1, dim2)")),
    "aten::trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor": (
        "the integral over equal steps, by trapezoids",
        function("y: Tensor, dx: number, dim: int", "n = y.size(dim) - 1",
                 "return torch.sum(torch.narrow(y, dim, 1, n) + torch.narrow(y, dim, 0, n), [dim]) * (dx / 2.0)")),
    "aten::trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor": (
        "the integral over the steps of x, by trapezoids",
        function("y: Tensor, x: Tensor, dim: int", "at = x",
                 "if x.dim() == 1 and y.dim() > 1:",
                 "    shape = [1] * y.dim()", "    shape[dim] = -1", "    at = x.reshape(shape)",
                 "n = y.size(dim) - 1", "steps = torch.narrow(at, dim, 1, n) - torch.narrow(at, dim, 0, n)",
                 "return torch.sum(steps * (torch.narrow(y, dim, 1, n) + torch.narrow(y, dim, 0, n)), [dim]) / 2.0")),
    "aten::trapz.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor": (
        "trapezoid", function("y: Tensor, x: Tensor, dim: int", "return torch.trapezoid(y, x, dim=dim)")),
    "aten::trapz.dx(Tensor y, *, float dx=1., int dim=-1) -> Tensor": (
        "trapezoid", function("y: Tensor, dx: float, dim: int", "return torch.trapezoid(y, dx=dx, dim=dim)")),
    "aten::cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor": (
        "the covariances of the rows",
        function("self: Tensor, correction: int, fweights: Optional[Tensor], aweights: Optional[Tensor]",
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
                 "result = torch.matmul(x * weights, torch.transpose(x, 0, 1)) / torch.clamp_min(norm, 0.0)",
                 "if x.size(0) == 1:",
                 "    result = result.reshape([])",
                 "return result")),
    "aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor": (
        "whether each element is among the others, every pair compared",
        function("elements: Tensor, test_elements: Tensor, assume_unique: bool, invert: bool",
                 "found = torch.any(elements.unsqueeze(-1) == test_elements.reshape([-1]), -1)",
                 "if invert:", "    found = torch.logical_not(found)", "return found")),
    "aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False)"
    " -> Tensor": (
        "whether each element is the number",
        function("elements: Tensor, test_element: number, assume_unique: bool, invert: bool",
                 "found = elements == test_element",
                 "if invert:", "    found = torch.logical_not(found)", "return found")),
    "aten::sum_to_size(Tensor self, SymInt[] size) -> Tensor": (
        "summed over the axes that `size` has not, or has as 1",
        function("self: Tensor, size: List[int]", "x = self", "more = self.dim() - len(size)",
                 "if len(size) == 0:", "    return torch.sum(self)",
                 "for i in range(more):", "    x = torch.sum(x, [0])",
                 "for i in range(len(size)):",
                 "    if size[i] == 1:", "        x = torch.sum(x, [i], True)", "return x")),
    "aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, "
    "float eps) -> (Tensor, Tensor, Tensor)": (
        "group_norm, each group's mean and the reciprocal of its deviation",
        function("input: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], N: int, C: int, HxW: int, "
                 "group: int, eps: float",
                 "groups = input.reshape([input.size(0), group, -1])",
                 "mean = torch.mean(groups, [2])",
                 "apart = groups - mean.unsqueeze(2)",
                 "variance = torch.mean(apart * apart, [2])",
                 "return torch.group_norm(input, group, weight, bias, eps), mean, torch.rsqrt(variance + eps)")),
})  # fmt: skip


def not_inverted(ctx: Any, arguments: Any) -> str | None:
    """not below the power 0"""
    return "TensorRT has no layer that inverts a matrix" if arguments.n < 0 else None


compose(__name__, {
    f"aten::{name}(Tensor self, int n) -> Tensor": (
        "the matrix multiplied by itself n times, by repeated squaring",
        function("self: Tensor, n: int",
                 "result = torch.eye(self.size(-1), dtype=self.dtype)",
                 "result = result.expand(self.size())",
                 "square = self",
                 "rest = n",
                 "for i in range(16):",
                 "    if rest > 0:",
                 "        if rest % 2 == 1:",
                 "            result = torch.matmul(result, square)",
                 "        rest = rest // 2",
                 "        if rest > 0:",
                 "            square = torch.matmul(square, square)",
                 "return result"))
    for name in ("matrix_power", "linalg_matrix_power")
}, when=not_inverted)  # fmt: skip

_UNPOOL = (
    "spatial = len(output_size)",
    "batch = self.size()[:-spatial]",
    "volume = 1",
    "for n in output_size:",
    "    volume = volume * n",
    "flat = torch.zeros([], dtype=self.dtype).expand(batch + [volume])",
    "flat = torch.scatter(flat, -1, torch.flatten(indices, -spatial), torch.flatten(self, -spatial))",
    "return flat.reshape(batch + output_size)",
)
compose(__name__, {
    "aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor": (
        "values put back where pooling found them, zeros elsewhere",
        function("self: Tensor, indices: Tensor, output_size: List[int]", *_UNPOOL)),
    "aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding)"
    " -> Tensor": (
        "values put back where pooling found them, zeros elsewhere",
        function("self: Tensor, indices: Tensor, output_size: List[int], stride: List[int], padding: List[int]",
                 *_UNPOOL)),
})  # fmt: skip

_QUANTILE = (
    "x = self",
    "axis = 0",
    "if dim is None or self.dim() == 0:",
    "    x = self.reshape([-1])",
    "else:",
    "    axis = dim",
    "    if axis < 0:",
    "        axis = axis + self.dim()",
    "ordered = torch.sort(x, axis)[0]",
    "places = q.reshape([-1]) * (x.size(axis) - 1)",
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
    "low = torch.index_select(ordered, axis, below.to(torch.long))",
    "high = torch.index_select(ordered, axis, torch.ceil(places).to(torch.long))",
    "shape = [1] * x.dim()",
    "shape[axis] = -1",
    "result = torch.lerp(low, high, rest.reshape(shape).expand_as(low))",
    "result = torch.movedim(result, axis, 0)",
    "if keepdim:",
    "    if dim is None or self.dim() == 0:",
    "        result = result.reshape([result.size(0)] + [1] * self.dim())",
    "    else:",
    "        result = result.unsqueeze(axis + 1)",
)
_SETTINGS = "dim: Optional[int], keepdim: bool, interpolation: str"
_REST = 'int? dim=None, bool keepdim=False, *, str interpolation="linear") -> Tensor'
compose(__name__, {
    f"aten::quantile(Tensor self, Tensor q, {_REST}": (
        "between the ordered values at q (n - 1), as `interpolation` says (NaN is not looked for)",
        function(f"self: Tensor, q: Tensor, {_SETTINGS}", *_QUANTILE,
                 "if q.dim() == 0:", "    result = result.squeeze(0)", "return result")),
    f"aten::quantile.scalar(Tensor self, float q, {_REST}": (
        "quantile at one place",
        function(f"self: Tensor, place: float, {_SETTINGS}", "q = torch.full([], place, dtype=self.dtype)",
                 *_QUANTILE, "return result.squeeze(0)")),
})  # fmt: skip

_BAG = (
    "count = offsets.size(0)",
    "if include_last_offset:",
    "    count = count - 1",
    "places = torch.arange(indices.size(0)).unsqueeze(0)",
    "starts = torch.narrow(offsets, 0, 0, count).unsqueeze(1)",
    "if include_last_offset:",
    "    ends = torch.narrow(offsets, 0, 1, count).unsqueeze(1)",
    "else:",
    "    last = torch.full([1], indices.size(0), dtype=offsets.dtype)",
    "    ends = torch.cat([torch.narrow(offsets, 0, 1, count - 1), last], 0).unsqueeze(1)",
    "inside = torch.logical_and(places >= starts, places < ends)",
    "if padding_idx is not None:",
    "    if padding_idx >= 0:",
    "        inside = torch.logical_and(inside, (indices != padding_idx).unsqueeze(0))",
    "rows = torch.index_select(weight, 0, indices)",
    "if per_sample_weights is not None:",
    "    rows = rows * per_sample_weights.unsqueeze(1)",
    "sizes = torch.sum(inside, [1])",
    "if mode == 2:",
    "    outside = torch.logical_not(inside).unsqueeze(2)",
    "    each = torch.masked_fill(rows.unsqueeze(0).expand([count, -1, -1]), outside, -float('inf'))",
    "    bags = torch.amax(each, [1])",
    "    bags = torch.where((sizes == 0).unsqueeze(1), torch.zeros_like(bags), bags)",
    "else:",
    "    bags = torch.matmul(inside.to(rows.dtype), rows)",
    "    if mode == 1:",
    "        bags = bags / torch.clamp_min(sizes, 1).unsqueeze(1).to(rows.dtype)",
    "return bags, torch.argmax(inside.to(torch.int), 0), sizes, torch.zeros([0], dtype=torch.long)",
)
_FROM_THE_END = (
    "if padding_idx is not None:",
    "    if padding_idx < 0:",
    "        padding_idx = padding_idx + weight.size(0)",
)
_BAG_INPUTS = "weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool, mode: int, sparse: bool, "
_BAG_DOC = "the sum, mean or maximum of the rows of each bag, by a matrix of which index is in which bag"
_BAGS = "Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq{}, int mode{}, bool sparse{}, "
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_USUAL = _BAGS.format("=False", "=0", "=False") + "Tensor? per_sample_weights=None, bool include_last_offset=False"
_BAG_TAIL = "per_sample_weights: Optional[Tensor], include_last_offset: bool"
compose(__name__, {
    f"aten::embedding_bag({_USUAL}) -> {_FOUR}": (
        _BAG_DOC, function(_BAG_INPUTS + _BAG_TAIL, "padding_idx = -1", *_BAG)),
    f"aten::embedding_bag.padding_idx({_BAGS.format('', '', '')}Tensor? per_sample_weights, bool include_last_offset, "
    f"int? padding_idx) -> {_FOUR}": (
        _BAG_DOC, function(f"{_BAG_INPUTS}{_BAG_TAIL}, padding_idx: Optional[int]", *_FROM_THE_END, *_BAG)),
    f"aten::_embedding_bag({_USUAL}, int padding_idx=-1) -> {_FOUR}": (
        _BAG_DOC, function(f"{_BAG_INPUTS}{_BAG_TAIL}, padding_idx: int", *_BAG)),
}, note="the first output; the places that training asks for are not computed")  # fmt: skip

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
compose(__name__, {
    f"aten::median.dim{_PLACED}": (
        "the lower of the middle values along an axis, and its place",
        function(_WITHIN, *_NO_AXIS, "half = (self.size(dim) + 1) // 2",
                 "values, places = torch.topk(self, half, dim, False)",
                 "value = torch.narrow(values, dim, half - 1, 1)", "place = torch.narrow(places, dim, half - 1, 1)",
                 *_ONE_PLACE)),
    "aten::median(Tensor self) -> Tensor": (
        "the lower of the middle values", function("self: Tensor", f"return {_FLAT.format('median')}")),
    f"aten::nanmedian.dim{_PLACED}": (
        "the median of what is not NaN",
        function(_WITHIN, *_NO_AXIS, "x = self", "unknown = torch.zeros_like(self, dtype=torch.bool)",
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
                 *_ONE_PLACE)),
    "aten::nanmedian(Tensor self) -> Tensor": (
        "the median of what is not NaN", function("self: Tensor", f"return {_FLAT.format('nanmedian')}")),
    "aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)": (
        "the least of the most frequent values along an axis, every pair compared, and its last place",
        function(_WITHIN, *_NO_AXIS,
                 "x = torch.movedim(self, dim, -1)",
                 "counts = torch.sum(x.unsqueeze(-1) == x.unsqueeze(-2), [-1])",
                 "most = counts == torch.amax(counts, [-1], True)",
                 "value = torch.amin(torch.where(most, x, torch.amax(x, [-1], True)), [-1], True)",
                 "places = torch.arange(x.size(-1)).expand(x.size())",
                 "place = torch.amax(torch.where(x == value, places, torch.zeros_like(places)), [-1], True)",
                 "value, place = torch.movedim(value, -1, dim), torch.movedim(place, -1, dim)",
                 *_ONE_PLACE)),
}, note=_NAN)  # fmt: skip
