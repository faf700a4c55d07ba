"""Decompositions as data: the schema of an operator, and TorchScript that means the same in operators that have
converters.

A branch on an argument is resolved while lowering when the argument is a constant. Where a formula needs the number
of axes or a dtype that the graph does not tell, it asks with `dim()` or `dtype`, which conversion evaluates.
Arguments come in the schema's order.
"""

from __future__ import annotations

Table = dict[str, str]

RSQRT: Table = {
    "aten::rsqrt(Tensor self) -> Tensor": """
def f(self: Tensor):
    return torch.reciprocal(torch.sqrt(self))
""",
}

HARDSIGMOID: Table = {
    "aten::hardsigmoid(Tensor self) -> Tensor": """
def f(self: Tensor):
    return torch.clamp(self + 3., 0., 6.) / 6.
""",
}

HARDSWISH: Table = {
    "aten::hardswish(Tensor self) -> Tensor": """
def f(self: Tensor):
    return self * torch.clamp(self + 3., 0., 6.) / 6.
""",
}

SILU: Table = {
    "aten::silu(Tensor self) -> Tensor": """
def f(self: Tensor):
    return self * torch.sigmoid(self)
""",
}

# Exact gelu stays exact, the tanh form stays the tanh form: they differ by up to 5e-4.
GELU: Table = {
    'aten::gelu(Tensor self, *, str approximate="none") -> Tensor': """
def f(self: Tensor, approximate: str):
    if approximate == "tanh":
        result = 0.5 * self * (1. + torch.tanh(0.7978845608028654 * (self + 0.044715 * self * self * self)))
    else:
        result = 0.5 * self * (1. + torch.erf(self * 0.7071067811865476))
    return result
""",
}

# exp(softmax) underflows to log(0); the shifted form does not.
_LOG_SOFTMAX = """
    shifted = x - torch.amax(x, [dim], True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), [dim], True))
"""
LOG_SOFTMAX: Table = {
    "aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor": f"""
def f(self: Tensor, dim: int, dtype: Optional[int]):
    x = self
    if dtype is not None:
        x = self.to(dtype)
{_LOG_SOFTMAX}""",
    "aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor": f"""
def f(self: Tensor, dim: int, half_to_float: bool):
    x = self
    if half_to_float:
        x = self.to(torch.float)
{_LOG_SOFTMAX}""",
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
        f"aten::{name}.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> {returns}": _DIM + tail,
        f"aten::{name}.correction({correction}) -> {returns}": _CORRECTION + tail,
    }


VAR = _moments("var", "variance", "Tensor") | _moments("var_mean", "variance, mean", "(Tensor, Tensor)")
STD = _moments("std", "torch.sqrt(variance)", "Tensor") | _moments(
    "std_mean", "torch.sqrt(variance), mean", "(Tensor, Tensor)"
)

# The result has the sign of the divisor, which in uint8 is never negative; fmod has that of the dividend.
_REMAINDER = """
    rest = torch.fmod(self, other)
    return torch.where(torch.logical_and(rest != 0, torch.ne(rest < 0, other < 0)), rest + other, rest)
"""
REMAINDER: Table = {
    "aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor": f"""
def f(self: Tensor, other: Tensor):
{_REMAINDER}""",
    "aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor": """
def f(self: Tensor, other: number):
    rest = torch.fmod(self, other)
    divisor = torch.full_like(rest, other)
    return torch.where(torch.logical_and(rest != 0, torch.ne(rest < 0, divisor < 0)), rest + divisor, rest)
""",
}

FLOOR_DIVIDE: Table = {
    "aten::floor_divide(Tensor self, Tensor other) -> Tensor": """
def f(self: Tensor, other: Tensor):
    return torch.div(self, other, rounding_mode="floor")
""",
    "aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor": """
def f(self: Tensor, other: number):
    return torch.div(self, other, rounding_mode="floor")
""",
}

# A row whose every key is masked gives zeros, not the nan of a softmax over nothing but -inf.
ATTENTION: Table = {
    "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor": """
def f(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], dropout_p: float, is_causal: bool,
      scale: Optional[float], enable_gqa: bool):
    if scale is None:
        factor = float(query.size(-1)) ** -0.5
    else:
        factor = scale
    if enable_gqa:
        k = torch.repeat_interleave(key, query.size(-3) // key.size(-3), -3)
        v = torch.repeat_interleave(value, query.size(-3) // value.size(-3), -3)
    else:
        k = key
        v = value
    scores = torch.matmul(query * factor, torch.transpose(k, -2, -1))
    if is_causal:
        rows = torch.arange(query.size(-2), device="cpu").unsqueeze(1)
        columns = torch.arange(key.size(-2), device="cpu").unsqueeze(0)
        scores = torch.masked_fill(scores, rows < columns, -float("inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = torch.masked_fill(scores, torch.logical_not(attn_mask), -float("inf"))
        else:
            scores = scores + attn_mask
        empty = torch.amax(scores, [-1], True) == -float("inf")
        weights = torch.masked_fill(torch.softmax(scores, -1), empty, 0.)
    else:
        weights = torch.softmax(scores, -1)
    return torch.matmul(weights, v)
""",
}

# The fused operators of nn.MultiheadAttention in evaluation mode. mask_type 0: (queries, keys), 1: (batch, keys), 2:
# (batch, heads,
# queries, keys); a mask that is not bool masks where it is not zero.
_HEADS = """
def heads(x: Tensor, num_heads: int):
    return x.reshape([x.size(0), x.size(1), num_heads, -1]).transpose(1, 2)

def attend(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], mask_type: Optional[int]):
    scores = torch.matmul(q * float(q.size(-1)) ** -0.5, k.transpose(-2, -1))
    if mask is not None:
        hidden = mask.to(torch.bool)
        if mask_type is not None:
            if mask_type == 1:
                hidden = hidden.unsqueeze(1).unsqueeze(1)
        scores = torch.masked_fill(scores, hidden, -float("inf"))
    return torch.softmax(scores, -1)

def merged(weights: Tensor, v: Tensor):
    x = torch.matmul(weights, v).transpose(1, 2)
    return x.reshape([x.size(0), x.size(1), -1])
"""
MULTI_HEAD: Table = {
    "aten::_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int embed_dim, int num_head, "
    "Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, Tensor? mask=None, "
    "bool need_weights=True, bool average_attn_weights=True, int? mask_type=None) -> (Tensor, Tensor)": f"""{_HEADS}
def f(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
      proj_weight: Tensor, proj_bias: Tensor, mask: Optional[Tensor], need_weights: bool, average_attn_weights: bool,
      mask_type: Optional[int]):
    d = embed_dim
    q = heads(torch.ops.aten.linear(query, qkv_weight[:d], qkv_bias[:d]), num_head)
    k = heads(torch.ops.aten.linear(key, qkv_weight[d:2 * d], qkv_bias[d:2 * d]), num_head)
    v = heads(torch.ops.aten.linear(value, qkv_weight[2 * d:], qkv_bias[2 * d:]), num_head)
    weights = attend(q, k, v, mask, mask_type)
    result = torch.ops.aten.linear(merged(weights, v), proj_weight, proj_bias)
    if need_weights:
        if average_attn_weights:
            shown = torch.mean(weights, [1])
        else:
            shown = weights
    else:
        shown = torch.zeros([0], device="cpu")
    return result, shown
""",
}
ENCODER_LAYER: Table = {
    "aten::_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, "
    "Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool norm_first, "
    "float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, Tensor norm_bias_2, "
    "Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor ffn_bias_2, "
    "Tensor? mask=None, int? mask_type=None) -> Tensor": f"""{_HEADS}
def f(src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
      proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
      norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
      ffn_bias_2: Tensor, mask: Optional[Tensor], mask_type: Optional[int]):
    d = embed_dim
    x = src
    if norm_first:
        x = torch.layer_norm(src, [d], norm_weight_1, norm_bias_1, eps)
    q = heads(torch.ops.aten.linear(x, qkv_weight[:d], qkv_bias[:d]), num_heads)
    k = heads(torch.ops.aten.linear(x, qkv_weight[d:2 * d], qkv_bias[d:2 * d]), num_heads)
    v = heads(torch.ops.aten.linear(x, qkv_weight[2 * d:], qkv_bias[2 * d:]), num_heads)
    weights = attend(q, k, v, mask, mask_type)
    x = src + torch.ops.aten.linear(merged(weights, v), proj_weight, proj_bias)
    if not norm_first:
        x = torch.layer_norm(x, [d], norm_weight_1, norm_bias_1, eps)
    y = x
    if norm_first:
        y = torch.layer_norm(x, [d], norm_weight_2, norm_bias_2, eps)
    y = torch.ops.aten.linear(y, ffn_weight_1, ffn_bias_1)
    if use_gelu:
        y = torch.ops.aten.gelu(y)
    else:
        y = torch.relu(y)
    x = x + torch.ops.aten.linear(y, ffn_weight_2, ffn_bias_2)
    if not norm_first:
        x = torch.layer_norm(x, [d], norm_weight_2, norm_bias_2, eps)
    return x
""",
}

GROUP_NORM: Table = {
    "aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1.0000000000000001e-05, bool cudnn_enabled=True) -> Tensor": """
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
""",
}

ADDMM: Table = {
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor": """
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
""",
}

TRUE_DIVIDE: Table = {
    "aten::true_divide.Tensor(Tensor self, Tensor other) -> Tensor": """
def f(self: Tensor, other: Tensor):
    return torch.div(self, other)
""",
    "aten::true_divide.Scalar(Tensor self, Scalar other) -> Tensor": """
def f(self: Tensor, other: number):
    return torch.div(self, other)
""",
}
TRUE_DIVIDE |= {
    f"aten::{old}.{kind}(Tensor self, {kind} other) -> Tensor": f"""
def f(self: Tensor, other: {"Tensor" if kind == "Tensor" else "number"}):
    return torch.{new}(self, other)
"""
    for old, new in (("multiply", "mul"), ("divide", "div"))
    for kind in ("Tensor", "Scalar")
}

TYPE_AS: Table = {
    "aten::type_as(Tensor self, Tensor other) -> Tensor": """
def f(self: Tensor, other: Tensor):
    return self.to(other.dtype)
""",
}

VIEW: Table = {
    "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)": """
def f(self: Tensor, size: List[int]):
    return torch.reshape(self, size)
""",
    "aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor": """
def f(self: Tensor, size: List[int]):
    return torch.reshape(self, size)
""",
    "aten::view_as(Tensor(a) self, Tensor other) -> Tensor(a)": """
def f(self: Tensor, other: Tensor):
    return torch.reshape(self, other.size())
""",
    "aten::reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)": """
def f(self: Tensor, other: Tensor):
    return torch.reshape(self, other.size())
""",
}

# tile fills its list with ones at the front up to the number of axes, repeat does not.
TILE: Table = {
    "aten::tile(Tensor self, SymInt[] dims) -> Tensor": """
def f(self: Tensor, dims: List[int]):
    return self.repeat([1] * max(self.dim() - len(dims), 0) + dims)
""",
}

SLICE_SCATTER: Table = {
    "aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor": """
def f(self: Tensor, src: Tensor, dim: int, index: int):
    size = self.size(dim)
    at = index + size if index < 0 else index
    after = torch.narrow(self, dim, at + 1, size - at - 1)
    return torch.cat([torch.narrow(self, dim, 0, at), src.unsqueeze(dim), after], dim)
""",
}
