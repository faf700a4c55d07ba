"""NaN, infinities, zeros, ties and the ends of the ranges: functions of them, and what differs from
PyTorch.

    python -m tests.conversion.special_values [family or operator ...]     torch's own samples

`GROUPS` has functions of one tensor or of two, each group one network. `DIFFERENT` names those
whose answers are accepted to differ. `UNDEFINED` names those that differ where TensorRT's layers
treat NaN and ties in another way than the reference does (`nan_lost`). `SAMPLES` names the
operators of torch's database (opinfo.py) that differ where such values replace elements of their
samples. An entry that no longer differs is an error, so no table can go stale. The notes that
reasons mention are in docs/operators.md.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

import builder
from builder.errors import TrtBuildError
from builder.reference import registry
from builder.reference.dtypes import axes_of
from builder.reference.layers import elementwise, pooling, reduce
from tests.conversion import opinfo
from tests.conversion.harness import carried, convert

INF, NAN = math.inf, math.nan
LARGEST = torch.finfo(torch.float32).max
VALUES = [NAN, INF, -INF, 0.0, -0.0, 1e-40, LARGEST, -LARGEST, 0.5, 1.5, 2.5, -0.5]
VALUES += [-1.5, -1.0, 2.0, 88.8, -104.0, 255.6, 300.0, 3e9, -3e9, 1e20]
NUMBERS = torch.tensor(VALUES)
LEFT, RIGHT = (
    side.flatten() for side in torch.meshgrid(NUMBERS, NUMBERS, indexing="ij")
)
ROWS = torch.tensor(
    [
        [NAN, 1.0, INF],
        [-INF, -INF, -INF],
        [INF, INF, 1.0],
        [0.0, -0.0, 1e-40],
        [LARGEST, LARGEST, -LARGEST],
        [-INF, 0.0, 1.0],
        [1.0, 1.0, 1.0],
    ]
)
IMAGE = torch.cat([NUMBERS, NUMBERS[:14]]).reshape(1, 1, 6, 6)
IN_32_BITS = [2**31 - 1, -(2**31), 0, -1, 1, 7, -7, 127, 128, 255, 256, 46341, 65536]
BEYOND_32_BITS = [2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**40 + 3, -(2**40) - 3]
INTEGERS = torch.tensor(IN_32_BITS + BEYOND_32_BITS)
INTEGERS_32 = torch.tensor(IN_32_BITS, dtype=torch.int32)
SCALARS = (INF, -INF, NAN, LARGEST, -0.0, 1e-40, 2.5, -3)
MASK = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)
QUERY = torch.linspace(-2, 2, 24).reshape(1, 2, 3, 4)
SCORES = torch.tensor([[-INF, 1.0, -INF], [-INF, -INF, NAN], [-INF, -INF, -INF]])
CLASSES = torch.linspace(-1, 1, 12).reshape(3, 4)

Function = Callable[..., Any]

UNARY = """
abs acos acosh angle asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor frac isfinite
isinf isnan isneginf isposinf log log10 log1p log2 logical_not logit nan_to_num neg reciprocal relu
round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc special.entr
special.ndtr
""".split()
ACTIVATIONS = """
celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 rrelu
selu silu softplus softshrink softsign tanhshrink
""".split()
BINARY = """
add atan2 copysign div eq floor_divide fmax fmin fmod ge gt heaviside hypot isclose ldexp le
logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul ne pow remainder sub
xlogy
""".split()
BY_NUMBER = """
add clamp_max clamp_min div eq floor_divide fmod ge gt le lt mul ne pow remainder sub
""".split()
REDUCTIONS = """
all amax amin any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum log_softmax
logcumsumexp logsumexp max mean median min mode nanmean nanmedian nansum norm prod softmax sort std
sum var
""".split()
OF_INTEGERS = """
abs amax amin any argmax argmin bool float half int isfinite isnan long max min neg prod relu sign
sort square sum
""".split()
PADDING = ("constant", "reflect", "replicate", "circular")


def _named(name: str) -> Function:
    """A function of torch, of one tensor or of more."""
    module: Any = torch
    for part in name.split("."):
        module = getattr(module, part)
    return module  # type: ignore[no-any-return]


def _along(name: str) -> Function:
    """The method along axis 1."""
    if name == "norm":
        return lambda x: x.norm(dim=1)
    return lambda x: getattr(x, name)(1)


def _of_numbers() -> dict[str, Function]:
    functions = {name: _named(name) for name in UNARY}
    functions |= {name: getattr(F, name) for name in ACTIVATIONS}
    functions |= {
        f"to {dtype}": lambda x, dtype=dtype: x.to(dtype)
        for dtype in (torch.bool, torch.float16, torch.bfloat16)
    }
    return functions | {
        "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
        "elu with alpha": lambda x: F.elu(x, 0.3),
        "celu with alpha": lambda x: F.celu(x, 0.3),
        "softplus with beta": lambda x: F.softplus(x, 3.0),
        "prelu": lambda x: F.prelu(x, torch.tensor([0.25])),
        "logit with eps": lambda x: torch.logit(x, 0.1),
        "round to hundredths": lambda x: torch.round(x, decimals=2),
        "round to tens": lambda x: torch.round(x, decimals=-1),
        "isnan after relu": lambda x: torch.relu(x).isnan(),
        "isnan after clamp": lambda x: x.clamp(-1, 1).isnan(),
        "where isnan": lambda x: torch.where(x.isnan(), 0.0, x),
        "where x != x": lambda x: torch.where(x != x, 0.0, x),
        "where x == x": lambda x: torch.where(x == x, x, 0.0),
        "isnan, any": lambda x: x.isnan().any(),
        "isfinite, all": lambda x: x.isfinite().all(),
        "isin": lambda x: torch.isin(x, torch.tensor([NAN, INF, 0.0])),
        "bucketize": lambda x: torch.bucketize(x, torch.tensor([-INF, 0.0, 0.5, INF])),
        "searchsorted": lambda x: torch.searchsorted(
            torch.tensor([-INF, 0.0, 0.5, 0.5, INF]), x, right=True
        ),
        "bce with logits": lambda x: F.binary_cross_entropy_with_logits(
            x, torch.ones_like(x), reduction="none"
        ),
        "huber": lambda x: F.huber_loss(x, torch.ones_like(x), reduction="none"),
        "masked mean": lambda x: x.nansum() / (~x.isnan()).sum(),
    }


def _by_numbers() -> dict[str, Function]:
    functions: dict[str, Function] = {}
    for value in SCALARS:
        for name in BY_NUMBER:
            functions[f"{name} {value}"] = lambda x, n=name, v=value: _named(n)(x, v)
        functions |= {
            f"clamp from {value}": lambda x, v=value: x.clamp(v, 1.0),
            f"clamp to {value}": lambda x, v=value: x.clamp(-1.0, v),
            f"{value} / x": lambda x, v=value: v / x,
            f"{value} // x": lambda x, v=value: torch.floor_divide(
                torch.full_like(x, v), x
            ),
            f"{value} ** x": lambda x, v=value: torch.pow(v, x),
            f"masked_fill {value}": lambda x, v=value: x.masked_fill(x > 0, v),
            f"where {value}": lambda x, v=value: torch.where(x > 0, x, v),
            f"nan_to_num {value}": lambda x, v=value: torch.nan_to_num(x, v, v, v),
            f"threshold {value}": lambda x, v=value: F.threshold(x, 0.5, v),
            f"pad {value}": lambda x, v=value: F.pad(x, (1, 2), value=v),
            f"pad half {value}": lambda x, v=value: F.pad(
                x.half(), (1, 2), value=v if abs(v) != LARGEST else INF
            ),
        }
    for value in (INF, 2.5):
        functions[f"hardtanh to {value}"] = lambda x, v=value: F.hardtanh(x, -1.0, v)
    for exponent in (2, 3, 0.5, -1, -2, -0.5, 0.3, 0, -3, 4, 5, -4):
        functions[f"pow {exponent}"] = lambda x, e=exponent: x**e
    for divisor in (2, -0.5, 0.3, -3):
        functions |= {
            f"floor_divide by {divisor}": lambda x, d=divisor: x // d,
            f"remainder by {divisor}": lambda x, d=divisor: x % d,
            f"fmod by {divisor}": lambda x, d=divisor: torch.fmod(x, d),
            f"quotient, truncated, by {divisor}": lambda x, d=divisor: torch.div(
                x, d, rounding_mode="trunc"
            ),
        }
    return functions


def _of_pairs() -> dict[str, Function]:
    functions = {name: _named(name) for name in BINARY}
    return functions | {
        "div, trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "clamp by tensors": lambda a, b: torch.clamp(a, min=b, max=b + 1),
        "isclose with NaN": lambda a, b: torch.isclose(a, b, equal_nan=True),
        "lerp": lambda a, b: torch.lerp(a, b, 0.3),
        "where a < b": lambda a, b: torch.where(a < b, a, b),
    }


def _of_rows() -> dict[str, Function]:
    functions = {f"{name} of rows": _along(name) for name in REDUCTIONS}
    whole = "amax amin argmax argmin max mean median min std sum".split()
    functions |= {f"{name} of all": lambda x, n=name: getattr(x, n)() for name in whole}
    for order in (0, 1, 3, INF, -INF, 0.5):
        functions[f"norm {order}"] = lambda x, o=order: torch.linalg.vector_norm(
            x, o, 1
        )
        functions[f"normalize {order}"] = lambda x, o=order: F.normalize(x, o, 1)
    index = torch.tensor([[0, 2, 0]]).expand(7, 3)
    for reduction in ("sum", "amax", "amin", "mean", "prod"):
        functions[f"scatter_reduce {reduction}"] = lambda x, r=reduction: (
            x.scatter_reduce(1, index, x, r)
        )
    for mode in PADDING:
        functions[f"pad, {mode}"] = lambda x, m=mode: F.pad(x[None], (2, 1), mode=m)
    for way in ("lower", "higher", "nearest", "midpoint"):
        functions |= {
            f"quantile, {way}": lambda x, w=way: x.quantile(0.4, 1, interpolation=w),
            f"nanquantile, {way}": lambda x, w=way: x.nanquantile(
                0.4, 1, interpolation=w
            ),
        }
    return functions | {
        "layer_norm": lambda x: F.layer_norm(x, (3,)),
        "rms_norm": lambda x: F.rms_norm(x, (3,)),
        "safe softmax": lambda x: torch.ops.aten._safe_softmax(x, 1),
        "topk": lambda x: x.topk(2, 1)[0],
        "sort, descending": lambda x: x.sort(1, descending=True)[0],
        "kthvalue": lambda x: x.kthvalue(2, 1)[0],
        "quantile": lambda x: torch.quantile(x, 0.4, 1),
        "nanquantile": lambda x: torch.nanquantile(x, 0.4, 1),
        "corrcoef": torch.corrcoef,
        "cdist 0": lambda x: torch.cdist(x, x + 1, 0.0),
        "cdist": lambda x: torch.cdist(x, x + 1),
        "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(1)),
        "matmul": lambda x: x @ x.T,
        "gather": lambda x: x.gather(1, index),
        "scatter": lambda x: x.scatter(1, index[:, :2], x),
        "index_put": lambda x: x.index_put((torch.tensor([0, 3]),), x[1:3]),
        "index_add": lambda x: x.index_add(0, torch.tensor([0, 0]), x[1:3]),
        "tril": lambda x: x.tril(),
        "diag_embed": torch.diag_embed,
        "diff": torch.diff,
        "embedding": lambda x: F.embedding(torch.tensor([0, 1, 6]), x, 0),
        "multi_margin_loss": lambda x: F.multi_margin_loss(
            x,
            index[:, 1] * 0,
            p=2,
            weight=torch.tensor([0.5, 1.0, 2.0]),
            reduction="none",
        ),
    }


def _of_image() -> dict[str, Function]:
    return {
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "max_pool2d, padded": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_pool2d, dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2),
        "max_pool2d, indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "avg_pool2d, padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
        "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
        "adaptive_avg_pool2d, uneven": lambda x: F.adaptive_avg_pool2d(x, 4),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "conv2d": lambda x: F.conv2d(x, torch.ones(1, 1, 3, 3), padding=1),
        "unfold": lambda x: F.unfold(x, 2),
        "grid_sample": lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2)),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 3, 3), 2),
    } | {
        f"pad2d, {mode}": lambda x, m=mode: F.pad(x, (2, 1, 0, 2), mode=m)
        for mode in PADDING
    }


def _of_integers() -> dict[str, Function]:
    functions: dict[str, Function] = {
        f"integers: {name}": lambda x, n=name: getattr(x, n)() for name in OF_INTEGERS
    }
    for n in (2, 3, -7, 2**31 - 1):
        functions |= {
            f"integers // {n}": lambda x, n=n: x // n,
            f"integers % {n}": lambda x, n=n: x % n,
            f"integers * {n}": lambda x, n=n: x * n,
            f"integers + {n}": lambda x, n=n: x + n,
            f"integers / {n}": lambda x, n=n: x / n,
            f"integers > {n}.5": lambda x, n=n: x > n + 0.5,
            f"integers, truncated, {n}": lambda x, n=n: torch.div(
                x, n, rounding_mode="trunc"
            ),
        }
    for n in (0, 1, 31, 32, 63):
        functions[f"integers << {n}"] = lambda x, n=n: x << n
        functions[f"integers >> {n}"] = lambda x, n=n: x >> n
    for n in (0, 2, 3, 31):
        functions[f"integers ** {n}"] = lambda x, n=n: x**n
    return functions | {
        "integers to uint8": lambda x: x.to(torch.uint8),
        "integers to int8": lambda x: x.to(torch.int8),
        "integers: cumsum": lambda x: x.cumsum(0),
        "integers: clamp": lambda x: x.clamp(-5, 200),
        "integers: topk": lambda x: x.topk(3)[0],
        "integers: ~": lambda x: ~x,
    }


def _of_masks() -> dict[str, Function]:
    def attention(mask: torch.Tensor) -> torch.Tensor:
        scores = QUERY @ QUERY.transpose(-1, -2)
        return torch.softmax(scores.masked_fill(~mask, -INF), -1)

    return {
        "attention": lambda mask: attention(mask) @ QUERY,
        "attention, NaN to 0": lambda mask: attention(mask).nan_to_num(0.0) @ QUERY,
        "attention, masked": lambda mask: attention(mask).masked_fill(~mask, 0) @ QUERY,
        "sdpa, bool": lambda mask: F.scaled_dot_product_attention(
            QUERY, QUERY, QUERY, attn_mask=mask
        ),
        "sdpa, -inf": lambda mask: F.scaled_dot_product_attention(
            QUERY, QUERY, QUERY, attn_mask=torch.zeros(3, 3).masked_fill(~mask, -INF)
        ),
        "log_softmax": lambda mask: F.log_softmax(SCORES.masked_fill(mask, 0.5), 1),
        "logsumexp": lambda mask: SCORES.masked_fill(mask, 0.5).logsumexp(1),
        "cross entropy, ignored": lambda mask: F.cross_entropy(
            CLASSES * mask[:, :1], torch.tensor([1, -100, 2]), reduction="none"
        ),
        "cross entropy, all ignored": lambda mask: F.cross_entropy(
            CLASSES * mask[:, :1], torch.tensor([-100, -100, -100])
        ),
        "one_hot": lambda mask: F.one_hot(mask.sum(1), 4),
        "mean of nothing": lambda mask: mask.float().sum(1) / (mask.sum(1) * 0),
    }


GROUPS: dict[str, tuple[dict[str, Function], tuple[torch.Tensor, ...]]] = {
    "numbers": (_of_numbers(), (NUMBERS,)),
    "by numbers": (_by_numbers(), (NUMBERS,)),
    "pairs": (_of_pairs(), (LEFT, RIGHT)),
    "rows": (_of_rows(), (ROWS,)),
    "image": (_of_image(), (IMAGE,)),
    "int64": (_of_integers(), (INTEGERS,)),
    "int32": (_of_integers(), (INTEGERS_32,)),
    "masks": (_of_masks(), (MASK,)),
}
"""The functions of each group and their inputs."""

OVERFLOW = "an intermediate result overflows in another place than PyTorch's"
FAR = "the quotient is above 2^48 or the divisor above 2^114: NaN, see the note"
ORDER = "the TopK layer's order of NaN and of equal values: see the note"
POWERS = "1 to an infinite power"
UNCHECKED = "the layer's answer for NaN: see the note"

DIFFERENT: dict[str, dict[str, str]] = {
    "numbers": {"hardswish": OVERFLOW},
    "by numbers": {
        f"{name} {value}": FAR
        for name in ("fmod", "remainder")
        for value in (LARGEST, 1e-40, 2.5, -3, "by 0.3", "by -3")
    }
    | {
        "1e-40 // x": FAR,
        "remainder by -0.5": OVERFLOW,
        "fmod by -0.5": OVERFLOW,
    },
    "pairs": {"floor_divide": FAR, "fmod": FAR, "remainder": FAR},
    "rows": {
        "argmin of rows": ORDER,
        "argmin of all": ORDER,
        "min of rows": ORDER,
        "scatter_reduce sum": OVERFLOW,
        "scatter_reduce mean": OVERFLOW,
        "layer_norm": OVERFLOW,
        "cdist 0": UNCHECKED,
    },
    "image": {"adaptive_avg_pool2d, uneven": "a matrix product: 0 * inf is NaN"},
}
"""The functions of each group whose outputs differ by the reference, with the reason."""

UNDEFINED: dict[str, dict[str, str]] = {
    "numbers": dict.fromkeys(
        ["relu", "relu6", "hardsigmoid", "hardtanh", "isnan after relu"], UNCHECKED
    ),
    "by numbers": dict.fromkeys(["hardtanh to inf", "hardtanh to 2.5"], UNCHECKED),
    "pairs": {"pow": POWERS},
    "rows": dict.fromkeys(
        [
            *(
                f"{name} of {what}"
                for name in ("amax", "amin")
                for what in ("rows", "all")
            ),
            "max of all",
            "min of all",
            *(
                f"{name} {order}"
                for name in ("norm", "normalize")
                for order in (INF, -INF)
            ),
            "scatter_reduce amax",
            "scatter_reduce amin",
        ],
        UNCHECKED,
    )
    | dict.fromkeys(
        [
            *(f"{name} of rows" for name in ("argmax", "argsort", "max", "sort")),
            *(f"{name} of rows" for name in ("median", "mode", "nanmedian")),
            "argmax of all",
            "topk",
            "sort, descending",
        ],
        ORDER,
    ),
    "image": dict.fromkeys(
        [
            "max_pool2d",
            "max_pool2d, padded",
            "max_pool2d, dilated",
            "adaptive_max_pool2d",
        ],
        UNCHECKED,
    ),
}
"""The functions that also differ if layers handle NaN and ties differently (`nan_lost`)."""


def differences(group: str) -> dict[str, str]:
    """The functions of a group whose network has other outputs than PyTorch, with the first element
    that differs.
    """
    functions, inputs = GROUPS[group]
    expected = {name: opinfo._tensors(f(*inputs)) for name, f in functions.items()}
    results = iter(builder.reference.run(_converted(group), inputs))
    differences: dict[str, str] = {}
    for name, truths in expected.items():
        for truth in truths:
            problem = difference(next(results), truth)
            if problem:
                differences.setdefault(name, problem)
    return differences


@functools.cache
def _converted(group: str) -> builder.Conversion:
    functions, inputs = GROUPS[group]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _convert(
            lambda *tensors: [f(*tensors) for f in functions.values()], inputs
        )


def _convert(function: Function, inputs: Sequence[torch.Tensor]) -> builder.Conversion:
    """Convert the traced function; lists and tuples of its result are flattened."""
    return convert(lambda *tensors: tuple(opinfo._tensors(function(*tensors))), inputs)


def difference(got: torch.Tensor, truth: torch.Tensor) -> str | None:
    """The first element that differs, or None. NaN equals NaN; signs of zeros do not count."""
    truth = truth.to(carried(truth.dtype))
    if (got.shape, got.dtype) != (truth.shape, truth.dtype):
        return f"{got.dtype} {list(got.shape)}, not {truth.dtype} {list(truth.shape)}"
    if truth.dtype.is_floating_point:
        equal = torch.isclose(got.double(), truth.double(), 1e-4, 1e-5, equal_nan=True)
    else:
        equal = got == truth
    if equal.all():
        return None
    at = tuple((~equal).nonzero()[0].tolist())
    return f"{got[at].item()}, not {truth[at].item()}, at {list(at)}"


def _without_nan(compute: Function, value: float) -> Function:
    """`compute` as if every NaN were `value`."""

    def computed(x: torch.Tensor, *others: Any) -> Any:
        if x.is_floating_point():
            x = torch.where(x.isnan(), value, x)
        return compute(x, *others)

    return computed


def _last_of_equals(layer: Any, x: torch.Tensor, k: Any = None) -> Any:
    """A TopK that puts NaN at the end and the last of equal elements first."""
    largest = layer.op.name == "MAX"
    (axis,) = axes_of(layer.axes)
    if x.is_floating_point():
        x = torch.where(x.isnan(), -INF if largest else INF, x)
    values, positions = TOPK(layer, x.flip(axis), k)
    return values, x.shape[axis] - 1 - positions


def _power_by_logarithm(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """NaN for a negative base, as on TensorRT for RTX (pytorch/TensorRT, pull request 4181)."""
    return torch.exp2(exponent.double() * x.double().log2()).to(x.dtype)


TOPK = registry.EVALUATORS["TOPK"]


@contextlib.contextmanager
def nan_lost() -> Iterator[None]:
    """Evaluate layers as TensorRT may: it documents neither NaN nor the order of equal elements.

    Version 10.16 returns the other operand of MIN, and the lower limit of CLIP, for NaN
    (NVIDIA/TensorRT, issues 4758 and 4773). The reference passes NaN on, as PyTorch does. POW is
    NaN for a negative base.
    """

    def limited(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
        return x.clamp(max=high).clamp(min=low)

    def integers_or(compute: Function, of_integers: Function) -> Function:
        return lambda a, b: (compute if a.is_floating_point() else of_integers)(a, b)

    extrema = {
        "MAX": integers_or(torch.fmax, torch.maximum),
        "MIN": integers_or(torch.fmin, torch.minimum),
        "POW": integers_or(_power_by_logarithm, torch.pow),
    }
    activations = {
        "RELU": _without_nan(elementwise.ACTIVATIONS["RELU"], 0.0),
        "CLIP": lambda x, low, high: _without_nan(limited, low)(x, low, high),
        "HARD_SIGMOID": _without_nan(elementwise.ACTIVATIONS["HARD_SIGMOID"], -INF),
    }
    reductions = {
        "MAX": _without_nan(reduce.REDUCTIONS["MAX"], -INF),
        "MIN": _without_nan(reduce.REDUCTIONS["MIN"], INF),
    }
    with (
        mock.patch.dict(elementwise.ELEMENTWISE, extrema),
        mock.patch.dict(elementwise.ACTIVATIONS, activations),
        mock.patch.dict(reduce.REDUCTIONS, reductions),
        mock.patch.dict(registry.EVALUATORS, TOPK=_last_of_equals),
        mock.patch.object(pooling, "_maximum", _without_nan(pooling._maximum, -INF)),
    ):
        yield


SPECIAL: dict[str, list[float]] = {
    "NaN": [NAN],
    "infinite": [INF, -INF, INF],
    "zeros and ties": [0.0, -0.0, 1.0, -1.0, 1.0, 0.5, 1.5, 2.5],
}
ENDS = {
    "32 bits": [2**31 - 1, -(2**31), 0, 1],
    "64 bits": [2**40 + 3, -(2**40) - 3, 2**63 - 1, 1 - 2**63],
}
"""-2^63 / -1 ends the process in PyTorch itself."""
PRODUCT = "a matrix product: 0 * inf is NaN"
WEIGHTS = "an infinite weight or bias: PyTorch adds the terms in another order"
SAMPLES: dict[str, str] = {
    "cdist": UNCHECKED,
    "linalg.multi_dot": "PyTorch multiplies in the cheapest order",
    "min": ORDER,
    "mode": "NaN is not handled: see the note",
    "native_group_norm": WEIGHTS,
    "nn.functional.adaptive_avg_pool2d": PRODUCT,
    "nn.functional.adaptive_max_pool1d": ORDER,
    "nn.functional.adaptive_max_pool2d": ORDER,
    "nn.functional.batch_norm": WEIGHTS,
    "nn.functional.embedding_bag": PRODUCT,
    "nn.functional.group_norm": WEIGHTS,
    "nn.functional.instance_norm": WEIGHTS,
    "nn.functional.interpolate": PRODUCT,
    "take_along_dim": "an index out of range",
}
"""The operators whose outputs differ, with the reason."""
NO_SAMPLES = frozenset(opinfo.SORTED)
"""Their special values would not be sorted. GROUPS has them."""


def sample_differences(name: str) -> list[str]:
    """The samples of an operator whose network has other outputs than PyTorch if special values
    replace elements. Samples that PyTorch or the conversion refuses are left out.
    """
    differences = []
    for entry in opinfo._database()[name]:
        for dtype in opinfo.DTYPES[:2]:
            if dtype in entry.supported_dtypes("cpu"):
                for sample in opinfo._spread(opinfo._samples(entry, dtype), 2):
                    problems = _of_sample(name, entry, sample)
                    differences += [
                        f"{opinfo._words(sample)}: {line}" for line in problems
                    ]
    return differences


def _of_sample(name: str, entry: Any, sample: Any) -> Iterator[str]:
    function, tensors = opinfo._as_function(entry, sample)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            conversion = _convert(function, tensors)
        except (TrtBuildError, RuntimeError, ValueError, TypeError):
            return
        for label, changed in _with_special_values(tensors):
            try:
                truths = opinfo._tensors(function(*(t.clone() for t in changed)))
            except (RuntimeError, IndexError, ValueError):
                continue
            count = 1 if name in opinfo.ANY_OF_EQUALS else len(truths)
            results = builder.reference.run(conversion, changed)[:count]
            for got, truth in zip(results, truths[:count], strict=True):
                problem = difference(got, truth)
                if problem:
                    yield f"{label}: {problem}"


def _with_special_values(
    tensors: Sequence[torch.Tensor],
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The tensors with special values at every third position and at every position, in one of them
    and in all.
    """
    for table, floating in ((SPECIAL, True), (ENDS, False)):
        places = [
            at
            for at, t in enumerate(tensors)
            if t.is_floating_point() == floating and t.dtype != torch.bool
        ]
        choices = [places, *([at] for at in places if len(places) > 1)]
        for label, values in table.items():
            for chosen in choices if places else ():
                for step in (3, 1):
                    changed = [
                        _replaced(t, values, step) if at in chosen else t
                        for at, t in enumerate(tensors)
                    ]
                    yield f"{label} in {chosen}", changed


def _replaced(t: torch.Tensor, values: Sequence[float], step: int) -> torch.Tensor:
    flat = t.flatten().clone()
    places = torch.arange(0, flat.numel(), step)
    dtype = t.dtype if t.is_floating_point() else torch.int64
    # 64-bit values overflow smaller dtypes
    special = torch.tensor(values, dtype=dtype)[places // step % len(values)]
    flat[places] = special.to(t.dtype)
    return flat.reshape(t.shape)


def main(names: Sequence[str]) -> int:
    """Print the differences of these families or operators; 1 if `SAMPLES` has others."""
    names = names or list(opinfo.FAMILIES)
    unexpected = False
    for family in names:
        for name in opinfo.operators(family) if family in opinfo.FAMILIES else [family]:
            if opinfo.known(name) and name not in NO_SAMPLES:
                differences = sample_differences(name)
                unexpected |= bool(differences) != (name in SAMPLES)
                print(
                    f"{name}: {len(differences)}",
                    *differences[:6],
                    sep="\n    ",
                    flush=True,
                )
    return int(unexpected)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
