"""Decompositions as data: the schema of an operator, and TorchScript that means the same in
operators that have converters.

A branch on an argument is resolved while lowering when the argument is a constant. Where a formula
needs the number of axes or a dtype that the graph does not tell, it asks with `dim()` or `dtype`,
which conversion evaluates. Arguments come in the schema's order.
"""

from __future__ import annotations

Table = dict[str, str]

RSQRT: Table = {
    "aten::rsqrt(Tensor self) -> Tensor": (
        """
def f(self: Tensor):
    return torch.reciprocal(torch.sqrt(self))
"""
    ),
}

HARDSIGMOID: Table = {
    "aten::hardsigmoid(Tensor self) -> Tensor": (
        """
def f(self: Tensor):
    return torch.clamp(self + 3., 0., 6.) / 6.
"""
    ),
}

HARDSWISH: Table = {
    "aten::hardswish(Tensor self) -> Tensor": (
        """
def f(self: Tensor):
    return self * torch.clamp(self + 3., 0., 6.) / 6.
"""
    ),
}

SILU: Table = {
    "aten::silu(Tensor self) -> Tensor": (
        """
def f(self: Tensor):
    return self * torch.sigmoid(self)
"""
    ),
}

# Exact gelu stays exact, the tanh form stays the tanh form: they differ by up to 5e-4.
GELU: Table = {
    'aten::gelu(Tensor self, *, str approximate="none") -> Tensor': (
        """
def f(self: Tensor, approximate: str):
    if approximate == "tanh":
        result = 0.5 * self * (1. + torch.tanh(0.7978845608028654 * (self + 0.044715 * self * self * self)))
    else:
        result = 0.5 * self * (1. + torch.erf(self * 0.7071067811865476))
    return result
"""
    ),
}

# exp(softmax) underflows to log(0); the shifted form does not.
_LOG_SOFTMAX = """
    shifted = x - torch.amax(x, [dim], True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), [dim], True))
"""
LOG_SOFTMAX: Table = {
    "aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor": (
        f"""
def f(self: Tensor, dim: int, dtype: Optional[int]):
    x = self
    if dtype is not None:
        x = self.to(dtype)
{_LOG_SOFTMAX}"""
    ),
    "aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor": (
        f"""
def f(self: Tensor, dim: int, half_to_float: bool):
    x = self
    if half_to_float:
        x = self.to(torch.float)
{_LOG_SOFTMAX}"""
    ),
}

# The mean is taken out before squaring (E[x^2] - E[x]^2 cancels); no axes given means all of them.
_MOMENTS = """
    if dim is None or len(dim) == 0:
        mean = torch.mean(self)
        if keepdim:
            mean = torch.mean(self, None, True)
        deviation = self - mean
        total = torch.sum(deviation * deviation)
        if keepdim:
            total = torch.sum(deviation * deviation, None, True)
        count = self.numel()
    else:
        kept = torch.mean(self, dim, True)
        mean = torch.mean(self, dim, keepdim)
        deviation = self - kept
        total = torch.sum(deviation * deviation, dim, keepdim)
        count = self.numel() // kept.numel()
    variance = total / max(count - correction, 0)
"""
_DEFAULT = """
def f(self: Tensor, unbiased: bool):
    dim: Optional[List[int]] = None
    keepdim = False
    correction = int(unbiased)
"""
_DIM = """
def f(self: Tensor, dim: Optional[List[int]], unbiased: bool, keepdim: bool):
    correction = int(unbiased)
"""
_CORRECTION = """
def f(self: Tensor, dim: Optional[List[int]], given: Optional[{number}], keepdim: bool):
    correction = {number}(1) if given is None else given
"""


def _moments(name: str, results: str, returns: str) -> Table:
    """All overloads of one of var, std, var_mean, std_mean."""
    tail = f"{_MOMENTS}    return {results}\n"
    correction = "Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False"
    return {
        f"aten::{name}(Tensor self, bool unbiased=True) -> {returns}": _DEFAULT + tail,
        f"aten::{name}.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> {returns}": (
            _DIM + tail
        ),
        f"aten::{name}.correction({correction}) -> {returns}": _CORRECTION + tail,
    }


VAR = _moments("var", "variance", "Tensor") | _moments(
    "var_mean", "variance, mean", "(Tensor, Tensor)"
)
STD = _moments("std", "torch.sqrt(variance)", "Tensor") | _moments(
    "std_mean", "torch.sqrt(variance), mean", "(Tensor, Tensor)"
)

# The result has the sign of the divisor, which in uint8 is never negative; fmod has that of the
# dividend.
_REMAINDER = """
    rest = torch.fmod(self, other)
    return torch.where(torch.logical_and(rest != 0, torch.ne(rest < 0, other < 0)), rest + other, rest)
"""
REMAINDER: Table = {
    "aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor": (
        f"""
def f(self: Tensor, other: Tensor):
{_REMAINDER}"""
    ),
    "aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor": (
        """
def f(self: Tensor, other: number):
    rest = torch.fmod(self, other)
    divisor = torch.full_like(rest, other)
    return torch.where(torch.logical_and(rest != 0, torch.ne(rest < 0, divisor < 0)), rest + divisor, rest)
"""
    ),
}

FLOOR_DIVIDE: Table = {
    "aten::floor_divide(Tensor self, Tensor other) -> Tensor": (
        """
def f(self: Tensor, other: Tensor):
    return torch.div(self, other, rounding_mode="floor")
"""
    ),
    "aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor": (
        """
def f(self: Tensor, other: number):
    return torch.div(self, other, rounding_mode="floor")
"""
    ),
}

GROUP_NORM: Table = {
    "aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enabled=True) -> Tensor": (
        """
def f(input: Tensor, num_groups: int, weight: Optional[Tensor], bias: Optional[Tensor], eps: float,
      cudnn_enabled: bool):
    x = input.reshape([input.size(0), num_groups, -1])
    x = x - torch.mean(x, [-1], True)
    x = x / torch.sqrt(torch.mean(x * x, [-1], True) + eps)
    x = x.reshape([input.size(0), input.size(1), -1])
    if weight is not None:
        x = x * weight.unsqueeze(-1)
    if bias is not None:
        x = x + bias.unsqueeze(-1)
    return x.reshape(input.size())
"""
    ),
}

ADDMM: Table = {
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor": (
        """
def f(self: Tensor, mat1: Tensor, mat2: Tensor, beta: number, alpha: number):
    product = torch.matmul(mat1, mat2)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        result = product
    elif beta == 1:
        result = product + self
    else:
        result = product + self * beta
    return result
"""
    ),
}

TRUE_DIVIDE: Table = {
    "aten::true_divide.Tensor(Tensor self, Tensor other) -> Tensor": (
        """
def f(self: Tensor, other: Tensor):
    return torch.div(self, other)
"""
    ),
    "aten::true_divide.Scalar(Tensor self, Scalar other) -> Tensor": (
        """
def f(self: Tensor, other: number):
    return torch.div(self, other)
"""
    ),
}
TRUE_DIVIDE |= {
    f"aten::{old}.{kind}(Tensor self, {kind} other) -> Tensor": (
        f"""
def f(self: Tensor, other: {"Tensor" if kind == "Tensor" else "number"}):
    return torch.{new}(self, other)
"""
    )
    for old, new in (("multiply", "mul"), ("divide", "div"))
    for kind in ("Tensor", "Scalar")
}

TYPE_AS: Table = {
    "aten::type_as(Tensor self, Tensor other) -> Tensor": (
        """
def f(self: Tensor, other: Tensor):
    return self.to(other.dtype)
"""
    ),
}

VIEW: Table = {
    "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)": (
        """
def f(self: Tensor, size: List[int]):
    return torch.reshape(self, size)
"""
    ),
    "aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor": (
        """
def f(self: Tensor, size: List[int]):
    return torch.reshape(self, size)
"""
    ),
    "aten::view_as(Tensor(a) self, Tensor other) -> Tensor(a)": (
        """
def f(self: Tensor, other: Tensor):
    return torch.reshape(self, other.size())
"""
    ),
    "aten::reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)": (
        """
def f(self: Tensor, other: Tensor):
    return torch.reshape(self, other.size())
"""
    ),
}

# tile fills its list with ones at the front up to the number of axes, repeat does not.
TILE: Table = {
    "aten::tile(Tensor self, SymInt[] dims) -> Tensor": (
        """
def f(self: Tensor, dims: List[int]):
    return self.repeat([1] * max(self.dim() - len(dims), 0) + dims)
"""
    ),
}

# Chosen, not put together of parts: their lengths would change within a loop, where TensorRT has
# static ones only.
SLICE_SCATTER: Table = {
    "aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor": (
        """
def f(self: Tensor, src: Tensor, dim: int, index: int):
    size = self.size(dim)
    places = torch.arange(size, device="cpu")
    here = torch.logical_or(places == index, places == index + size)
    new = src.unsqueeze(dim).transpose(dim, -1)
    return torch.where(here, new, self.transpose(dim, -1)).transpose(dim, -1)
"""
    ),
}
