"""Special functions, and others element by element, composed of operators that have converters."""

from __future__ import annotations

from builder.conversion.composing import compose, function

_XLOGY = (
    "logarithm = {function}(other)",
    "product = self * logarithm",
    "zero = torch.zeros_like(product)",
    (
        "return torch.where(torch.logical_and(self == 0, torch.logical_not(torch.isnan(other))),"
        " zero, product)"
    ),
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
            function(
                "self: Tensor, number: number",
                "other = torch.full_like(self * 1.0, number)",
                *lines,
            ),
        ),
        f"aten::{name}.{first}(Scalar self, Tensor other) -> Tensor": (
            doc,
            function(
                "number: number, other: Tensor",
                "self = torch.full_like(other * 1.0, number)",
                *lines,
            ),
        ),
    }


compose(__name__, _xlogy("xlogy", "torch.log", (".Tensor", "Scalar_Other", "Scalar_Self")))
compose(__name__, _xlogy("special_xlogy", "torch.log", ("", "other_scalar", "self_scalar")))
compose(__name__, _xlogy("special_xlog1py", "torch.log1p", ("", "other_scalar", "self_scalar")))

TWO = "self: Tensor, other: Tensor"
ONE = "self: Tensor"

compose(
    __name__,
    {
        "aten::logaddexp(Tensor self, Tensor other) -> Tensor": (
            (
                "log(exp(self) + exp(other)), by the larger of the two and log1p of what the other"
                " adds"
            ),
            function(
                TWO,
                "larger = torch.maximum(self, other)",
                "rest = torch.log1p(torch.exp(-torch.abs(self - other)))",
                "return torch.where(self == other, larger + 0.6931471805599453, larger + rest)",
            ),
        ),
        "aten::logaddexp2(Tensor self, Tensor other) -> Tensor": (
            "the same to the base 2",
            function(
                TWO,
                "larger = torch.maximum(self, other)",
                "rest = torch.log1p(torch.exp2(-torch.abs(self - other))) * 1.4426950408889634",
                "return torch.where(self == other, larger + 1.0, larger + rest)",
            ),
        ),
        "aten::hypot(Tensor self, Tensor other) -> Tensor": (
            (
                "the root of self^2 + other^2, by the ratio of the smaller to the larger, which"
                " does not overflow"
            ),
            function(
                TWO,
                "a = torch.abs(self)",
                "b = torch.abs(other)",
                "larger = torch.maximum(a, b)",
                "smaller = torch.minimum(a, b)",
                "safe = torch.where(larger == 0, torch.ones_like(larger), larger)",
                "ratio = smaller / safe",
                "ratio = torch.where(smaller == larger, torch.ones_like(ratio), ratio)",
                "return torch.where(larger == 0, larger, larger * torch.sqrt(1.0 + ratio * ratio))",
            ),
        ),
        "aten::signbit(Tensor self) -> Tensor": (
            "whether the sign is negative, of -0 too (of NaN: no)",
            function(
                ONE,
                "if torch.is_floating_point(self):",
                "    return torch.logical_or(self < 0, torch.logical_and(self == 0,"
                " torch.reciprocal(self) < 0))",
                "return self < 0",
            ),
        ),
        "aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor": (
            "|self| with the sign of other",
            function(
                TWO,
                "size = torch.abs(self * 1.0)",
                "negative = torch.signbit(other)",
                "return torch.where(negative, -size, size)",
            ),
        ),
        "aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor": (
            "|self| with the sign of a number",
            function(
                "self: Tensor, other: number",
                "return torch.copysign(self, torch.full([], float(other)))",
            ),
        ),
        "aten::heaviside(Tensor self, Tensor values) -> Tensor": (
            "0 below 0, 1 above, `values` at 0",
            function(
                "self: Tensor, values: Tensor",
                "return torch.where(self == 0, values, (self > 0).to(self.dtype))",
            ),
        ),
        "aten::ldexp.Tensor(Tensor self, Tensor other) -> Tensor": (
            "self 2^other",
            function(TWO, "return self * torch.pow(2.0, other)"),
        ),
        "aten::isclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08, bool equal_nan=False) -> Tensor": (
            "|self - other| <= atol + rtol |other|, or equal",
            function(
                f"{TWO}, rtol: float, atol: float, equal_nan: bool",
                "close = self == other",
                "if equal_nan and torch.is_floating_point(self):",
                "    close = torch.logical_or(close, torch.logical_and(torch.isnan(self),"
                " torch.isnan(other)))",
                "if self.dtype == torch.bool:",
                "    return close",
                "if rtol == 0.0 and atol == 0.0:",
                "    return close",
                "difference = torch.abs(self - other)",
                "near = difference <= atol + torch.abs(rtol * other)",
                "return torch.logical_or(close, torch.logical_and(torch.isfinite(difference),"
                " near))",
            ),
        ),
        "aten::isreal(Tensor self) -> Tensor": (
            "true everywhere",
            function(ONE, "return torch.ones_like(self, dtype=torch.bool)"),
        ),
        "aten::angle(Tensor self) -> Tensor": (
            "pi below 0, else 0; NaN stays",
            function(
                ONE,
                "x = self * 1.0",
                "turned = torch.where(x < 0, torch.full_like(x, 3.141592653589793),"
                " torch.zeros_like(x))",
                "return torch.where(torch.isnan(x), x, turned)",
            ),
        ),
        "aten::special_entr(Tensor self) -> Tensor": (
            "-self log(self), 0 at 0, -inf below",
            function(
                ONE,
                "x = self * 1.0",
                "value = -torch.xlogy(x, torch.abs(x))",
                "return torch.where(x < 0, torch.full_like(x, -float('inf')), value)",
            ),
        ),
        "aten::special_ndtr(Tensor self) -> Tensor": (
            "the normal distribution function, erfc(-self / sqrt(2)) / 2",
            function(ONE, "return 0.5 * torch.erfc(self * -0.7071067811865476)"),
        ),
        "aten::special_expit(Tensor self) -> Tensor": (
            "sigmoid",
            function(ONE, "return torch.sigmoid(self)"),
        ),
        "aten::special_logit(Tensor self, float? eps=None) -> Tensor": (
            "logit",
            function("self: Tensor, eps: Optional[float]", "return torch.logit(self, eps)"),
        ),
        "aten::special_log1p(Tensor self) -> Tensor": (
            "log1p",
            function(ONE, "return torch.log1p(self)"),
        ),
        "aten::special_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor": (
            "softmax",
            function(
                "self: Tensor, dim: int, dtype: Optional[int]",
                "return torch.softmax(self, dim, dtype)",
            ),
        ),
        "aten::special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor": (
            "log_softmax",
            function(
                "self: Tensor, dim: int, dtype: Optional[int]",
                "return torch.log_softmax(self, dim, dtype)",
            ),
        ),
        "aten::special_logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor": (
            "logsumexp",
            function(
                "self: Tensor, dim: List[int], keepdim: bool",
                "return torch.logsumexp(self, dim, keepdim)",
            ),
        ),
        "aten::_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor": (
            "softmax; 0 along an axis of nothing but -inf",
            function(
                "self: Tensor, dim: int, dtype: Optional[int]",
                "hidden = torch.amax(self, [dim], True) == -float('inf')",
                "return torch.masked_fill(torch.softmax(self, dim, dtype), hidden, 0.0)",
            ),
        ),
    },
)
